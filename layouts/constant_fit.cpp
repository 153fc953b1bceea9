// Fits the step's constants on measured runs by coordinate search.
//
// Objective: sum over the rows of the fit of |ln(predicted / measured)|, rounded below kSmall and capped at 0.5, each
// weighing 1 / sqrt(rows of its family), plus kPrior x ln(1 + z^2 / 2) per constant with z = ln(value / start) /
// spread: start is the neutral value (constants of a machine or a stack that nothing was fitted on), spread what is
// known of such constants before a measurement. With few rows a constant stays where physics put it; the logarithm lets
// one cluster be far off. Deterministic: no random starts, and the values that ship have no say in a new fit.
#include "layouts/constant_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"

namespace shardplan {
namespace {

// Of 0.01, 0.02, 0.03 and 0.1 in four-fold cross-validation 0.02 and 0.03 are best, and alike.
constexpr double kPrior = 0.02;
constexpr double kSmall = 0.02;  // errors below it count by their square: a kink at 0 would stop a coordinate search
constexpr double kSmallestGain = 2e-4;
// Large steps first: a launch time shows only once it exceeds the device's.
constexpr std::array<double, 6> kSteps = {6, 3.5, 1.6, 1.2, 1.06, 1.02};
constexpr int kRestartRounds = 2;
constexpr std::array<double, 3> kRestarts = {15e-6, 40e-6, 80e-6};  // s a launch

std::string scope_of(const MachineConstantRow& row, const Cluster& c) {
  switch (row.scope) {
    case MachineScope::gpu:
    case MachineScope::host:
      return c.gpu.name;
    case MachineScope::family:
      return family_key(c.gpu);
    case MachineScope::fabric:
      return fabric_key(c);
  }
  return "";
}

/// Whether a machine's constant has a say in a run at all.
bool touches(const MachineConstantRow& row, const RunQuestion& q) {
  const MeasuredRun& run = q.run;
  const DataType t = run.workload.precision;
  if (row.name == "bf16") return true;  // whatever the products, attention and the output head have 16 bits
  // Dense layers seldom wait for their host, and where one GPU's runs alone do, its hosts are those of the host code.
  if (row.name == "host_factor") return run.model.has_moe();
  if (row.name == "fp8") return bytes_of(t) == 1 && t != DataType::fp8_row;
  if (row.name == "fp8_row") return t == DataType::fp8_row;
  if (row.name == "fp4") return t == DataType::nvfp4;
  if (row.name == "domain_factor") return run.layout.tp > 1 || run.layout.gpus() <= run.cluster.node.nvlink_domain;
  if (row.name == "strided_nics" && (run.layout.tp == 1 || run.layout.tp >= run.cluster.node.nvlink_domain))
    return false;
  if (row.scope == MachineScope::fabric)
    return run.layout.gpus() > run.cluster.node.nvlink_domain && (row.name != "message_s" || run.layout.pp > 1);
  MachineConstants probe;
  row.member(probe) = -1;
  return probe.attention[static_cast<std::size_t>(q.stack.attention)] < 0;
}

}  // namespace

ConstantFit::ConstantFit(std::vector<RunQuestion>& runs, PricerShelf& shelf,
                         const std::function<bool(const MeasuredRun&)>& learn, bool from_neutral)
    : runs_(runs), shelf_(shelf) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MeasuredRun& run = runs[i].run;
    if (run.skipped) continue;
    known_.push_back(i);
    if (!run.score || !run.step_time_s) continue;
    marked_.push_back(i);
    if (learn(run)) fit_rows_.push_back(i);
    ++in_family_[run.family];
  }
  if (from_neutral) forget();
  collect_machine_knobs();
  collect_host_knobs();
  collect_stack_knobs();
  errors_.assign(runs_.size(), 0);
  scatter_.assign(runs_.size(), Scatter::dense);
  evaluate(fit_rows_, errors_);
}

void ConstantFit::run(int rounds) {
  double last = total(fit_rows_, errors_) + prior();
  for (int round = 0; round < rounds; ++round) {
    for (Knob& k : knobs_) improve(k);
    if (round < kRestartRounds) restart_hosts();
    const double now = total(fit_rows_, errors_) + prior();
    if (last - now < kSmallestGain * last) break;
    last = now;
  }
  centre_hosts();
}

void ConstantFit::centre_hosts() {
  double sum = 0;
  int hosts = 0;
  for (const Knob& k : knobs_)
    if (k.name == "host_factor") sum += std::log(k.value), ++hosts;
  if (hosts == 0) return;
  const double mean = std::exp(sum / hosts);
  for (Knob& k : knobs_) {
    const auto with_experts = [&](std::size_t i) { return runs_[i].run.model.has_moe(); };
    if (k.name == "host_factor")
      k.value = std::clamp(k.value / mean, k.least, k.most);
    else if (k.name == "kernel_launch_s" && std::any_of(k.rows.begin(), k.rows.end(), with_experts))
      k.value = std::clamp(k.value * mean, k.least, k.most);
    else
      continue;
    apply(k);
  }
  evaluate(fit_rows_, errors_);
}

