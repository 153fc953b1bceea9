#pragma once
// A step's answer as JSON and as text: the same for `simulate` and for every plan of `plan`.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "layouts/memory.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

/// Adds the members that cli.md promises for `simulate` to `out`.
void add_step_json(nlohmann::ordered_json& out, const StepQuestion&, const StepReport&, const MemoryReport&);
/// Adds "memory": per-rank terms at the peak, peak, capacity.
void add_memory_json(nlohmann::ordered_json& out, const MemoryReport&);
/// "tp 1.46 s, dp 75 ms; compute and what is not an axis' 6.4 s": exposed time by axis, and the rest of the step.
std::string exposed_text(const StepReport&);
/// Where the step's seconds go, one line an item, largest first.
std::string step_breakdown_text(const StepReport&);
/// Seconds of `other` less those of `best`, item by item; they sum to the difference of the step times.
std::vector<std::pair<std::string, double>> step_differences(const StepReport& best, const StepReport& other);
/// "+41.5 ms: bubble +155, gemm -80, tp -20, rest -13.5": the printed parts sum to the printed difference.
std::string differences_text(const StepReport& best, const StepReport& other);
/// "412 TFLOP/s per GPU, MFU 41.7 %".
std::string step_rate_text(const StepQuestion&, const StepReport&);

double tokens_per_second_per_gpu(const StepQuestion&, const StepReport&);
double mfu(const StepQuestion&, const StepReport&, double flops);

}  // namespace shardplan
