#pragma once
// What one MoE layer puts on a rank and on the wire, in expectation: tokens per expert on the hottest rank, bytes to
// other nodes and over NVLink. Closed forms, so that a plan search can ask thousands of times a second: about 1 us for
// a uniform popularity, 10-50 us for a skewed one (make its ExpertPopularity once).
//
// Left out: the counting noise of a finite batch (expected loads are used) and correlation between the layers. A node
// limit moves a skewed popularity's loads (up to 15 % on a rank at zipf:1): limit_to_nodes() gives the popularity that
// knows.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hardware/deepep.hpp"
#include "layouts/expert_placement.hpp"
#include "layouts/layout.hpp"
#include "layouts/occupancy.hpp"
#include "models/model.hpp"
#include "models/popularity.hpp"

namespace shardplan {

/// A popularity prepared for many questions: one a (skew, experts, top-k, seed).
struct ExpertPopularity {
  bool uniform = true;
  std::int64_t experts = 0, top_k = 0;
  std::vector<double> weights;  // sum 1
  std::vector<double> loads;    // expected share of the selections, sum 1
  MeanDraws draws;
  std::vector<double>
      shift;  // per expert and draw: what it adds to the weight taken from the others (see popularity.hpp)
};
ExpertPopularity make_popularity(const Skew&, std::int64_t experts, std::int64_t top_k, std::int64_t tokens,
                                 std::uint64_t seed);

/// The same popularity with the loads that remain when a token may use only `nodes_per_token` of `nodes` equal runs of
/// experts, from `tokens` drawn tokens (a quarter second for 2^16 of 256 experts: once a question). Unchanged where
/// nothing is limited.
ExpertPopularity limit_to_nodes(ExpertPopularity, int nodes, int nodes_per_token, std::uint64_t seed,
                                std::int64_t tokens = std::int64_t{1} << 16);

struct ExpertLoadQuestion {
  const Moe* moe = nullptr;
  std::int64_t hidden = 0;
  double tokens_per_rank = 0;                    // that enter the layer on each rank of the expert group
  int ep = 1;                                    // ranks of the group
  int ranks_per_node = 8;                        // of the group that share an NVLink domain
  const ExpertPopularity* popularity = nullptr;  // nullptr = uniform
  int nodes_per_token = 0;                       // 0 = no limit
  // The router's own group limit (DeepSeek): of `routing_groups` equal runs of experts a token uses groups_per_token,
  // however many nodes they lie on; 0 = none. Not together with nodes_per_token.
  int routing_groups = 0, groups_per_token = 0;
  int redundant = 0;  // further copies, placed by place_balanced; a given `placement` overrides it
  const ExpertPlacement* placement = nullptr;
  double capacity_factor = 0;  // 0 = dropless
  // NCCL and low latency: every copy goes straight to its rank, no merging per node or rank.
  ExpertTransport transport = ExpertTransport::deepep;
  double dispatch_bytes_per_value = 1;  // FP8 payload; 1 + 4/128 with scales; 2 BF16
  double combine_bytes_per_value = 2;
  bool count_own_node = false;  // whiteboard convention: traffic as if nothing were local
  bool every_copy = false;      // whiteboard convention: every token reaches its node limit, and k copies cross NVLink
};

struct ExpertLoad {
  int nodes = 1;
  // Copies of one token, means over tokens:
  double distinct_nodes = 0;  // that its experts sit on, own node included
  double remote_nodes = 0;    // without the own node
  double distinct_ranks = 0;  // own rank included
  double network_copies = 0;  // that leave the node (convention of the question)
  double nvlink_copies = 0;   // that cross NVLink, after arrival by the network or inside the node
  // Bytes that one rank sends in the mean, one direction of one layer's forward pass:
  double dispatch_network = 0, dispatch_nvlink = 0, combine_network = 0, combine_nvlink = 0;
  double busiest_network = 1;  // busiest rank's bytes over the mean
  double busiest_nvlink = 1;
  // Expert work. Tokens per local expert, whole, their sum the rounded sum of the expected ones:
  std::vector<std::int64_t> hottest;  // on the rank with most pairs
  std::vector<std::int64_t> mean;     // on a rank of equal loads
  double pairs_per_rank = 0;          // token-expert pairs of the mean rank: tokens x k, less drops
  double max_over_mean_rank = 1, max_over_mean_expert = 1;
  double lower_bound_rank = 1;      // over the mean, busiest_gpu_bound
  double dropped = 0, padding = 0;  // shares (capacity factor)
};

ExpertLoad expert_load(const ExpertLoadQuestion&);

/// A layout's word as hardware's transport, and whether each of a token's k copies travels on its own with it.
ExpertTransport expert_transport(Transport);
bool sends_every_copy(ExpertTransport);

/// Compute over communication that hides a layer's exchange: FLOP per pair over bytes per pair, FLOP per byte:
/// 2 x 3 h f / (h (dispatch + combine)) for gated experts of width f; 2 f at FP8 out and BF16 back.
double balance_flops_per_byte(const Moe&, double dispatch_bytes_per_value, double combine_bytes_per_value);

}  // namespace shardplan
