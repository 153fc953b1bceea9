#pragma once
// What the best plan's way to its experts is worth: the other ways, as text and as JSON.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "layouts/search/expert_ways.hpp"

namespace shardplan {

/// A block of lines, or "" where there is no other way.
std::string ways_text(const WaysAnswer&, const RankedPlan& best);
/// [{"transport","ep_overlap","layout","step_time_s","against_best":{...}} or with "refused" in place of the times].
nlohmann::ordered_json ways_json(const WaysAnswer&, const RankedPlan& best);

}  // namespace shardplan
