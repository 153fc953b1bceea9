// GPipe: all forward passes, then all backward passes, micro-batches in the same order. Everything is in flight at
// once.
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Order gpipe_order(const ScheduleQuestion& q) {
  Order order = loop_placement(q.ranks, q.microbatches);
  for (int r = 0; r < q.ranks; ++r) {
    for (int k = 0; k < q.microbatches; ++k) order.passes[r].push_back(forward_pass(r, k));
    for (int k = 0; k < q.microbatches; ++k) order.passes[r].push_back(backward_pass(r, k));
  }
  return order;
}

}  // namespace shardplan
