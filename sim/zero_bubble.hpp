#pragma once
// The handcrafted zero-bubble order that ZB-H1 and ZB-H2 share.
#include "sim/schedules.hpp"

namespace shardplan {

/// On each rank: `warm_up` forwards; then for each micro-batch k its input gradient, the weight gradient of k - `lag`
/// (none while k < lag), and the next forward; at last the weight gradients that are left.
void zero_bubble_rank(Order& order, int rank, int warm_up, int lag);

}  // namespace shardplan
