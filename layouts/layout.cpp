#include "layouts/layout.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace shardplan {

Placement Layout::placement() const {
  if (schedule.empty()) return Placement::loop;
  const ScheduleRow* row = schedule_named(schedule);
  return row == nullptr ? Placement::loop : row->placement;
}

int Layout::slice_of(int rank, int chunk) const {
  switch (placement()) {
    case Placement::v_shape:
      return chunk == 0 ? rank : 2 * pp - 1 - rank;
    case Placement::bidirectional:
      return chunk == 0 ? rank : pp - 1 - rank;
    case Placement::loop:
      break;
  }
  return chunk * pp + rank;
}

int Layout::expert_shard_ranks() const {
  const int replicas = shard > 0 ? std::max(1, dp * cp / shard) : 1;
  return std::max(1, edp() / replicas);
}

/// Every count of passes below fits in an int, and a replay ends in seconds.
constexpr std::int64_t kMostMicrobatches = 1 << 20;

std::int64_t microbatches(const Layout& l, const Workload& w) {
  const std::int64_t a_round = std::int64_t{l.mbs} * l.dp;
  if (w.global_batch < 1 || w.global_batch % a_round != 0) {
    throw InputError("--global-batch", std::to_string(w.global_batch) +
                                           " sequences are not a multiple of mbs*dp = " + std::to_string(a_round));
  }
  const std::int64_t each = w.global_batch / a_round;
  if (each > kMostMicrobatches) {
    throw InputError("--global-batch", std::to_string(each) + " micro-batches a step: more than " +
                                           std::to_string(kMostMicrobatches) + " are not replayed");
  }
  return each;
}

}  // namespace shardplan
