// shardplan plan: the best layouts for a model on N GPUs, and why the others lose.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/evidence_text.hpp"
#include "cli/framework.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "cli/plan_ways.hpp"
#include "cli/skew_text.hpp"
#include "cli/step_options.hpp"
#include "cli/step_text.hpp"
#include "cli/verbs.hpp"
#include "layouts/search/search.hpp"
#include "layouts/step/unpriced.hpp"

namespace shardplan {
namespace {

using nlohmann::ordered_json;

struct Options {
  CommonOptions common;
  StepOptionTexts step;
  std::string objective = "step-time", top = "10", fix, train_tokens, framework, headroom;
  bool any = false, exhaustive = false;
};

Objective read_objective(const std::string& text) {
  if (text == "step-time") return Objective::step_time;
  if (text == "memory") return Objective::memory;
  if (text == "cost") return Objective::cost;
  throw InputError("--objective", "expected step-time, memory or cost, got \"" + text.substr(0, 60) + "\"");
}

constexpr double kMemoryError = 0.042;  // mean over measured runs: layouts/step/README.md, Accuracy
constexpr double kSafeShare = 0.05;     // of the memory left free: what a careful user asks for

double free_share(const MemoryReport& m) { return 1 - m.peak_bytes() / m.capacity_bytes; }

struct Training {
  double days = 0, usd = 0;
  bool asked = false, priced = false;
};

Training training_of(const Options& o, const StepReport& s, const Cluster& cluster, std::int64_t gpus) {
  Training t;
  if (o.train_tokens.empty()) return t;
  t.asked = true;
  const double steps = parse_decimal_count(o.train_tokens, "--train-tokens") / s.tokens;
  t.days = steps * s.step_time_s / 86400;
  t.priced = cluster.gpu.usd_per_hour.value > 0;
  t.usd = t.days * 24 * cluster.gpu.usd_per_hour.value * static_cast<double>(gpus);
  return t;
}

/// "5 %", "5%", "0.05" or bytes ("4 GiB"), as a share of the GPU's memory.
double read_headroom(const std::string& text, const Cluster& cluster, Rates rates) {
  if (text.empty()) return 0;
  double share = 0;
  if (text.back() == '%')
    share = parse_number(text.substr(0, text.find_last_not_of(" %") + 1), "--headroom") / 100;
  else
    share = parse_bytes(text, "--headroom") / cluster.gpu.capacity_bytes(rates == Rates::datasheet);
  if (share < 0 || share >= 1)
    throw InputError("--headroom", "expected a share of the GPU's memory below 100 % or bytes (5%, 4 GiB), got \"" +
                                       text.substr(0, 60) + "\"");
  return share;
}

void draw_progress(std::int64_t done, std::int64_t all) {
  static std::int64_t last = -1;
  const std::int64_t percent = all > 0 ? 100 * done / all : 100;
  if (percent == last) return;
  last = percent;
  std::fprintf(stderr, "\rsearching %lld %%", static_cast<long long>(percent));
  std::fflush(stderr);
}

/// What the stack's own framework refuses of a layout that arithmetic allows, or "".
std::string refusal(const PlanQuestion& q, const Layout& layout) {
  const auto own = refusals_of_stack(framework_notes(layout, *q.model, q.workload), q.stack, layout);
  return own.empty() ? "" : own.front().framework + " " + own.front().note;
}

ordered_json json_of(const Options& o, const PlanQuestion& q, const PlanAnswer& a, const WaysAnswer& ways) {
  ordered_json out;
  out["model"] = q.model->name;
  out["cluster"] = q.pricer->cluster().name;
  out["gpus"] = q.space.gpus;
  out["seq_len"] = q.workload.seq_len;
  out["global_batch"] = q.workload.global_batch;
  out["precision"] = o.common.precision;
  out["stack"] = q.stack.name;
  if (!q.stack.release.empty()) out["release"] = q.stack.release;
  out["recipe"] = recipe_of(q.memory, q.workload).name;
  out["rates"] = o.common.rates;
  out["network"] = o.common.network;
  if (const std::string routing = routing_text(q.options.routing, *q.model); !routing.empty()) out["routing"] = routing;
  out["objective"] = o.objective;
  out["considered"] = a.considered;
  out["refused"] = a.refused;
  out["infeasible"] = a.infeasible;
  out["pruned"] = a.pruned;
  out["replayed"] = a.replayed;
  if (a.shortfall) {
    out["shortfall"] = {{"rank", a.shortfall->rank},
                        {"term", a.shortfall->term},
                        {"bytes", a.shortfall->bytes},
                        {"layout", layout_text(a.shortfall->layout)}};
  } else {
    out["shortfall"] = nullptr;
  }
  out["plans"] = ordered_json::array();
  for (const RankedPlan& p : a.plans) {
    StepQuestion s{q.model, q.pricer, p.layout, q.workload, q.stack, q.options};
    ordered_json plan;
    plan["layout"] = layout_text(p.layout);
    add_step_json(plan, s, p.step, p.memory);
    add_memory_json(plan, p.memory);
    plan["stages"] = stage_layout_of(split_stages(p.layout, *q.model));
    plan["against_best"] = {{"step_time_s", p.step.step_time_s - a.plans.front().step.step_time_s},
                            {"items_s", ordered_json::object()}};
    for (const auto& [name, seconds] : step_differences(a.plans.front().step, p.step))
      plan["against_best"]["items_s"][name] = seconds;
    plan["not_priced"] = unpriced_words(s);
    plan["frameworks"] = ordered_json::object();
    for (const FrameworkNote& note : framework_notes(p.layout, *q.model, q.workload))
      plan["frameworks"][note.framework] = note.note;
    const Training t = training_of(o, p.step, q.pricer->cluster(), q.space.gpus);
    plan["train_days"] = t.asked ? ordered_json(t.days) : ordered_json(nullptr);
    plan["cost_usd"] = t.asked && t.priced ? ordered_json(t.usd) : ordered_json(nullptr);
    out["plans"].push_back(std::move(plan));
  }
  if (!a.plans.empty()) {
    const RankedPlan& best = a.plans.front();
    out["other_ways"] = ways_json(ways, best);
    out["evidence"] =
        evidence_json(evidence_of({q.model, q.pricer, best.layout, q.workload, q.stack, q.options}, best.step));
  }
  out["rejected"] = ordered_json::object();
  for (const auto& [reason, count] : a.rejected) out["rejected"][reason] = count;
  return out;
}

/// Another plan against the best one, in what was asked for; the best one's line says nothing.
std::string against_best(const Options& o, const RankedPlan& best, const RankedPlan& p) {
  if (&best == &p) return "";
  if (read_objective(o.objective) == Objective::memory)
    return "+" + text_of_bytes(p.memory.peak_bytes() - best.memory.peak_bytes());
  const double slower = p.step.step_time_s / best.step.step_time_s - 1;
  if (slower < 5e-5) return "equal";
  const std::string why = differences_text(best.step, p.step);
  return "+" + text_of_percent(slower) + (why.empty() ? "" : ", " + why);
}

void print_question(const Options& o, const PlanQuestion& q) {
  std::printf("%s on %lld x %s, sequence %s, global batch %s (%s tokens), %s\n", q.model->name.c_str(),
              static_cast<long long>(q.space.gpus), q.pricer->cluster().name.c_str(),
              text_of_count(q.workload.seq_len).c_str(), text_of_count(q.workload.global_batch).c_str(),
              text_of_count(q.workload.global_batch * q.workload.seq_len).c_str(), o.common.precision.c_str());
  const std::string routing = routing_text(q.options.routing, *q.model);
  std::printf("stack %s, recipe %s, rates %s, network %s, objective %s%s\n\n", q.stack.shown().c_str(),
              recipe_of(q.memory, q.workload).name.c_str(), o.common.rates.c_str(), o.common.network.c_str(),
              o.objective.c_str(), (routing.empty() ? "" : ", " + routing).c_str());
}

void print_plans(const Options& o, const PlanQuestion& q, const PlanAnswer& a) {
  std::vector<std::string> layouts, refusals;
  std::size_t width = 30;
  for (const RankedPlan& p : a.plans) {
    const std::string why = refusal(q, p.layout);
    if (!why.empty() && std::find(refusals.begin(), refusals.end(), why) == refusals.end()) refusals.push_back(why);
    layouts.push_back(layout_text(p.layout) + (why.empty() ? "" : " *"));
    width = std::max(width, layouts.back().size());
  }
  const int column = static_cast<int>(width);
  std::printf("%3s  %-*s %9s %19s %6s %9s %8s  %s\n", "", column, "layout", "step", "80 % interval", "MFU", "memory",
              "bubble", "against the best");
  for (std::size_t i = 0; i < a.plans.size(); ++i) {
    const RankedPlan& p = a.plans[i];
    const StepQuestion s{q.model, q.pricer, p.layout, q.workload, q.stack, q.options};
    const std::string interval = text_of_seconds(p.step.low_s) + " - " + text_of_seconds(p.step.high_s);
    const std::string against = against_best(o, a.plans.front(), p);
    std::printf("%3zu  %-*s %9s %19s %6s %9s %8s%s\n", i + 1, column, layouts[i].c_str(),
                text_of_seconds(p.step.step_time_s).c_str(), interval.c_str(),
                text_of_percent(mfu(s, p.step, p.step.model_flops)).c_str(),
                text_of_bytes(p.memory.peak_bytes()).c_str(), text_of_percent(p.step.over_total).c_str(),
                against.empty() ? "" : ("  " + against).c_str());
  }
  const MemoryReport& best = a.plans.front().memory;
  std::printf("memory: fullest rank, with the context; limit %s. bubble: over total\n",
              text_of_bytes(best.capacity_bytes).c_str());
  if (free_share(best) < kMemoryError) {
    std::printf("the best leaves %s of the memory free; predictions of measured runs are off by 4 %% in the mean: ",
                text_of_percent(free_share(best)).c_str());
    const auto safe = std::find_if(a.plans.begin(), a.plans.end(),
                                   [](const RankedPlan& p) { return free_share(p.memory) >= kSafeShare; });
    if (safe != a.plans.end())
      std::printf("plan %d leaves %s; ", static_cast<int>(safe - a.plans.begin()) + 1,
                  text_of_percent(free_share(safe->memory)).c_str());
    std::printf("--headroom 5%% searches such plans\n");
  }
  for (const std::string& why : refusals) std::printf("* %s\n", why.c_str());
  if (refusal(q, a.plans.front().layout).empty()) return;
  const auto runs =
      std::find_if(a.plans.begin(), a.plans.end(), [&](const RankedPlan& p) { return refusal(q, p.layout).empty(); });
  if (runs != a.plans.end()) {
    std::printf("  the best that it takes as it is: %s (%s)\n", layout_text(runs->layout).c_str(),
                text_of_seconds(runs->step.step_time_s).c_str());
  } else {
    std::printf("  it takes none of these as it is: --for %s searches those that it takes\n",
                q.stack.framework.c_str());
  }
}

/// Megatron's notation of the stages where they are not equal, which its default split does not give; else "".
std::string stages_text(const PlanQuestion& q, const Layout& layout) {
  const std::vector<StageSlice> slices = split_stages(layout, *q.model);
  const auto uneven = [&](const StageSlice& s) {
    return s.layers != slices.front().layers || s.mtp_layers != slices.front().mtp_layers;
  };
  if (std::none_of(slices.begin(), slices.end(), uneven)) return "";
  return "stages, first to last (E embedding, t layer, m MTP layer, L head and loss): " + stage_layout_of(slices) +
         "\n";
}

void print_best(const Options& o, const PlanQuestion& q, const RankedPlan& best) {
  const StepQuestion s{q.model, q.pricer, best.layout, q.workload, q.stack, q.options};
  std::printf("\nwhere the best plan's step goes (pipeline rank %d, the busiest)\n%s", best.step.busiest_rank,
              step_breakdown_text(best.step).c_str());
  std::printf("%s tokens/s per GPU; %s\n", text_of_number(tokens_per_second_per_gpu(s, best.step), 4).c_str(),
              step_rate_text(s, best.step).c_str());
  std::printf("%s%s", stages_text(q, best.layout).c_str(), evidence_text(evidence_of(s, best.step)).c_str());
  const Training t = training_of(o, best.step, q.pricer->cluster(), q.space.gpus);
  if (!t.asked) return;
  std::printf("%s tokens take %s days", o.train_tokens.c_str(), text_of_number(t.days, 3).c_str());
  if (t.priced)
    std::printf(", $%s at $%s a GPU hour (assumed price)", text_of_count(static_cast<std::int64_t>(t.usd)).c_str(),
                text_of_number(q.pricer->cluster().gpu.usd_per_hour.value, 3).c_str());
  std::printf(" of steps alone: no failures, checkpoints or evaluations\n");
}

void print_counts(const PlanAnswer& a) {
  std::printf(
      "\nconsidered %lld layouts: %lld illegal, %lld do not fit, %lld cannot beat those above (lower bound), %lld "
      "replayed\n",
      static_cast<long long>(a.considered), static_cast<long long>(a.refused), static_cast<long long>(a.infeasible),
      static_cast<long long>(a.pruned), static_cast<long long>(a.replayed));
  std::vector<std::pair<std::string, std::int64_t>> reasons(a.rejected.begin(), a.rejected.end());
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  for (std::size_t i = 0; i < reasons.size() && i < 8; ++i)
    std::printf("  %8lld  %s\n", static_cast<long long>(reasons[i].second), reasons[i].first.c_str());
}

/// The same question on twice, four times ... as many GPUs, until something fits or nothing is legal: what it takes.
std::string enough_gpus_text(const PlanQuestion& asked) {
  constexpr std::int64_t kMost = 4096;
  PlanQuestion q = asked;
  q.objective = Objective::memory;
  q.top = 1;
  q.exhaustive = false;
  q.progress = {};
  while (2 * q.space.gpus <= std::min(kMost, 64 * asked.space.gpus)) {
    q.space.gpus *= 2;
    const PlanAnswer a = search_plans(q);
    if (a.plans.empty()) continue;
    return "it fits on " + text_of_count(q.space.gpus) + " GPUs: " + layout_text(a.plans.front().layout) + ", " +
           text_of_bytes(a.plans.front().memory.peak_bytes()) + " on the fullest rank\n";
  }
  return "";
}

void print_text(const Options& o, const PlanQuestion& q, const PlanAnswer& a, const WaysAnswer& ways) {
  print_question(o, q);
  if (!a.plans.empty()) {
    print_plans(o, q, a);
    print_best(o, q, a.plans.front());
    std::printf("%s", ways_text(ways, a.plans.front()).c_str());
  } else {
    std::printf("nothing fits\n");
    if (a.shortfall) {
      std::printf("smallest shortfall: %s over on pipeline rank %d, whose largest term is %s, with layout %s\n",
                  text_of_bytes(a.shortfall->bytes).c_str(), a.shortfall->rank, a.shortfall->term.c_str(),
                  layout_text(a.shortfall->layout).c_str());
      std::printf("%s", enough_gpus_text(q).c_str());
    }
  }
  print_counts(a);
}

/// Not one legal layout: the question itself is at fault.
[[noreturn]] void refuse_question(const Options& o, const PlanQuestion& q, const PlanAnswer& a) {
  const auto most = std::max_element(a.rejected.begin(), a.rejected.end(),
                                     [](const auto& x, const auto& y) { return x.second < y.second; });
  const std::string reason = most == a.rejected.end() ? "the words do not divide --gpus " + o.common.gpus : most->first;
  const std::string batch = most != a.rejected.end() && most->first.rfind("global batch", 0) == 0 && o.fix.empty()
                                ? "; a multiple of " + std::to_string(q.space.gpus) + " sequences divides over all GPUs"
                                : "";
  throw InputError(o.fix.empty() ? "--gpus" : "--fix", "no layout is legal: " + reason + batch);
}

void run(const Options& o) {
  const Model model = read_model(o.common);
  const Cluster cluster = load_cluster(o.common.cluster);
  PlanQuestion q;
  q.workload = read_workload(o.common);
  warn_of_precision(cluster, q.workload);
  const Pricer pricer(cluster, read_rates(o.common), read_fidelity(o.common));
  q.model = &model;
  q.pricer = &pricer;
  q.space = parse_fixed(o.fix, read_gpus(o.common), "--fix");
  constexpr std::int64_t kMostGpus = 131072;
  if (q.space.gpus > kMostGpus)
    throw InputError("--gpus", "plan searches up to " + std::to_string(kMostGpus) + " GPUs, got " + o.common.gpus +
                                   " (simulate takes more)");
  q.space.any = o.any;
  check_framework_name(o.framework);
  q.space.framework = o.framework;
  q.stack = read_stack(o.common);
  q.options = read_step_options(o.step, o.common, model, q.workload);
  q.memory = read_memory_options(o.common, q.stack);
  q.objective = read_objective(o.objective);
  q.top = static_cast<int>(std::min<std::int64_t>(parse_count(o.top, "--top"), 100000));
  q.exhaustive = o.exhaustive;
  q.headroom = read_headroom(o.headroom, cluster, q.options.rates);
  if (!o.train_tokens.empty()) parse_decimal_count(o.train_tokens, "--train-tokens");
  const bool drawn = isatty(2) != 0;
  if (drawn) q.progress = draw_progress;
  const PlanAnswer a = search_plans(q);
  if (drawn) std::fprintf(stderr, "\r                    \r");
  if (a.plans.empty() && !a.shortfall) refuse_question(o, q, a);
  if (!a.plans.empty()) {
    const StepQuestion best{q.model, q.pricer, a.plans.front().layout, q.workload, q.stack, q.options};
    for (const std::string& what : unpriced_words(best)) print_warning(what);
  }
  const WaysAnswer ways = a.plans.empty() ? WaysAnswer{} : other_ways(q, a.plans.front());
  std::vector<SkewPoint> curve;  // of the best plan
  if (wants_skew_curve(o.step) && !a.plans.empty())
    curve = skew_curve({&model, &pricer, a.plans.front().layout, q.workload, q.stack, q.options}, q.memory,
                       read_seed(o.step));
  if (o.common.json()) {
    ordered_json out = json_of(o, q, a, ways);
    if (!curve.empty()) out["skew_curve"] = skew_curve_json(curve);
    print_json(out);
  } else {
    print_text(o, q, a, ways);
    if (!curve.empty()) std::printf("%s", skew_curve_text(curve).c_str());
  }
  if (a.plans.empty()) throw ExitCode{1};
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("plan", "The best layouts for a model on N GPUs, and why the others lose");
  add_question_options(*verb, options->common);
  add_step_options(*verb, options->step);
  add_framework_option(*verb, options->framework);
  add_skew_curve_option(*verb, options->step);
  verb->add_flag("--any", options->any, "search everything that is modelled, not only what the stack can run");
  verb->add_option("--objective", options->objective, "step-time|memory|cost")->default_str(options->objective);
  verb->add_option("--top", options->top, "plans to print")->default_str(options->top);
  verb->add_option("--fix", options->fix, "words of a layout that must hold, \"tp8 pp4\"");
  verb->add_option("--headroom", options->headroom,
                   "memory that every plan must leave free on the fullest rank: 5% or 4 GiB");
  verb->add_option("--train-tokens", options->train_tokens, "tokens of the whole training (15T): days and cost");
  verb->add_flag("--exhaustive", options->exhaustive, "replay every layout that fits");
  verb->footer(
      "Example:\n  shardplan plan --model llama-3.1-70b --cluster h100-sxm --gpus 512 --seq-len 8k --global-batch 512");
  verb->callback([options] { run(*options); });
}

}  // namespace shardplan
