#include "sim/replay.hpp"

#include <algorithm>

namespace shardplan {
namespace {

double longest_busy(const Replay& r) {
  double busy = 0;
  for (const RankReplay& rank : r.ranks) busy = std::max(busy, rank.busy);
  return busy;
}

}  // namespace

double Replay::over_ideal() const {
  const double busy = longest_busy(*this);
  return busy > 0 ? (makespan - busy) / busy : 0;
}

double Replay::over_total() const {
  double busy = 0;
  for (const RankReplay& rank : ranks) busy += rank.busy;
  const double total = makespan * static_cast<double>(ranks.size());
  return total > 0 ? 1 - busy / total : 0;
}

double Replay::window() const { return max_stage_window > 0 ? (max_stage_window - longest_busy(*this)) / max_stage_window : 0; }

}  // namespace shardplan
