#pragma once
// How zb-auto makes orders of its own: list schedules under several rules, then a local search along the critical path.
#include <cstdint>
#include <vector>

#include "sim/zb_strings.hpp"

namespace shardplan {

/// Orders built by running them: a rank that is free starts an input gradient if one is there, else a forward if it
/// fits, else a weight gradient; rules differ in how long a rank waits for an input that is about to arrive.
std::vector<ZbStrings> list_scheduled(const ZbQuestion&);

/// Improves `strings` in place, never for the worse; stops at the lower bound. Returns the orders evaluated.
std::int64_t improve(const ZbQuestion&, ZbStrings& strings, double lower_bound);

}  // namespace shardplan
