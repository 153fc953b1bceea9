#pragma once
// Options that `simulate`, `plan` and `validate` share: routing, effects, memory recipe.
#include <string>

#include "cli/load.hpp"
#include "layouts/memory.hpp"
#include "layouts/step/question.hpp"

namespace CLI {
class App;
}

namespace shardplan {

struct StepOptionTexts {
  std::string routing = "balanced", skew = "none", nodes_per_token, redundant = "0", capacity_factor = "0", seed = "1";
  std::string documents, without;
};

void add_step_options(CLI::App&, StepOptionTexts&);
/// The model and the batch decide how many experts a skew is drawn for.
StepOptions read_step_options(const StepOptionTexts&, const CommonOptions&, const Model&, const Workload&);
Fidelity read_fidelity(const CommonOptions&);
/// All effects by name, for help texts.
std::string effects_text();
/// "launch-floor,bubble" -> bit set; unknown names are errors with "did you mean".
std::uint32_t parse_effects(const std::string& text, const std::string& where);
MemoryOptions read_memory_options(const CommonOptions&, const Stack&);

}  // namespace shardplan
