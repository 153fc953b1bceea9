#pragma once
// What holds a step, how its ranks spread, and what would help: as text and as JSON.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "layouts/anchors.hpp"
#include "layouts/step/changes.hpp"

namespace shardplan {

std::string critical_path_text(const StepReport&);
nlohmann::ordered_json critical_path_json(const StepReport&);

/// With --all-ranks, --jitter or --straggler; empty without.
std::string replicas_text(const StepQuestion&, const StepReport&);
/// Adds "replicas", with jitter or stragglers "step_time_even_s" (the step without them), and with --all-ranks "ranks":
/// one entry a rank of the job.
void add_ranks_json(nlohmann::ordered_json& out, const StepQuestion&, const StepReport&);

struct Explanation {
  ChangeReport changes;
  NearestRun nearest;
};
Explanation explain_step(const StepQuestion&, const MemoryOptions&, const StepReport&, const MemoryReport&);
std::string explanation_text(const Explanation&);
nlohmann::ordered_json explanation_json(const Explanation&);

}  // namespace shardplan
