#pragma once
// Turns an Order into the nodes and edges that a Replayer sweeps.
#include "sim/order.hpp"
#include "sim/replay.hpp"

namespace shardplan {

/// Throws InputError("schedule", ...) as replay() does.
ReplayNodes compile_replay(const Order&, const ReplayOptions&);

}  // namespace shardplan
