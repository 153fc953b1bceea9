// ZB-H2: 2 (p - r) - 1 forwards fill the bubble before the first backward; the weight gradient lags 2 r micro-batches.
// No bubble inside a rank's window at F = B = W and m >= 2 p - 1; the ranks' windows are skewed, so the makespan has
// one.
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"
#include "sim/zero_bubble.hpp"

namespace shardplan {

Order zb_h2_order(const ScheduleQuestion& q) {
  Order order = loop_placement(q.ranks, q.microbatches);
  for (int r = 0; r < q.ranks; ++r) zero_bubble_rank(order, r, 2 * (q.ranks - r) - 1, 2 * r);
  return order;
}

}  // namespace shardplan
