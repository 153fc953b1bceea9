// Interleaved 1F1B: v chunks a rank, virtual stage s on rank s mod p, groups of g micro-batches (default p).
// Warm-up on rank r: 2 (p-1-r) + (v-1) g chunk forwards as in Megatron-LM; `short_warmup` takes (p-1-r) + (v-1) g,
// which has the same bubble without latency and holds fewer chunks, but pays the latency in every round.
#include <algorithm>

#include "sim/interleave.hpp"
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Refusal refuse_interleaved(const ScheduleQuestion& q) {
  if (q.group < 0) return "the group must be at least one micro-batch";
  return refuse_size(q, 0);
}

Order interleaved_order(const ScheduleQuestion& q) {
  const int p = q.ranks, v = q.chunks, group = q.group > 0 ? q.group : p;
  Order order = loop_placement(p, q.microbatches, v);
  const auto turns = interleaved_turns(q.microbatches, v, group);
  const int count = static_cast<int>(turns.size());
  for (int r = 0; r < p; ++r) {
    auto& list = order.passes[r];
    const std::int64_t wanted =
        std::int64_t{q.short_warmup ? 1 : 2} * (p - 1 - r) + std::int64_t{v - 1} * group + (q.overlap_pairs ? 1 : 0);
    const int warm_up = static_cast<int>(std::min<std::int64_t>(count, wanted));
    const auto forward = [&](int k) { return forward_pass(turns[k].chunk * p + r, turns[k].microbatch); };
    const auto backward = [&](int k) { return backward_pass((v - 1 - turns[k].chunk) * p + r, turns[k].microbatch); };
    for (int k = 0; k < warm_up; ++k) list.push_back(forward(k));
    for (int k = 0; k < count; ++k) {
      const bool steady = warm_up + k < count;
      if (steady && q.overlap_pairs) {
        list.push_back(overlapped_pass(forward(warm_up + k), backward(k)));
        continue;
      }
      if (steady) list.push_back(forward(warm_up + k));
      list.push_back(backward(k));
    }
  }
  return order;
}

}  // namespace shardplan
