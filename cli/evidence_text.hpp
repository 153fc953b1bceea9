#pragma once
// On what a prediction stands, as two lines of text and as JSON.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "layouts/step/evidence.hpp"

namespace shardplan {

/// Lines that end in a newline each; "" at datasheet rates.
std::string evidence_text(const Evidence&);
/// {"runs":[{"scope","constant","runs"}],"kind","left_out_sd","left_out_measured","measured_stacks","wider_for"}.
nlohmann::ordered_json evidence_json(const Evidence&);

}  // namespace shardplan
