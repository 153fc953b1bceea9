// Interleaved 1F1B with a free number N of consecutive micro-batches a chunk (Llama 3, arXiv 2407.21783,
// section 3.3.2): N = p is depth-first, N = m breadth-first, and N may be smaller than p, where Megatron's warm-up rule
// deadlocks. Llama 3 does not print its warm-up, so the order is built by running it: forward and backward turns as in
// interleaved 1F1B, backward first, at backward = 2 x forward; in flight at most what interleaved 1F1B holds, (v-1)
// max(N, p) + 2 (p-1-r) + 1.
#include <algorithm>

#include "sim/interleave.hpp"
#include "sim/list_order.hpp"
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Order interleaved_free_order(const ScheduleQuestion& q) {
  const int p = q.ranks, v = q.chunks;
  const int group = q.group > 0 ? q.group : std::min(p, q.microbatches);
  ListQuestion list;
  list.placement = loop_placement(p, q.microbatches, v);
  list.backward = 2;
  const auto turns = interleaved_turns(q.microbatches, v, group);
  for (int r = 0; r < p; ++r) {
    std::vector<Pass> forward, backward;
    for (const ChunkTurn& turn : turns) {
      forward.push_back(forward_pass(turn.chunk * p + r, turn.microbatch));
      backward.push_back(backward_pass((v - 1 - turn.chunk) * p + r, turn.microbatch));
    }
    list.lanes.push_back({std::move(forward), std::move(backward)});
    list.most_in_flight.push_back((v - 1) * std::max(group, p) + 2 * (p - 1 - r) + 1);
  }
  return list_order(std::move(list));
}

}  // namespace shardplan
