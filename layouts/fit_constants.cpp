// Fits the step's constants on measured runs by coordinate search.
//
// Objective, for every scope (a stack or a GPU): mean over its fit rows of |ln(predicted / measured)|, each row
// weighing 1 / sqrt(rows of its family), plus kPrior |ln(value / start)| per constant: with few rows a constant stays
// where physics put it. Scopes alternate until a round gains less than kSmallestGain. Deterministic: no random starts.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.hpp"
#include "layouts/score_runs.hpp"

namespace shardplan {
namespace {

constexpr double kPrior = 0.004;
constexpr double kPseudoRows = 4;
constexpr double kSmallestGain = 2e-4;
// Large steps first: a launch time shows only once it exceeds the device's.
constexpr std::array<double, 6> kSteps = {6, 3.5, 1.6, 1.2, 1.06, 1.02};
constexpr double kPriorRows = 4;          // weight of the prior spread below, in rows
constexpr double kPriorSpread = 0.06;     // ln; between curated tables (2-3 %) and shared clusters (8-10 %)
constexpr double kPriorSpreadMoe = 0.20;  // ln; measured spread of MoE rows with an unknown recipe

struct Knob {
  std::string scope, name, unit;
  double value = 0, start = 0, least = 0, most = 0;
  std::vector<std::size_t> rows;
  const MachineConstantRow* machine = nullptr;
  const StackConstantRow* stack = nullptr;
};

class Fit {
 public:
  Fit(std::vector<RunQuestion>& runs, PricerShelf& shelf, bool all) : runs_(runs), shelf_(shelf) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const MeasuredRun& run = runs[i].run;
      if (run.skipped || !run.score || !run.step_time_s) continue;
      if (all || in_fit(run)) fit_rows_.push_back(i);
      ++in_family_[run.family];
    }
    collect_knobs();
  }

  std::string run(int rounds) {
    errors_.assign(runs_.size(), 0);
    std::vector<std::size_t> everything = fit_rows_;
    apply();
    evaluate(everything, errors_);
    double last = total(everything, errors_) + prior();
    for (int round = 0; round < rounds; ++round) {
      for (Knob& k : knobs_) improve(k);
      const double now = total(everything, errors_) + prior();
      if (last - now < kSmallestGain * last) break;
      last = now;
    }
    return document();
  }

 private:
  static std::string scope_of(const MachineConstantRow& row, const Cluster& c) {
    return row.scope == MachineScope::gpu ? c.gpu.name
                                          : (row.scope == MachineScope::family ? family_key(c.gpu) : fabric_key(c));
  }
  /// Whether a machine's constant has a say in a run at all.
  static bool touches(const MachineConstantRow& row, const RunQuestion& q) {
    const MeasuredRun& run = q.run;
    const DataType t = run.workload.precision;
    if (row.name == "bf16") return bytes_of(t) == 2;
    if (row.name == "fp8") return bytes_of(t) == 1 && t != DataType::fp8_row;
    if (row.name == "fp8_row") return t == DataType::fp8_row;
    if (row.name == "fp4") return t == DataType::nvfp4;
    if (row.name == "domain_factor") return run.layout.tp > 1 || run.layout.gpus() <= run.cluster.node.nvlink_domain;
    if (row.scope == MachineScope::fabric)
      return run.layout.gpus() > run.cluster.node.nvlink_domain && (row.name != "message_s" || run.layout.pp > 1);
    MachineConstants probe;
    row.member(probe) = -1;
    return probe.attention[static_cast<std::size_t>(q.stack.attention)] < 0;
  }

  void collect_knobs() {
    std::map<std::string, std::vector<std::size_t>> by_stack;
    for (const std::size_t i : fit_rows_) by_stack[runs_[i].stack.name].push_back(i);
    for (const MachineConstantRow& row : machine_constant_rows()) {
      std::map<std::string, std::vector<std::size_t>> by_scope;
      for (const std::size_t i : fit_rows_)
        if (touches(row, runs_[i])) by_scope[scope_of(row, runs_[i].run.cluster)].push_back(i);
      for (const auto& [scope, rows] : by_scope) {
        MachineConstants at = shelf_.of(runs_[rows.front()].run.cluster).constants();
        const double start = row.member(at) > 0 ? row.member(at) : 1e-3;
        Knob k{scope, row.name, row.unit, start, start, row.least, row.most, rows};
        k.machine = &row;
        knobs_.push_back(std::move(k));
      }
    }
    for (const auto& [name, rows] : by_stack) {
      for (const StackConstantRow& row : stack_constant_rows()) {
        Knob k{name,
               row.name,
               row.unit,
               runs_[rows.front()].stack.constants.*row.member,
               StackConstants{}.*row.member,
               row.least,
               row.most,
               rows};
        k.stack = &row;
        knobs_.push_back(std::move(k));
      }
    }
  }

  /// Writes the knobs' values into the rows' stacks and the machines.
  void apply() {
    for (const Knob& k : knobs_) apply(k);
  }
  void apply(const Knob& k) {
    for (const std::size_t i : k.rows) {
      RunQuestion& q = runs_[i];
      if (k.stack != nullptr) {
        q.stack.constants.*k.stack->member = k.value;
        continue;
      }
      Pricer& p = shelf_.of(q.run.cluster);
      MachineConstants c = p.constants();
      k.machine->member(c) = k.value;
      p.set_constants(c);
    }
  }

