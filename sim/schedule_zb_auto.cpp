// zb-auto as a row: the searched zero-bubble order of sim/zb_auto.hpp for the question's times.
#include <algorithm>
#include <cstdint>
#include <string>

#include "sim/schedule_rows.hpp"
#include "sim/zb_auto.hpp"

namespace shardplan {

Refusal refuse_zb_auto(const ScheduleQuestion& q) {
  if (auto refusal = refuse_one_chunk(q)) return refusal;
  constexpr std::int64_t kMostSearched = 1 << 18;  // a few seconds: the search replays the whole order many times
  if (std::int64_t{q.ranks} * q.microbatches > kMostSearched) {
    return "more than " + std::to_string(kMostSearched) + " micro-batches times stages are not searched";
  }
  if (!q.stage_scale.empty() && q.stage_scale.size() != static_cast<std::size_t>(q.ranks)) {
    return "needs one factor a stage";
  }
  if (q.memory_limit < 0 || (q.memory_limit > 0 && q.memory_limit < std::max(1.0, q.weight_grad_memory))) {
    return "not even one micro-batch fits in the memory limit";
  }
  return std::nullopt;
}

ZbQuestion zb_question(const ScheduleQuestion& q) {
  ZbQuestion zb;
  zb.ranks = q.ranks;
  zb.microbatches = q.microbatches;
  zb.search = q.search;
  for (int s = 0; s < q.ranks; ++s) {
    const double scale = q.stage_scale.empty() ? 1 : q.stage_scale[s];
    zb.times.forward.push_back(q.forward * scale);
    zb.times.input_grad.push_back(q.input_grad * scale);
    zb.times.weight_grad.push_back(q.weight_grad * scale);
  }
  zb.times.hop_forward.assign(q.ranks, q.p2p);
  zb.times.hop_backward.assign(q.ranks, q.p2p);
  zb.chunk_bytes.assign(q.ranks, 1);
  zb.weight_grad_bytes.assign(q.ranks, q.weight_grad_memory);
  if (q.memory_limit > 0) zb.limit.assign(q.ranks, q.memory_limit);
  return zb;
}

Order zb_auto_order(const ScheduleQuestion& q) { return zb_auto(zb_question(q)).order; }

}  // namespace shardplan
