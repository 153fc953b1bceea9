#include "sim/in_flight.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace shardplan {
namespace {

struct Held {
  double input = 0, weight = 0, split = 0;
};

/// What the start of a pass takes and its end frees (negative `sign`), by kind.
void at_start(Held& held, const Pass& pass, const std::vector<double>& chunk) {
  if (pass.kind != PassKind::forward && pass.kind != PassKind::overlapped) return;
  held.input += chunk[pass.stage];
  held.weight += chunk[pass.stage];
  held.split += chunk[pass.stage];
}

void at_end(Held& held, const Pass& pass, const std::vector<double>& chunk, const std::vector<double>& weight) {
  switch (pass.kind) {
    case PassKind::forward:
      return;
    case PassKind::input_grad:
      held.input -= chunk[pass.stage];
      held.split += weight[pass.stage] - chunk[pass.stage];
      return;
    case PassKind::weight_grad:
      held.weight -= chunk[pass.stage];
      held.split -= weight[pass.stage];
      return;
    case PassKind::backward:
    case PassKind::overlapped: {
      const double bytes = chunk[pass.kind == PassKind::overlapped ? pass.stage2 : pass.stage];
      held.input -= bytes;
      held.weight -= bytes;
      held.split -= bytes;
    }
  }
}

}  // namespace

std::vector<RankInFlight> in_flight_bytes(const Order& order, const std::vector<double>& chunk_bytes,
                                          const std::vector<double>& weight_grad_bytes) {
  const std::size_t stages = order.rank_of_stage.size();
  if (chunk_bytes.size() != stages || weight_grad_bytes.size() != stages) {
    throw InputError("schedule", "bytes in flight need one entry a virtual stage");
  }
  std::vector<RankInFlight> peaks;
  for (const auto& list : order.passes) {
    Held held;
    RankInFlight peak;
    const auto look = [&] {
      peak.until_input_grad = std::max(peak.until_input_grad, held.input);
      peak.until_weight_grad = std::max(peak.until_weight_grad, held.weight);
      peak.split = std::max(peak.split, held.split);
    };
    for (const Pass& pass : list) {
      at_start(held, pass, chunk_bytes);
      look();
      at_end(held, pass, chunk_bytes, weight_grad_bytes);
      look();
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace shardplan
