#pragma once
// Measured runs against the simulated step, and the fit of the step's few constants.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/accuracy.hpp"
#include "layouts/measured_run.hpp"
#include "layouts/memory.hpp"
#include "layouts/step/question.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

/// Prices of every machine that a file of runs names; built once, shared by all its rows.
class PricerShelf {
 public:
  explicit PricerShelf(ConstantSet constants) : constants_(constants) {}
  Pricer& of(const Cluster&);

 private:
  ConstantSet constants_;
  std::map<std::string, std::unique_ptr<Pricer>> shelf_;
};

/// A measured run with its stack: what simulate_step and memory_of are asked.
struct RunQuestion {
  MeasuredRun run;
  Stack stack;
};
/// Runs with a known stack; where there is none, or a mechanism is not modelled, run.skipped says so.
std::vector<RunQuestion> run_questions(std::vector<MeasuredRun>, ConstantSet);

StepQuestion question_of(const RunQuestion&, const Pricer&, std::uint32_t without);
MemoryOptions memory_options_of(const RunQuestion&);

/// Half of the questions belong to the fit: FNV-1a of the question's text, even. Layouts that compete stay together.
bool in_fit(const MeasuredRun&);

/// The fold of a run's question in cross-validation, 0 to folds - 1, by the same hash.
int fold_of(const MeasuredRun&, int folds);

/// Every run once: predicted, or skipped with a reason.
std::vector<ScoredRow> score_runs(const std::vector<RunQuestion>&, PricerShelf&, std::uint32_t without);

inline constexpr int kFitRounds = 12;
struct FitOptions {
  bool all = false;         // on every run marked for scoring; else on those for which in_fit holds
  int rounds = kFitRounds;  // 0: keep the constants of the shelf and of the runs' stacks, count their rows anew
  int spread_folds = 4;     // the intervals' spreads are the errors of runs left out of so many fits; < 2: of the fit
};
/// Fits the constants by coordinate search (see constant_fit.cpp); returns the document step_constants.json and leaves
/// the constants in the shelf and the runs' stacks.
std::string fit_constants(std::vector<RunQuestion>& runs, PricerShelf&, const FitOptions&);

/// Every run predicted with constants, and with an interval, fitted on the other folds only (folds >= 2).
std::vector<ScoredRow> cross_validate(const std::vector<RunQuestion>& runs, int folds, std::uint32_t without);

}  // namespace shardplan
