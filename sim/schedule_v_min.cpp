// V-Min: the block of least memory. Every pass of a micro-batch follows the one before it at once, so a rank holds
// about a third of 1F1B's activations; with p divisible by 3 two slots are left between F and I so that no slot is
// taken twice. Its bubble grows with m where F, I and W differ (the block cannot repeat without waiting).
#include "sim/building_block.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Order v_min_order(const ScheduleQuestion& q) {
  const int p = q.ranks, gap = p % 3 == 0 ? 2 : 0;
  BuildingBlock block;
  for (int r = 0; r < p; ++r) block.push_back({r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r});
  return building_block_order(block, q.microbatches);
}

}  // namespace shardplan
