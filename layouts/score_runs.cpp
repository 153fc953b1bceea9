#include "layouts/score_runs.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace shardplan {

Pricer& PricerShelf::of(const Cluster& c) {
  const std::string key = c.gpu.name + "|" + std::to_string(c.node.gpus) + "|" + std::to_string(c.node.nvlink_domain) + "|" +
                          std::to_string(c.node.nic_bytes_per_second.value) + "|" + std::to_string(c.node.nics.value) + "|" + c.network.kind;
  auto& slot = shelf_[key];
  if (!slot) slot = std::make_unique<Pricer>(c, Rates::calibrated, Fidelity::table);
  return *slot;
}

bool in_fit(const MeasuredRun& run) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const char c : run.question) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return ((hash >> 20) & 1) == 0;
}

namespace {

constexpr double kRealRoutingMaxOverMean = 1.3;
void choose_recompute(MeasuredRun& run) { run.layout.recompute = Recompute::none; }

}  // namespace

StepQuestion question_of(const MeasuredRun& run, const Pricer& pricer, std::uint32_t without) {
  StepQuestion q;
  q.model = &run.model;
  q.pricer = &pricer;
  q.layout = run.layout;
  q.workload = run.workload;
  q.stack = run.stack;
  q.options.without = without;
  if (run.real_routing) q.options.routing.max_over_mean = kRealRoutingMaxOverMean;
  return q;
}

std::vector<ScoredRow> score_runs(const std::vector<MeasuredRun>& runs, PricerShelf& shelf, std::uint32_t without) {
  std::vector<ScoredRow> out;
  out.reserve(runs.size());
  for (MeasuredRun run : runs) {
    ScoredRow row;
    row.id = run.id;
    row.family = run.family;
    row.question = run.question;
    row.measured_s = run.step_time_s.value_or(0);
    row.measured_memory = run.memory_bytes;
    row.skipped = run.skipped;
    if (row.skipped.empty()) {
      try {
        if (run.recompute_unknown) choose_recompute(run);
        const StepReport s = simulate_step(question_of(run, shelf.of(run.cluster), without));
        row.predicted_s = s.step_time_s;
        row.low_s = s.low_s;
        row.high_s = s.high_s;
        row.note = run.note;
      } catch (const InputError& e) {
        row.skipped = e.what();
      }
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace shardplan
