// Chimera (Li, Hoefler 2021, arXiv 2107.06925): two pipelines in opposite directions over the same ranks, two copies of
// the parameters; half of the micro-batches go each way. The published merge is for m = p; for other m the order is the
// list schedule of both pipelines, backward first, at equal times of forward and backward, at most p chunks in flight.
#include "sim/list_order.hpp"
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Refusal refuse_chimera(const ScheduleQuestion& q) {
  if (auto refusal = refuse_two_chunks(q)) return refusal;
  if (q.ranks % 2 != 0) return "needs an even number of stages, not " + std::to_string(q.ranks);
  if (q.microbatches % 2 != 0) return "needs an even number of micro-batches, not " + std::to_string(q.microbatches);
  return std::nullopt;
}

Order chimera_order(const ScheduleQuestion& q) {
  const int p = q.ranks, n = q.microbatches / 2;
  ListQuestion list;
  list.placement = bidirectional_placement(p, q.microbatches);
  list.lanes.resize(p);
  list.most_in_flight.assign(p, p);
  for (int s = 0; s < 2 * p; ++s) {
    const int first = s < p ? 0 : n;
    std::vector<Pass> forward, backward;
    for (int k = first; k < first + n; ++k) {
      forward.push_back(forward_pass(s, k));
      backward.push_back(backward_pass(s, k));
    }
    auto& lanes = list.lanes[list.placement.rank_of_stage[s]];
    lanes.push_back(std::move(forward));
    lanes.push_back(std::move(backward));
  }
  return list_order(std::move(list));
}

}  // namespace shardplan
