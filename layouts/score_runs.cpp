#include "layouts/score_runs.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace shardplan {

Pricer& PricerShelf::of(const Cluster& c) {
  const std::string key = c.gpu.name + "|" + std::to_string(c.node.gpus) + "|" + std::to_string(c.node.nvlink_domain) +
                          "|" + std::to_string(c.node.nic_bytes_per_second.value) + "|" +
                          std::to_string(c.node.nics.value) + "|" + c.network.kind;
  auto& slot = shelf_[key];
  if (!slot) slot = std::make_unique<Pricer>(c, Rates::calibrated, Fidelity::table, constants_);
  return *slot;
}

namespace {

/// FNV-1a.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace

bool in_fit(const MeasuredRun& run) { return ((hash_of(run.question) >> 20) & 1) == 0; }

int fold_of(const MeasuredRun& run, int folds) {
  return static_cast<int>((hash_of(run.question) >> 20) % static_cast<std::uint64_t>(folds));
}

namespace {

/// Least recomputation that leaves 4 GiB free: none, then whole layers, an eighth of each pipeline rank's more at a
/// time.
void choose_recompute(RunQuestion& q) {
  constexpr double kSpare = 4.0 * 1073741824.0;
  const auto held = std::max<std::int64_t>(1, q.run.model.layer_count() / q.run.layout.pp);
  for (int eighths = 0; eighths <= 8; ++eighths) {
    q.run.layout.recompute = eighths == 0 ? Recompute::none : Recompute::full;
    q.run.layout.recompute_layers = eighths == 8 ? 0 : static_cast<int>((held * eighths + 7) / 8);
    const MemoryReport m = memory_of(q.run.model, q.run.cluster, q.run.layout, q.run.workload, memory_options_of(q));
    if (m.capacity_bytes - m.peak_bytes() >= kSpare) break;
  }
}

}  // namespace

std::vector<RunQuestion> run_questions(std::vector<MeasuredRun> runs, ConstantSet constants) {
  std::vector<RunQuestion> out;
  out.reserve(runs.size());
  for (MeasuredRun& run : runs) {
    RunQuestion q{std::move(run), {}};
    const auto names = stack_names();
    if (!q.run.skipped && std::find(names.begin(), names.end(), q.run.stack) == names.end())
      q.run.skipped = "stack " + q.run.stack + " has no description";
    if (!q.run.skipped) {
      q.stack = load_stack(q.run.stack, "stack", constants);
      set_release(q.stack, q.run.stack_version);
      if (q.run.pure_16bit) q.stack.grad_reduce_bytes = 2;
    }
    if (!q.run.skipped && q.run.recompute_unknown) choose_recompute(q);
    out.push_back(std::move(q));
  }
  return out;
}

StepQuestion question_of(const RunQuestion& r, const Pricer& pricer, std::uint32_t without) {
  StepQuestion q;
  q.model = &r.run.model;
  q.pricer = &pricer;
  q.layout = r.run.layout;
  if (r.stack.balances_stages && q.layout.split == SplitKind::even) q.layout.split = SplitKind::automatic;
  q.workload = r.run.workload;
  q.stack = r.stack;
  q.options.without = without;
  // Token drops under a capacity factor: with balanced routing every expert is filled just to its capacity of 1.
  if (r.run.token_drop.value_or(false)) q.options.routing.capacity_factor = 1;
  if (!r.run.balanced_routing.value_or(true)) q.options.routing.real = true;
  return q;
}

MemoryOptions memory_options_of(const RunQuestion& q) {
  MemoryOptions options;
  options.traits = memory_traits(q.run.stack, "stack", q.run.month);
  if (q.run.pure_16bit) options.recipe = "bf16-pure";
  return options;
}

namespace {

double predicted_memory(const RunQuestion& q) {
  const MemoryOptions options = memory_options_of(q);
  const MemoryReport m = memory_of(q.run.model, q.run.cluster, q.run.layout, q.run.workload, options);
  return reported_bytes(m, q.run.memory_kind, options.traits);
}

}  // namespace

std::vector<ScoredRow> score_runs(const std::vector<RunQuestion>& runs, PricerShelf& shelf, std::uint32_t without) {
  std::vector<ScoredRow> out;
  out.reserve(runs.size());
  for (const RunQuestion& q : runs) {
    const MeasuredRun& run = q.run;
    ScoredRow row;
    row.id = run.id;
    row.family = run.family;
    row.question = run.question;
    row.measured_s = run.step_time_s.value_or(0);
    row.measured_memory = run.memory_bytes;
    if (!run.model.layers.empty()) row.part = run.model.has_moe() ? "moe" : "dense";
    row.skipped = run.skipped.value_or("");
    if (row.skipped.empty()) {
      try {
        const StepReport s = simulate_step(question_of(q, shelf.of(run.cluster), without));
        row.predicted_s = s.step_time_s;
        row.low_s = s.low_s;
        row.high_s = s.high_s;
        if (run.memory_bytes) row.predicted_memory = predicted_memory(q);
        row.note = run.model_note;
        if (run.recompute_unknown)
          row.note += std::string(row.note.empty() ? "" : "; ") + "recompute unknown: predicted with " +
                      (run.layout.recompute == Recompute::none ? "none" : "full");
      } catch (const InputError& e) {
        row.skipped = e.what();
      }
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace shardplan
