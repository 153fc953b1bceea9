#pragma once
// V-shaped schedules from a repeated building block (Controllable Memory, arXiv 2405.15362): each micro-batch runs the
// same block six slots after the one before it; warm-up and drain are then pulled forward where no peak grows.
#include <array>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

/// By rank: the slots of F of chunk 0, F of chunk 1, I of chunk 1, I of chunk 0 of the first micro-batch.
using BuildingBlock = std::vector<std::array<int, 4>>;

/// The order of all passes. Slots are equally long whatever the true times of the passes, as published.
Order building_block_order(const BuildingBlock& block, int microbatches);

}  // namespace shardplan
