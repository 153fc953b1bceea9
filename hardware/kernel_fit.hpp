#pragma once
// From scattered measurements to a table: a fitted form, and a grid filled by a Gaussian process on the form's log
// residuals.
#include <functional>
#include <string>
#include <vector>

#include "hardware/kernel_tables.hpp"

namespace shardplan {

/// One measurement in the coordinates of a table.
struct FitPoint {
  LogGrid::Logs logs{};  // logarithms of the coordinates
  double log_seconds = 0;
  KernelWork work;
  std::uint64_t fold = 0;  // rows of one shape share it: a fold leaves whole shapes out
};

/// How the tables of one kernel class are laid out.
struct FitSpec {
  std::vector<GridAxis> axes;
  std::vector<bool> increasing;  // per axis: more of it never takes less time
  std::function<KernelWork(const LogGrid::Logs&)> work_at;
};

/// Additive Gaussian process (Duvenaud et al. 2011): covariance = sum over d of weight_d times the d-th elementary
/// symmetric polynomial of the one-dimensional Matern-3/2 kernels, plus noise on the diagonal.
struct Covariance {
  std::vector<double> length;  // per axis, in log units
  std::vector<double> weight;  // of the orders 1..axes
  double noise = 0.05;         // variance over that of a single kernel
  double at(const LogGrid::Logs& a, const LogGrid::Logs& b) const;
};

/// Fits form, covariance and grid. `folds` > 1 also repeats the fit without each fold, which gives bands and left-out
/// error by the same procedure; else bands stay empty. Returns the seconds predicted for each point by the fit without
/// it (0 where no fold left it out). Deterministic.
std::vector<double> fit_table(KernelTable& table, const std::vector<FitPoint>& points, const FitSpec& spec, int folds);

/// The form alone, by least absolute log residuals (Nelder-Mead from a fixed start).
RooflineForm fit_form(const std::vector<FitPoint>& points, const KernelRates& rates);

/// Bands of equal count by predicted seconds from pairs (predicted seconds, measured / predicted): 10 % and 90 %
/// quantiles.
std::vector<ErrorBand> error_bands(std::vector<std::pair<double, double>> pairs);

}  // namespace shardplan
