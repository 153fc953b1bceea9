#pragma once
// Drawn tokens through a placement: who sends how much to whom. The closed forms of expert_load.hpp without their
// means, on as many tokens as a second allows.
#include <cstdint>
#include <vector>

#include "layouts/expert_load.hpp"

namespace shardplan {

struct SampledTraffic {
  std::int64_t tokens = 0;  // drawn, over all ranks (each rank the same number)
  std::int64_t tokens_per_rank = 0;
  // Kept only where asked for (keep_matrices):
  std::vector<std::vector<std::int64_t>> counts;       // [source rank][expert]: pairs
  std::vector<std::vector<std::int64_t>> rank_tokens;  // [source rank][destination rank]: tokens, merged per rank
  std::vector<std::int64_t> nodes_histogram;           // tokens by the number of distinct nodes, from 0
  double distinct_nodes = 0, distinct_ranks = 0;
  double max_violation_expert = 0, max_violation_gpu = 0;
  std::int64_t idle_experts = 0;

  // Busiest rank over the mean, of what the network phase and the NVLink phase make it send or receive (the worse of
  // both):
  double busiest_network = 1, busiest_nvlink = 1;
};

/// Draws min(all, `most`) tokens, evenly over the ranks. A token picks one copy of a replicated expert at random.
/// `question` needs popularity and placement. InputError where a node limit does not suit the placement (experts of a
/// routing group spread over nodes).
SampledTraffic sample_traffic(const ExpertLoadQuestion& question, std::uint64_t seed,
                              std::int64_t most = std::int64_t{1} << 19, bool keep_matrices = false);

}  // namespace shardplan
