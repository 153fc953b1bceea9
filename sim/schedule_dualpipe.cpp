// DualPipe: two directions at once over p ranks, every rank holds two stages and two copies of the parameters in all.
// p even, m even (both directions together), m >= 2 p. Peak p + 1 chunks on every rank.
#include <algorithm>

#include "sim/dual_pipe.hpp"
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Refusal refuse_dualpipe(const ScheduleQuestion& q) {
  if (auto refusal = refuse_two_chunks(q)) return refusal;
  if (q.ranks % 2 != 0) return "needs an even number of stages, not " + std::to_string(q.ranks);
  if (q.microbatches % 2 != 0) return "needs an even number of micro-batches, not " + std::to_string(q.microbatches);
  if (q.microbatches < 2 * q.ranks) {
    return "needs at least 2 x stages = " + std::to_string(2 * q.ranks) + " micro-batches, not " +
           std::to_string(q.microbatches);
  }
  return std::nullopt;
}

Order dualpipe_order(const ScheduleQuestion& q) {
  const int p = q.ranks, n = q.microbatches / 2;
  Order order = bidirectional_placement(p, q.microbatches);
  for (int r = 0; r < p; ++r) {
    const int down = r, up = p + (p - 1 - r);
    const bool lower = r < p / 2;
    DualPipeRank rank;
    rank.half = p / 2;
    rank.depth = std::min(r, p - 1 - r);
    rank.microbatches = n;
    rank.stage = lower ? std::array{down, up} : std::array{up, down};
    rank.first_microbatch = lower ? std::array{0, n} : std::array{n, 0};
    dual_pipe_rank(order.passes[r], rank);
  }
  return order;
}

}  // namespace shardplan
