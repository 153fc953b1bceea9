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
  bool skew_curve = false;  // simulate and plan; also where a skew is asked for
};

/// --routing --skew --nodes-per-token --redundant --capacity-factor --seed: how tokens reach experts.
void add_routing_options(CLI::App&, StepOptionTexts&);
/// The routing options and --without.
void add_step_options(CLI::App&, StepOptionTexts&);
/// --skew-curve, for verbs that answer with one layout's step.
void add_skew_curve_option(CLI::App&, StepOptionTexts&);
/// InputError where they are asked of a model without experts.
RoutingQuestion read_routing(const StepOptionTexts&, const Model&, const Workload&);
/// "balanced routing, a token in 4 of 8 groups"; "" without experts.
std::string routing_text(const RoutingQuestion&, const Model&);
/// The model and the batch decide how many experts a skew is drawn for.
StepOptions read_step_options(const StepOptionTexts&, const CommonOptions&, const Model&, const Workload&);
Fidelity read_fidelity(const CommonOptions&);
/// All effects by name, for help texts.
std::string effects_text();
/// "launch-floor,bubble" -> bit set; unknown names are errors with "did you mean".
std::uint32_t parse_effects(const std::string& text, const std::string& where);
MemoryOptions read_memory_options(const CommonOptions&, const Stack&);
std::uint64_t read_seed(const StepOptionTexts&);
/// Whether the growth with skew is printed: asked for, or a skew was.
bool wants_skew_curve(const StepOptionTexts&);
/// What the routing adds to the busiest rank's memory under this layout.
void set_routing(MemoryOptions&, const RoutingQuestion&, const Model&, const Layout&, const Cluster&);

}  // namespace shardplan
