// Fits on all runs or on folds of them, each fold in a world of its own.
#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "layouts/constant_fit.hpp"
#include "layouts/score_runs.hpp"

namespace shardplan {
namespace {

using Learn = std::function<bool(const MeasuredRun&)>;

/// One fold: constants fitted without its questions, in a world of their own.
struct Fold {
  std::vector<RunQuestion> runs;
  PricerShelf shelf{ConstantSet::all};
  std::vector<std::pair<std::size_t, Residual>> left_out;  // marked runs of the fold
};

std::vector<std::unique_ptr<Fold>> fit_folds(const std::vector<RunQuestion>& runs, const Learn& learn, int folds) {
  std::vector<std::unique_ptr<Fold>> out(static_cast<std::size_t>(folds));
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int f = next++; f < folds; f = next++) {
      auto fold = std::make_unique<Fold>();
      fold->runs = runs;
      ConstantFit fit(
          fold->runs, fold->shelf, [&](const MeasuredRun& r) { return learn(r) && fold_of(r, folds) != f; }, true);
      fit.run(kFitRounds);
      for (const std::size_t i : fit.marked())
        if (learn(runs[i].run) && fold_of(runs[i].run, folds) == f) fold->left_out.emplace_back(i, fit.residual_of(i));
      out[static_cast<std::size_t>(f)] = std::move(fold);
    }
  };
  std::vector<std::future<void>> others;  // a fold that fails says so here, not by ending the program
  for (unsigned t = 1; t < std::min(std::thread::hardware_concurrency(), static_cast<unsigned>(folds)); ++t)
    others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
  return out;
}

}  // namespace

std::string fit_constants(std::vector<RunQuestion>& runs, PricerShelf& shelf, const FitOptions& options) {
  const Learn learn = [&](const MeasuredRun& run) { return options.all || in_fit(run); };
  Residuals residuals;
  if (options.rounds > 0 && options.spread_folds > 1)
    for (const auto& fold : fit_folds(runs, learn, options.spread_folds))
      for (const auto& [i, residual] : fold->left_out) residuals.add(runs[i].stack.name, residual);
  ConstantFit fit(runs, shelf, learn, options.rounds > 0);
  fit.run(options.rounds);
  if (options.rounds == 0 || options.spread_folds <= 1)
    for (const std::size_t i : fit.learned()) residuals.add(runs[i].stack.name, fit.residual_of(i));
  return fit.document(residuals);
}

std::vector<ScoredRow> cross_validate(const std::vector<RunQuestion>& runs, int folds, std::uint32_t without) {
  const auto fitted = fit_folds(runs, [](const MeasuredRun&) { return true; }, folds);
  std::vector<ScoredRow> out(runs.size());
  for (int f = 0; f < folds; ++f) {
    // What a fold's intervals stand on: the errors of the others, each left out of its own fit.
    Residuals residuals;
    for (int other = 0; other < folds; ++other)
      if (other != f)
        for (const auto& [i, residual] : fitted[static_cast<std::size_t>(other)]->left_out)
          residuals.add(runs[i].stack.name, residual);
    Fold& fold = *fitted[static_cast<std::size_t>(f)];
    for (RunQuestion& q : fold.runs) {
      StackConstants& c = q.stack.constants;
      c.residual_sd = residuals.spread(q.stack.name, Scatter::dense);
      c.residual_sd_host = residuals.spread(q.stack.name, Scatter::host);
      c.residual_sd_moe = residuals.spread(q.stack.name, Scatter::moe);
      c.fit_rows = 0;
      for (const Scatter kind : {Scatter::dense, Scatter::host, Scatter::moe})
        c.fit_rows += static_cast<int>(residuals.count(q.stack.name, kind));
      if (fold_of(q.run, folds) != f) q.run.skipped = "of another fold";
    }
    std::vector<ScoredRow> rows = score_runs(fold.runs, fold.shelf, without);
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (fold_of(runs[i].run, folds) == f) out[i] = std::move(rows[i]);
  }
  return out;
}

}  // namespace shardplan
