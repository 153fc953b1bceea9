#pragma once
// The growth of a step with the experts' skew, as text and JSON: for `simulate` and `plan`.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "layouts/step/skew_curve.hpp"

namespace shardplan {

std::string skew_curve_text(const std::vector<SkewPoint>&);
nlohmann::ordered_json skew_curve_json(const std::vector<SkewPoint>&);

}  // namespace shardplan