void ConstantFit::forget() {
  for (const std::size_t i : known_) {
    runs_[i].stack.constants = {};
    Pricer& p = shelf_.of(runs_[i].run.cluster);
    p.set_constants(unfitted_machine_constants(p.cluster().gpu, p.kernels()));
  }
}

void ConstantFit::collect_machine_knobs() {
  const std::set<std::size_t> learned(fit_rows_.begin(), fit_rows_.end());
  for (const MachineConstantRow& row : machine_constant_rows()) {
    std::map<std::string, Knob> by_scope;
    for (const std::size_t i : known_) {
      Pricer& pricer = shelf_.of(runs_[i].run.cluster);
      Knob& k = by_scope[scope_of(row, pricer.cluster())];
      if (k.pricers.empty()) {
        MachineConstants neutral = unfitted_machine_constants(pricer.cluster().gpu, pricer.kernels());
        MachineConstants at = pricer.constants();
        k.start = row.member(neutral);
        k.value = row.member(at);
      }
      k.pricers.insert(&pricer);
      if (learned.count(i) > 0 && touches(row, runs_[i])) k.rows.push_back(i);
    }
    for (auto& [scope, k] : by_scope) {
      if (k.rows.empty()) continue;
      k.scope = scope, k.name = row.name, k.unit = row.unit, k.machine = &row;
      k.least = row.least, k.most = row.most, k.spread = row.spread;
      knobs_.push_back(std::move(k));
    }
  }
}

void ConstantFit::collect_stack_knobs() {
  std::map<std::string, std::vector<std::size_t>> learned, all;
  for (const std::size_t i : fit_rows_) learned[runs_[i].stack.name].push_back(i);
  for (const std::size_t i : known_) all[runs_[i].stack.name].push_back(i);
  for (const auto& [name, rows] : learned) {
    for (const StackConstantRow& row : stack_constant_rows()) {
      if (row.of_host_code) continue;
      // A factor of few runs says more of their layouts and precision than of the stack.
      if (row.member == &StackConstants::compute_factor && rows.size() < static_cast<std::size_t>(kRunsOfAStack))
        continue;
      Knob k;
      k.scope = name, k.name = row.name, k.unit = row.unit, k.stack = &row;
      k.value = runs_[rows.front()].stack.constants.*row.member;
      k.start = StackConstants{}.*row.member;
      k.least = row.least, k.most = row.most, k.spread = row.spread;
      k.rows = rows;
      k.stack_rows = all.at(name);
      knobs_.push_back(std::move(k));
    }
  }
  collect_release_knobs(learned, all);
}

void ConstantFit::collect_host_knobs() {
  for (const StackConstantRow& row : stack_constant_rows()) {
    if (!row.of_host_code) continue;
    std::map<std::string, Knob> by_host;
    for (const std::size_t i : fit_rows_) {
      Knob& k = by_host[runs_[i].stack.host_code];
      if (k.rows.empty()) k.value = runs_[i].stack.constants.*row.member;
      k.rows.push_back(i);
    }
    for (const std::size_t i : known_)
      if (const auto k = by_host.find(runs_[i].stack.host_code); k != by_host.end()) k->second.stack_rows.push_back(i);
    for (auto& [host, k] : by_host) {
      k.scope = host, k.name = row.name, k.unit = row.unit, k.stack = &row;
      k.start = StackConstants{}.*row.member;
      k.least = row.least, k.most = row.most, k.spread = row.spread;
      knobs_.push_back(std::move(k));
    }
  }
}

void ConstantFit::collect_release_knobs(const std::map<std::string, std::vector<std::size_t>>& learned,
                                        const std::map<std::string, std::vector<std::size_t>>& all) {
  const StackConstantRow& row = release_constant_row();
  for (const auto& [name, rows] : learned) {
    std::map<std::string, std::vector<std::size_t>> by_release;
    for (const std::size_t i : rows)
      if (!runs_[i].stack.release.empty()) by_release[runs_[i].stack.release].push_back(i);
    if (by_release.size() < 2) continue;
    for (auto& [release, of_release] : by_release) {
      Knob k;
      k.scope = name, k.name = row.name, k.unit = row.unit, k.stack = &row, k.release = release;
      k.value = runs_[of_release.front()].stack.constants.*row.member;
      k.start = StackConstants{}.*row.member;
      k.least = row.least, k.most = row.most, k.spread = row.spread;
      k.rows = std::move(of_release);
      for (const std::size_t i : all.at(name))
        if (runs_[i].stack.release == release) k.stack_rows.push_back(i);
      knobs_.push_back(std::move(k));
    }
  }
}

void ConstantFit::apply(const Knob& k) {
  for (const std::size_t i : k.stack_rows) runs_[i].stack.constants.*k.stack->member = k.value;
  for (Pricer* p : k.pricers) {
    MachineConstants c = p->constants();
    k.machine->member(c) = k.value;
    if (k.machine->scope == MachineScope::gpu) c.gpu_fitted = true;
    p->set_constants(c);
  }
}

