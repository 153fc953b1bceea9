// 1F1B: rank r runs min(m, p-1-r) forward passes, then one forward and one backward in turn, then the rest of the
// backward passes. At most p - r micro-batches are in flight on rank r.
#include <algorithm>

#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Order one_f_one_b_order(const ScheduleQuestion& q) {
  Order order = loop_placement(q.ranks, q.microbatches);
  for (int r = 0; r < q.ranks; ++r) {
    auto& list = order.passes[r];
    const int warm_up = std::min(q.microbatches, q.ranks - 1 - r);
    for (int k = 0; k < warm_up; ++k) list.push_back(forward_pass(r, k));
    for (int k = 0; k < q.microbatches; ++k) {
      if (warm_up + k < q.microbatches) list.push_back(forward_pass(r, warm_up + k));
      list.push_back(backward_pass(r, k));
    }
  }
  return order;
}

}  // namespace shardplan
