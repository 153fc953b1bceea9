// V-Half: half of 1F1B's activations. Chunk 0 goes down at two slots a rank, chunk 1 comes back at one; with p even
// three slots are left between F and I.
#include "sim/building_block.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {

Order v_half_order(const ScheduleQuestion& q) {
  const int p = q.ranks, gap = p % 2 == 0 ? 3 : 0;
  BuildingBlock block;
  for (int r = 0; r < p; ++r) block.push_back({2 * r, 3 * p - 2 - r, 3 * p + gap + 2 * r - 1, 6 * p + gap - 2 - r});
  return building_block_order(block, q.microbatches);
}

}  // namespace shardplan
