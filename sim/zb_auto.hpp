#pragma once
// zb-auto: a zero-bubble order for one chunk a rank, found under a memory limit with true times: per-stage F, I and W
// (recomputation belongs into I), a latency a hop, uneven stages, activations in bytes.
#include <cstdint>
#include <string>
#include <vector>

#include "sim/order.hpp"
#include "sim/replay.hpp"

namespace shardplan {

enum class ZbObjective {
  makespan,  // the step ends for all ranks together (global gradient norm before the optimizer)
  window,    // each rank steps on its own (post-hoc validation): the longest window is the step
};

/// One virtual stage a rank. A micro-batch holds chunk_bytes[s] on stage s from the start of its forward pass to the
/// end of its input gradient, then weight_grad_bytes[s] until the end of its weight gradient.
struct ZbQuestion {
  int ranks = 1, microbatches = 1;
  PassTimes times;                        // forward, input_grad, weight_grad, hop_forward, hop_backward are used
  std::vector<double> chunk_bytes;        // M_B, any unit
  std::vector<double> weight_grad_bytes;  // M_W, same unit
  std::vector<double> limit;              // by rank, same unit; empty = none
  ZbObjective objective = ZbObjective::makespan;
  bool search = true;  // false: the best of the published heuristic's eight settings, by the longest window
  int most_tries = 0;  // orders that the search evaluates; 0 = about a second's work
};

struct ZbAnswer {
  Order order;
  double makespan = 0, window = 0;
  double lower_bound = 0;  // of the objective: no order within the limit can be shorter
  double gap = 0;          // objective / lower_bound - 1
  std::string seed;        // the known order that the search began with
  std::int64_t tried = 0;  // orders evaluated
};

/// InputError("--memory-limit", ...) where not even one micro-batch fits on some rank.
ZbAnswer zb_auto(const ZbQuestion&);

struct ScheduleQuestion;
/// The question of the row zb-auto: memory in chunks, times and hops even but for stage_scale.
ZbQuestion zb_question(const ScheduleQuestion&);

}  // namespace shardplan
