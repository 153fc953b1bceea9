// Looped breadth-first: every chunk runs all of its micro-batches before the next chunk starts; backward passes mirror
// it.
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Refusal refuse_looped_bfs(const ScheduleQuestion& q) { return refuse_size(q, 0); }

Order looped_bfs_order(const ScheduleQuestion& q) {
  Order order = loop_placement(q.ranks, q.microbatches, q.chunks);
  for (int r = 0; r < q.ranks; ++r) {
    auto& list = order.passes[r];
    for (int c = 0; c < q.chunks; ++c) {
      for (int k = 0; k < q.microbatches; ++k) list.push_back(forward_pass(c * q.ranks + r, k));
    }
    for (int c = q.chunks - 1; c >= 0; --c) {
      for (int k = q.microbatches - 1; k >= 0; --k) list.push_back(backward_pass(c * q.ranks + r, k));
    }
  }
  return order;
}

}  // namespace shardplan
