#include "cli/step_options.hpp"

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/pieces.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {

void add_routing_options(CLI::App& verb, StepOptionTexts& o) {
  verb.add_option(
          "--routing", o.routing,
          "balanced; real (a weakly balanced router's skew, fitted on a published pair of runs); or the hottest rank's "
          "load over the mean (1.3)")
      ->default_str(o.routing);
  verb.add_option("--skew", o.skew, "popularity of experts: none | zipf:S | dirichlet:A | power-law:A | file:PATH")
      ->default_str(o.skew);
  verb.add_option("--nodes-per-token", o.nodes_per_token,
                  "a token's experts lie on at most so many nodes; unlimited; or model: the group limit of its own "
                  "router (DeepSeek)")
      ->default_str("the model's own limit, if it has one");
  verb.add_option("--redundant", o.redundant, "further copies of hot experts")->default_str(o.redundant);
  verb.add_option("--capacity-factor", o.capacity_factor, "0 = dropless")->default_str(o.capacity_factor);
  verb.add_option("--seed", o.seed, "of the skew")->default_str(o.seed);
}

void add_step_options(CLI::App& verb, StepOptionTexts& o) {
  add_routing_options(verb, o);
  verb.add_option(
      "--documents", o.documents,
      "mean tokens of packed documents that do not attend to each other (2k), lengths exponential; default: "
      "one document a sequence");
  verb.add_option("--without", o.without, "switch effects off by name, separated by commas: " + effects_text());
}

void add_skew_curve_option(CLI::App& verb, StepOptionTexts& o) {
  verb.add_flag("--skew-curve", o.skew_curve,
                "also how time and memory grow with the experts' skew (printed anyway where --skew is given)");
}

Fidelity read_fidelity(const CommonOptions& o) {
  if (o.network == "table") return Fidelity::table;
  if (o.network == "bound") return Fidelity::bound;
  if (o.network == "flows") return Fidelity::flows;
  throw InputError("--network", "expected table, bound or flows, got \"" + o.network.substr(0, 60) + "\"");
}

std::string effects_text() {
  std::string out;
  for (const std::string_view name : kEffectNames) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

std::uint32_t parse_effects(const std::string& text, const std::string& where) {
  const std::vector<std::string> names(kEffectNames.begin(), kEffectNames.end());
  std::uint32_t out = 0;
  if (text.empty()) return out;
  for (const std::string_view piece : pieces_of(text, ',')) {
    const std::string word(piece);
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end())
      throw InputError(where, "unknown effect \"" + word.substr(0, 60) + "\"" + did_you_mean_or_list(word, names));
    out |= std::uint32_t{1} << (found - names.begin());
  }
  return out;
}

namespace {

/// The last MoE layer stands for all: routing is asked once a model.
const Moe* moe_of(const Model& model) {
  for (auto layer = model.layers.rbegin(); layer != model.layers.rend(); ++layer)
    if (layer->moe) return &*layer->moe;
  return nullptr;
}

}  // namespace

std::string routing_text(const RoutingQuestion& r, const Model& model) {
  const Moe* moe = moe_of(model);
  if (moe == nullptr) return "";
  std::string out = r.real                    ? "real routing"
                    : r.popularity != nullptr ? "skewed routing"
                    : r.max_over_mean > 1     ? text_of_number(r.max_over_mean, 3) + "x routing"
                                              : "balanced routing";
  if (r.nodes_per_token > 0)
    out += ", a token on " + std::to_string(r.nodes_per_token) + " nodes at most";
  else if (r.model_groups && moe->groups > 1)
    out += ", a token in " + std::to_string(moe->groups_per_token) + " of " + std::to_string(moe->groups) + " groups";
  return out;
}

RoutingQuestion read_routing(const StepOptionTexts& o, const Model& model, const Workload& workload) {
  RoutingQuestion out;
  if (o.routing != "balanced" && o.routing != "real") {
    out.max_over_mean = parse_number(o.routing, "--routing");
    if (out.max_over_mean < 1)
      throw InputError("--routing", "the hottest rank cannot lie below the mean: expected 1 or more");
    if (out.max_over_mean > 1e4)
      throw InputError("--routing", "out of range: " + o.routing.substr(0, 60) + " is above 10000");
  }
  out.real = o.routing == "real";
  const auto whole = [](const std::string& text, const char* where, std::int64_t most) {
    const std::int64_t n = parse_count(text, where);
    if (n > most) throw InputError(where, "out of range: " + std::to_string(n) + " is above " + std::to_string(most));
    return static_cast<int>(n);
  };
  const bool own = o.nodes_per_token == "model";
  out.model_groups = own || o.nodes_per_token.empty();
  if (o.nodes_per_token != "unlimited" && !out.model_groups) {
    out.nodes_per_token = whole(o.nodes_per_token, "--nodes-per-token", 65536);
    if (out.nodes_per_token == 0)
      throw InputError("--nodes-per-token", "a token's experts lie on at least one node; unlimited for no limit");
  }
  out.redundant = whole(o.redundant, "--redundant", 65536);
  out.capacity_factor = parse_number(o.capacity_factor, "--capacity-factor");
  const Skew skew = parse_skew(o.skew, "--skew");
  const bool asked = skew.kind != SkewKind::none || out.redundant > 0 || out.capacity_factor > 0 ||
                     out.nodes_per_token > 0 || own || out.max_over_mean > 1 || out.real;
  const Moe* moe = moe_of(model);
  if (asked && moe == nullptr)
    throw InputError("--model", model.name + " has no experts: routing options do not apply");
  if (own && moe->groups <= 1)
    throw InputError("--nodes-per-token", model.name + "'s router has no groups: give a number of nodes, or unlimited");
  if (out.real && moe->selection_bias)
    print_warning(model.name +
                  " balances its experts by a selection bias; real routing is fitted on a router that an " +
                  "auxiliary loss balances weakly: its loads here are an upper bound");
  if (skew.kind != SkewKind::none) {
    if (const std::string note = counts_note(skew, moe->experts, moe->top_k); !note.empty()) print_warning(note);
    out.popularity = std::make_shared<const ExpertPopularity>(
        make_popularity(skew, moe->experts, moe->top_k, workload.seq_len, read_seed(o)));
  }
  return out;
}

StepOptions read_step_options(const StepOptionTexts& o, const CommonOptions& common, const Model& model,
                              const Workload& workload) {
  StepOptions out;
  out.rates = read_rates(common);
  out.network = read_fidelity(common);
  out.without = parse_effects(o.without, "--without");
  out.routing = read_routing(o, model, workload);
  if (!o.documents.empty()) {
    const std::int64_t mean = parse_binary_count(o.documents, "--documents");
    if (mean < 1) throw InputError("--documents", "a document has at least one token");
    out.mean_document = static_cast<double>(mean);
  }
  return out;
}

MemoryOptions read_memory_options(const CommonOptions& o, const Stack& stack) {
  MemoryOptions out;
  out.recipe = o.recipe;
  out.rates = read_rates(o);
  out.traits = memory_traits(stack.built_in);
  return out;
}

std::uint64_t read_seed(const StepOptionTexts& o) { return static_cast<std::uint64_t>(parse_count(o.seed, "--seed")); }

bool wants_skew_curve(const StepOptionTexts& o) { return o.skew_curve || o.skew != "none"; }

void set_routing(MemoryOptions& options, const RoutingQuestion& routing, const Model& model, const Layout& layout,
                 const Cluster& cluster) {
  options.load = routed_load(routing, model, layout, cluster);
  options.redundant = routing.redundant;
}

}  // namespace shardplan
