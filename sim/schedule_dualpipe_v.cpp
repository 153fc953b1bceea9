// DualPipeV: DualPipe cut in half (Sea AI Lab): p ranks, two chunks each, down and back up; one copy of the parameters.
// m >= 2 p. Peak 2 p + 1 chunks on every rank.
#include "sim/dual_pipe.hpp"
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Refusal refuse_dualpipe_v(const ScheduleQuestion& q) {
  if (auto refusal = refuse_two_chunks(q)) return refusal;
  if (q.microbatches < 2 * q.ranks) {
    return "needs at least 2 x stages = " + std::to_string(2 * q.ranks) + " micro-batches, not " +
           std::to_string(q.microbatches);
  }
  return std::nullopt;
}

Order dualpipe_v_order(const ScheduleQuestion& q) {
  Order order = v_placement(q.ranks, q.microbatches);
  for (int r = 0; r < q.ranks; ++r) {
    DualPipeRank rank;
    rank.half = q.ranks;
    rank.depth = r;
    rank.microbatches = q.microbatches;
    rank.stage = {r, 2 * q.ranks - 1 - r};
    dual_pipe_rank(order.passes[r], rank);
  }
  return order;
}

}  // namespace shardplan