  void evaluate(const std::vector<std::size_t>& rows, std::vector<double>& errors) {
    for (const std::size_t i : rows) {
      try {
        errors[i] = std::log(simulate_step(question_of(runs_[i], shelf_.of(runs_[i].run.cluster), 0)).step_time_s /
                             *runs_[i].run.step_time_s);
      } catch (const InputError&) {
        errors[i] = 0;  // not modelled: validate says so; no constant depends on it
      }
    }
  }

  double total(const std::vector<std::size_t>& rows, const std::vector<double>& errors) const {
    double sum = 0;
    for (const std::size_t i : rows)
      sum += std::min(0.5, std::abs(errors[i])) / std::sqrt(static_cast<double>(in_family_.at(runs_[i].run.family)));
    return sum;
  }
  /// Most constants move freely. A stack's factor is degenerate with the rates of a GPU that it alone was measured on,
  /// and few rows say little: a quadratic prior of kPseudoRows rows holds it near 1 (its slope at 5 % is that of so
  /// many rows).
  static double prior_of(const Knob& k) {
    const double moved = std::abs(std::log(k.value / k.start));
    if (k.name == "compute_factor") {
      const auto n = static_cast<double>(std::max<std::size_t>(1, k.rows.size()));
      return 0.5 * kPseudoRows / 0.05 * moved * moved / std::sqrt(n);
    }
    return (k.name == "network_factor" || k.name == "domain_factor" ? 5 * kPrior : kPrior) * moved;
  }
  double prior() const {
    double sum = 0;
    for (const Knob& k : knobs_) sum += prior_of(k);
    return sum;
  }

  void improve(Knob& k) {
    double best = total(k.rows, errors_) + prior_of(k);
    for (const double step : kSteps) {
      for (const double factor : {step, 1 / step}) {
        for (int tries = 0; tries < 6; ++tries) {
          const double before = k.value;
          k.value = std::clamp(before * factor, k.least, k.most);
          if (k.value == before) break;
          std::vector<double> errors = errors_;
          apply(k);
          evaluate(k.rows, errors);
          const double now = total(k.rows, errors) + prior_of(k);
          if (now >= best - 1e-9) {
            k.value = before;
            apply(k);
            break;
          }
          best = now;
          errors_ = std::move(errors);
        }
      }
    }
  }

  std::vector<double> errors_of(const std::string& stack, bool experts) const {
    std::vector<double> errors;
    for (const std::size_t i : fit_rows_)
      if (runs_[i].stack.name == stack && runs_[i].run.model.has_moe() == experts)
        errors.push_back(std::abs(errors_[i]));
    return errors;
  }

  /// The 80 % quantile of the absolute errors as standard deviations, pulled towards a prior of kPriorRows rows.
  double spread_of(const std::string& stack, bool experts) const {
    const std::vector<double> errors = errors_of(stack, experts);
    const double z80 = 1.2816, before = experts ? kPriorSpreadMoe : kPriorSpread;
    const auto n = static_cast<double>(errors.size());
    const double found = errors.empty() ? before : quantile(errors, 0.8) / z80;
    return std::sqrt((n * found * found + kPriorRows * before * before) / (n + kPriorRows));
  }

  std::string document() const {
    nlohmann::ordered_json out;
    out["schema"] = "shardplan-step-constants/1";
    out["source"] = "fitted by `shardplan validate --rows runs.json --fit-constants` on measured training runs";
    nlohmann::ordered_json stacks = nlohmann::ordered_json::object(), machines = nlohmann::ordered_json::object();
    nlohmann::ordered_json counts;
    for (const Knob& k : knobs_) {
      // Four significant digits: more would claim what the fit does not know.
      const double digits = std::pow(10, 3 - std::floor(std::log10(k.value)));
      const double value = std::round(k.value * digits) / digits;
      (k.stack != nullptr ? stacks : machines)[k.scope][k.name] = value;
      if (k.machine != nullptr) counts[k.scope][k.name] = k.rows.size();
    }
    for (auto& [name, machine] : machines.items()) machine["rows"] = counts[name];
    for (auto& [name, stack] : stacks.items()) {
      stack["residual_sd"] = std::round(1e4 * spread_of(name, false)) / 1e4;
      if (!errors_of(name, true).empty()) stack["residual_sd_moe"] = std::round(1e4 * spread_of(name, true)) / 1e4;
      stack["rows"] = errors_of(name, false).size() + errors_of(name, true).size();
    }
    out["machines"] = std::move(machines);
    out["stacks"] = std::move(stacks);
    return out.dump(1) + "\n";
  }

  std::vector<RunQuestion>& runs_;
  PricerShelf& shelf_;
  std::vector<std::size_t> fit_rows_;
  std::map<std::string, int> in_family_;
  std::vector<Knob> knobs_;
  std::vector<double> errors_;
};

}  // namespace

std::string fit_constants(std::vector<RunQuestion>& runs, PricerShelf& shelf, bool all, int rounds) {
  return Fit(runs, shelf, all).run(rounds);
}

}  // namespace shardplan
