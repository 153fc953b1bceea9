// 1F1B: rank r runs min(m, p-1-r) forward passes, then one forward and one backward in turn, then the rest of the
// backward passes. At most p - r micro-batches are in flight on rank r. With overlap_pairs (Megatron's
// overlap_moe_expert_parallel_comm) there is one more warm-up forward, and each forward runs as a pair with the
// backward after it: without the extra one the last rank would pair a micro-batch with itself.
#include <algorithm>

#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Order one_f_one_b_order(const ScheduleQuestion& q) {
  Order order = loop_placement(q.ranks, q.microbatches);
  for (int r = 0; r < q.ranks; ++r) {
    auto& list = order.passes[r];
    const int warm_up = std::min(q.microbatches, q.ranks - 1 - r + (q.overlap_pairs ? 1 : 0));
    for (int k = 0; k < warm_up; ++k) list.push_back(forward_pass(r, k));
    for (int k = 0; k < q.microbatches; ++k) {
      const bool steady = warm_up + k < q.microbatches;
      if (steady && q.overlap_pairs) {
        list.push_back(overlapped_pass(forward_pass(r, warm_up + k), backward_pass(r, k)));
        continue;
      }
      if (steady) list.push_back(forward_pass(r, warm_up + k));
      list.push_back(backward_pass(r, k));
    }
  }
  return order;
}

}  // namespace shardplan
