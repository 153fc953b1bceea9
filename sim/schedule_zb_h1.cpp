// ZB-H1: 1F1B's warm-up (p - r forwards), the weight gradient of rank r lags r micro-batches behind its input gradient.
// Peak as 1F1B on rank 0; counted until the weight gradient, p micro-batches on every rank.
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"
#include "sim/zero_bubble.hpp"

namespace shardplan {

Order zb_h1_order(const ScheduleQuestion& q) {
  Order order = loop_placement(q.ranks, q.microbatches);
  for (int r = 0; r < q.ranks; ++r) zero_bubble_rank(order, r, q.ranks - r, r);
  return order;
}

}  // namespace shardplan
