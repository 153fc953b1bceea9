#pragma once
// Measured runs against the simulated step, and the fit of the step's few constants.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/accuracy.hpp"
#include "layouts/measured_run.hpp"
#include "layouts/step/question.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

/// Prices of every machine that a file of runs names; built once, shared by all its rows.
class PricerShelf {
 public:
  Pricer& of(const Cluster&);

 private:
  std::map<std::string, std::unique_ptr<Pricer>> shelf_;
};

/// Half of the questions belong to the fit: FNV-1a of the question's text, even. Layouts that compete stay together.
bool in_fit(const MeasuredRun&);

/// Every run once: predicted, or skipped with a reason.
std::vector<ScoredRow> score_runs(const std::vector<MeasuredRun>&, PricerShelf&, std::uint32_t without);

/// The run as a question to simulate_step.
StepQuestion question_of(const MeasuredRun&, const Pricer&, std::uint32_t without);

/// Fits the constants on the runs for which in_fit holds (all = on all of them), by coordinate search on the mean absolute
/// logarithmic error, every scope weighing its own rows. Returns the document step_constants.json.
std::string fit_constants(std::vector<MeasuredRun>& runs, PricerShelf&, bool all);

}  // namespace shardplan
