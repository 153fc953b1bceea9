#include "cli/step_options.hpp"

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"

namespace shardplan {

void add_step_options(CLI::App& verb, StepOptionTexts& o) {
  verb.add_option("--routing", o.routing, "balanced, or how far the hottest rank lies above the mean (1.3)")
      ->default_str(o.routing);
  verb.add_option("--without", o.without,
                  "switch effects off by name, separated by commas: " + std::string(kEffectNames[0]) + ", " +
                      std::string(kEffectNames[1]) + ", ...");
}

Fidelity read_fidelity(const CommonOptions& o) {
  if (o.network == "table") return Fidelity::table;
  if (o.network == "bound") return Fidelity::bound;
  if (o.network == "flows") return Fidelity::flows;
  throw InputError("--network", "expected table, bound or flows, got \"" + o.network.substr(0, 60) + "\"");
}

std::uint32_t parse_effects(const std::string& text, const std::string& where) {
  const std::vector<std::string> names(kEffectNames.begin(), kEffectNames.end());
  std::uint32_t out = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end())
      throw InputError(where, "unknown effect \"" + word.substr(0, 60) + "\"" + did_you_mean(word, names));
    out |= std::uint32_t{1} << (found - names.begin());
    at = comma + 1;
  }
  return out;
}

StepOptions read_step_options(const StepOptionTexts& o, const CommonOptions& common) {
  StepOptions out;
  out.rates = read_rates(common);
  out.network = read_fidelity(common);
  out.without = parse_effects(o.without, "--without");
  if (o.routing != "balanced") {
    out.routing.max_over_mean = parse_number(o.routing, "--routing");
    if (out.routing.max_over_mean < 1)
      throw InputError("--routing", "the hottest rank cannot lie below the mean: expected 1 or more");
  }
  return out;
}

MemoryOptions read_memory_options(const CommonOptions& o, const Stack& stack) {
  MemoryOptions out;
  out.recipe = o.recipe;
  out.rates = read_rates(o);
  out.traits = memory_traits(stack.name);
  return out;
}

}  // namespace shardplan
