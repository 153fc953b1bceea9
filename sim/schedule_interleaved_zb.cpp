// Interleaved zero bubble as in PyTorch: (v-1) g + (p-1-r) chunk forwards, then forward and input gradient in turn; the
// weight gradient lags r passes behind. Groups of g = m / max(1, m / p) (whole division) unless one is given.
#include <algorithm>

#include "sim/interleave.hpp"
#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {
namespace {

int group_of(const ScheduleQuestion& q) {
  return q.group > 0 ? q.group : q.microbatches / std::max(1, q.microbatches / q.ranks);
}

}  // namespace

Refusal refuse_interleaved_zb(const ScheduleQuestion& q) {
  if (auto refusal = refuse_size(q, 0)) return refusal;
  if (q.group < 0) return "the group must be at least one micro-batch";
  if (q.microbatches % group_of(q) != 0) {
    return std::to_string(q.microbatches) + " micro-batches are no multiple of the group of " +
           std::to_string(group_of(q));
  }
  return std::nullopt;
}

Order interleaved_zb_order(const ScheduleQuestion& q) {
  const int p = q.ranks, v = q.chunks;
  Order order = loop_placement(p, q.microbatches, v);
  const auto turns = interleaved_turns(q.microbatches, v, group_of(q));
  const int count = static_cast<int>(turns.size());
  for (int r = 0; r < p; ++r) {
    auto& list = order.passes[r];
    const std::int64_t wanted = std::int64_t{v - 1} * group_of(q) + (p - 1 - r);
    const int warm_up = static_cast<int>(std::min<std::int64_t>(count, wanted));
    const auto forward = [&](int k) { list.push_back(forward_pass(turns[k].chunk * p + r, turns[k].microbatch)); };
    const auto mirrored = [&](int k) { return (v - 1 - turns[k].chunk) * p + r; };
    int weights = 0;
    const auto weight = [&] {
      list.push_back(weight_grad_pass(mirrored(weights), turns[weights].microbatch));
      ++weights;
    };
    for (int k = 0; k < warm_up; ++k) forward(k);
    for (int k = 0; k < count; ++k) {
      if (warm_up + k < count) forward(warm_up + k);
      list.push_back(input_grad_pass(mirrored(k), turns[k].microbatch));
      if (k >= r) weight();
    }
    while (weights < count) weight();
  }
  return order;
}

}  // namespace shardplan