void ConstantFit::evaluate(const std::vector<std::size_t>& rows, std::vector<double>& errors) {
  for (const std::size_t i : rows) {
    try {
      const StepReport s = simulate_step(question_of(runs_[i], shelf_.of(runs_[i].run.cluster), 0));
      errors[i] = std::log(s.step_time_s / *runs_[i].run.step_time_s);
      scatter_[i] = s.scatter;
    } catch (const InputError&) {
      errors[i] = 0;  // not modelled: validate says so; no constant depends on it
    }
  }
}

double ConstantFit::total(const std::vector<std::size_t>& rows, const std::vector<double>& errors) const {
  double sum = 0;
  for (const std::size_t i : rows)
    sum += std::min(0.5, std::hypot(errors[i], kSmall) - kSmall) /
           std::sqrt(static_cast<double>(in_family_.at(runs_[i].run.family)));
  return sum;
}

double ConstantFit::prior_of(const Knob& k) {
  const double moved = std::log(k.value / k.start) / k.spread;
  return kPrior * std::log1p(0.5 * moved * moved);
}

double ConstantFit::prior() const {
  double sum = 0;
  for (const Knob& k : knobs_) sum += prior_of(k);
  return sum;
}

void ConstantFit::improve(Knob& k) {
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

void ConstantFit::restart_hosts() {
  for (std::size_t first = 0; first < knobs_.size(); ++first) {
    if (knobs_[first].name != "kernel_launch_s") continue;
    std::vector<Knob*> hosts;
    for (Knob& k : knobs_)
      if (k.stack != nullptr && k.release.empty() && runs_[k.rows.front()].stack.host_code == knobs_[first].scope)
        hosts.push_back(&k);
    const auto cost = [&] {
      double sum = total(knobs_[first].rows, errors_);
      for (const Knob* k : hosts) sum += prior_of(*k);
      return sum;
    };
    const auto set = [&](const std::vector<double>& values) {
      for (std::size_t i = 0; i < hosts.size(); ++i) {
        hosts[i]->value = values[i];
        apply(*hosts[i]);
      }
      evaluate(knobs_[first].rows, errors_);
    };
    std::vector<double> best, neutral;
    for (const Knob* k : hosts) best.push_back(k->value), neutral.push_back(k->start);
    double least = cost();
    for (const double launch : kRestarts) {
      set(neutral);
      knobs_[first].value = launch;
      apply(knobs_[first]);
      evaluate(knobs_[first].rows, errors_);
      for (std::size_t i = hosts.size(); i-- > 0;) improve(*hosts[i]);
      if (const double now = cost(); now < least - 1e-9) {
        least = now;
        best.clear();
        for (const Knob* k : hosts) best.push_back(k->value);
      }
    }
    set(best);
  }
}

Residual ConstantFit::residual_of(std::size_t run) {
  evaluate({run}, errors_);
  return {errors_[run], scatter_[run]};
}

std::string ConstantFit::document(const Residuals& residuals) const {
  nlohmann::ordered_json out;
  out["schema"] = "shardplan-step-constants/1";
  out["source"] = "fitted by `shardplan validate --rows runs.json --fit-constants` on measured training runs";
  nlohmann::ordered_json stacks = nlohmann::ordered_json::object(), machines = stacks, hosts = stacks;
  nlohmann::ordered_json counts;
  for (const Knob& k : knobs_) {
    // Four significant digits: more would claim what the fit does not know.
    const double digits = std::pow(10, 3 - std::floor(std::log10(k.value)));
    const double value = std::round(k.value * digits) / digits;
    const bool of_host = k.stack != nullptr && k.stack->of_host_code;
    nlohmann::ordered_json& scope = (of_host ? hosts : k.stack != nullptr ? stacks : machines)[k.scope];
    nlohmann::ordered_json& holder = k.release.empty() ? scope : scope["releases"][k.release];
    holder[k.name] = value;
    if (of_host || !k.release.empty()) holder["rows"] = k.rows.size();
    if (k.machine != nullptr) counts[k.scope][k.name] = k.rows.size();
  }
  for (auto& [name, machine] : machines.items()) machine["rows"] = counts[name];
  for (auto& [name, stack] : stacks.items()) {
    std::size_t rows = 0;
    for (const auto& [kind, member] :
         {std::pair{Scatter::dense, "residual_sd"}, std::pair{Scatter::host, "residual_sd_host"},
          std::pair{Scatter::moe, "residual_sd_moe"}}) {
      const std::size_t n = residuals.count(name, kind);
      if (n > 0 || kind == Scatter::dense) stack[member] = std::round(1e4 * residuals.spread(name, kind)) / 1e4;
      rows += n;
    }
    stack["rows"] = rows;
  }
  out["machines"] = std::move(machines);
  out["hosts"] = std::move(hosts);
  out["stacks"] = std::move(stacks);
  return out.dump(1) + "\n";
}

}  // namespace shardplan
