#include "hardware/kernel_fit.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "base/accuracy.hpp"

namespace shardplan {

namespace {

constexpr std::size_t kSearchPoints = 450;  // rows that the covariance is chosen on: its cost grows with their cube

double matern(double distance) {
  const double r = 1.7320508075688772 * distance;
  return (1 + r) * std::exp(-r);
}

/// Least absolute deviations are what MAPE measures, and outliers do not bend them.
double form_error(const std::vector<FitPoint>& points, const KernelRates& rates, const RooflineForm& form) {
  double sum = 0;
  for (const FitPoint& p : points) sum += std::abs(p.log_seconds - std::log(form.seconds(p.work, rates)));
  return sum / double(points.size());
}

/// Parameters of a form as unbounded numbers: four, or six with the streamed terms.
RooflineForm form_of(const Eigen::VectorXd& x) {
  RooflineForm form{std::exp(x[0]), std::exp(x[1]), std::exp(x[2]), 1 + std::exp(x[3])};
  if (x.size() > 4) form.local = std::exp(x[4]), form.routed = std::exp(x[5]);
  return form;
}

/// Nelder-Mead (coefficients 1, 2, 1/2, 1/2).
template <class Error>
Eigen::VectorXd minimise(const Error& error, const Eigen::VectorXd& start) {
  const Eigen::Index n = start.size();
  std::vector<std::pair<double, Eigen::VectorXd>> simplex{{error(start), start}};
  for (Eigen::Index i = 0; i < n; ++i) {
    Eigen::VectorXd x = start;
    x[i] += 0.5;
    simplex.emplace_back(error(x), x);
  }
  const auto by_error = [](const auto& a, const auto& b) { return a.first < b.first; };
  for (int step = 0; step < 200 * n; ++step) {
    std::stable_sort(simplex.begin(), simplex.end(), by_error);
    if (simplex.back().first - simplex.front().first < 1e-9) break;
    Eigen::VectorXd centre = Eigen::VectorXd::Zero(n);
    for (Eigen::Index i = 0; i < n; ++i) centre += simplex[i].second / double(n);
    const auto probe = [&](double t) {
      const Eigen::VectorXd x = centre + t * (simplex.back().second - centre);
      return std::pair{error(x), x};
    };
    const auto reflected = probe(-1);
    if (reflected.first < simplex.front().first) {
      const auto expanded = probe(-2);
      simplex.back() = expanded.first < reflected.first ? expanded : reflected;
    } else if (reflected.first < simplex[n - 1].first) {
      simplex.back() = reflected;
    } else if (const auto contracted = probe(0.5); contracted.first < simplex.back().first) {
      simplex.back() = contracted;
    } else {
      for (Eigen::Index i = 1; i <= n; ++i) {
        simplex[i].second = 0.5 * (simplex[i].second + simplex[0].second);
        simplex[i].first = error(simplex[i].second);
      }
    }
  }
  return std::min_element(simplex.begin(), simplex.end(), by_error)->second;
}

Eigen::MatrixXd gram(const Covariance& covariance, const std::vector<FitPoint>& points) {
  const auto n = static_cast<Eigen::Index>(points.size());
  Eigen::MatrixXd out(n, n);
  for (Eigen::Index i = 0; i < n; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) out(i, j) = out(j, i) = covariance.at(points[i].logs, points[j].logs);
    out(i, i) += covariance.noise;
  }
  return out;
}

/// Mean absolute leave-one-out residual of the process: r_i = (K^-1 y)_i / (K^-1)_ii.
double left_one_out(const Covariance& covariance, const std::vector<FitPoint>& points,
                    const Eigen::VectorXd& residuals) {
  const Eigen::LLT<Eigen::MatrixXd> factor(gram(covariance, points));
  if (factor.info() != Eigen::Success) return std::numeric_limits<double>::infinity();
  const auto n = static_cast<Eigen::Index>(points.size());
  const Eigen::VectorXd alpha = factor.solve(residuals);
  Eigen::MatrixXd inverse_root = Eigen::MatrixXd::Identity(n, n);
  factor.matrixL().solveInPlace(inverse_root);
  double sum = 0;
  for (Eigen::Index i = 0; i < n; ++i) sum += std::abs(alpha[i] / inverse_root.col(i).squaredNorm());
  return sum / double(n);
}

/// Coordinate search in powers of two, then of 1.4, from long lengths and mostly low orders.
Covariance choose_covariance(const std::vector<FitPoint>& points, const Eigen::VectorXd& residuals, std::size_t axes) {
  Covariance best{std::vector<double>(axes, 1.5), std::vector<double>(axes, 0.5), 0.1};
  double least = left_one_out(best, points, residuals);
  for (const double factor : {3.0, 2.0, 1.5}) {
    for (std::size_t p = 0; p < 2 * axes + 1; ++p) {
      for (const double times : {factor, 1 / factor}) {
        Covariance next = best;
        double& value = p < axes ? next.length[p] : p < 2 * axes ? next.weight[p - axes] : next.noise;
        value *= times;
        const double error = left_one_out(next, points, residuals);
        if (error < least) least = error, best = next;
      }
    }
  }
  return best;
}

Eigen::VectorXd residuals_of(const std::vector<FitPoint>& points, const RooflineForm& form, const KernelRates& rates) {
  Eigen::VectorXd out(static_cast<Eigen::Index>(points.size()));
  for (std::size_t i = 0; i < points.size(); ++i) {
    out[static_cast<Eigen::Index>(i)] = points[i].log_seconds - std::log(form.seconds(points[i].work, rates));
  }
  return out;
}

/// Every s-th point, spread evenly over the rows as they stand.
std::vector<FitPoint> thinned(const std::vector<FitPoint>& points) {
  if (points.size() <= kSearchPoints) return points;
  std::vector<FitPoint> out;
  for (std::size_t i = 0; i < kSearchPoints; ++i) out.push_back(points[i * points.size() / kSearchPoints]);
  return out;
}

/// Coordinates of the i-th node, the last axis fastest.
LogGrid::Logs node_logs(const FitSpec& spec, std::size_t i) {
  LogGrid::Logs logs{};
  for (std::size_t a = spec.axes.size(); a-- > 0;) {
    const auto& nodes = spec.axes[a].nodes;
    logs[a] = std::log(nodes[i % nodes.size()]);
    i /= nodes.size();
  }
  return logs;
}

/// Moves node values so that the interpolation between them meets points that lie off the nodes: ridge regression of
/// what the interpolation misses, with weights that let outliers go (least absolute deviations by reweighting).
void pull_to_points(LogGrid& grid, const std::vector<FitPoint>& points, const Eigen::VectorXd& residuals) {
  constexpr double kRidge = 0.3, kSharp = 0.03;
  const auto nodes = static_cast<Eigen::Index>(grid.values().size()), n = static_cast<Eigen::Index>(points.size());
  Eigen::MatrixXd basis = Eigen::MatrixXd::Zero(n, nodes);
  Eigen::VectorXd missed(n);
  for (Eigen::Index i = 0; i < n; ++i) {
    LogGrid::Logs logs = points[i].logs;
    grid.clamp(logs);
    for (const LogGrid::Corner& corner : grid.corners(logs))
      basis(i, static_cast<Eigen::Index>(corner.index)) += corner.weight;
    missed[i] = residuals[i] - grid.value(logs);
  }
  Eigen::VectorXd weight = Eigen::VectorXd::Ones(n), change = Eigen::VectorXd::Zero(nodes);
  for (int round = 0; round < 4; ++round) {
    const Eigen::MatrixXd normal =
        basis.transpose() * weight.asDiagonal() * basis + kRidge * Eigen::MatrixXd::Identity(nodes, nodes);
    change = normal.llt().solve(basis.transpose() * (weight.asDiagonal() * missed));
    const Eigen::VectorXd left = missed - basis * change;
    for (Eigen::Index i = 0; i < n; ++i) weight[i] = kSharp / std::max(kSharp, std::abs(left[i]));
  }
  for (Eigen::Index j = 0; j < nodes; ++j) grid.values()[j] += change[j];
}

LogGrid fill_grid(const std::vector<FitPoint>& points, const FitSpec& spec, const KernelTable& table,
                  const Covariance& covariance) {
  const Eigen::VectorXd residuals = residuals_of(points, table.form, table.rates);
  const Eigen::LLT<Eigen::MatrixXd> factor(gram(covariance, points));
  const Eigen::VectorXd alpha = factor.solve(residuals);
  std::size_t count = 1;
  for (const GridAxis& axis : spec.axes) count *= axis.nodes.size();
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const LogGrid::Logs logs = node_logs(spec, i);
    values[i] = std::log(table.form.seconds(spec.work_at(logs), table.rates));
    for (std::size_t j = 0; j < points.size(); ++j)
      values[i] += alpha[static_cast<Eigen::Index>(j)] * covariance.at(logs, points[j].logs);
  }
  LogGrid grid(spec.axes, std::move(values));
  make_monotone(grid, spec.increasing);
  if (table.ratios) {
    for (std::size_t i = 0; i < count; ++i)
      grid.values()[i] -= std::log(table.form.seconds(spec.work_at(node_logs(spec, i)), table.rates));
    pull_to_points(grid, points, residuals);
  }
  return grid;
}

double predicted(const KernelTable& table, const FitSpec& spec, const FitPoint& point) {
  LogGrid::Logs logs = point.logs;
  table.grid.clamp(logs);
  const double asked = table.form.seconds(point.work, table.rates);
  if (table.ratios) return std::exp(table.grid.value(logs)) * asked;
  return std::exp(table.grid.value(logs)) * asked / table.form.seconds(spec.work_at(logs), table.rates);
}

/// Bands and left-out error from the predictions of the folds.
void judge(KernelTable& table, const std::vector<FitPoint>& points, const std::vector<double>& left_out) {
  std::vector<std::pair<double, double>> pairs;
  double error = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!(left_out[i] > 0)) continue;
    pairs.emplace_back(left_out[i], std::exp(points[i].log_seconds) / left_out[i]);
    error += std::abs(1 / pairs.back().second - 1);
  }
  if (pairs.empty()) return;
  table.bands = error_bands(pairs);
  int inside = 0;
  for (const auto& [seconds, ratio] : pairs) {
    std::size_t b = 0;
    while (b + 1 < table.bands.size() && seconds > table.bands[b].up_to) ++b;
    inside += table.bands[b].low <= ratio && ratio <= table.bands[b].high;
  }
  table.left_out = {static_cast<int>(pairs.size()), error / double(pairs.size()),
                    double(inside) / double(pairs.size())};
}

}  // namespace

double Covariance::at(const LogGrid::Logs& a, const LogGrid::Logs& b) const {
  // Elementary symmetric polynomials e_1..e_D of the one-dimensional kernels, by the usual recurrence.
  std::array<double, LogGrid::kMostAxes + 1> e{1};
  for (std::size_t axis = 0; axis < length.size(); ++axis) {
    const double k = matern(std::abs(a[axis] - b[axis]) / length[axis]);
    for (std::size_t d = axis + 1; d > 0; --d) e[d] += e[d - 1] * k;
  }
  double sum = 1;  // a constant
  for (std::size_t d = 0; d < weight.size(); ++d) sum += weight[d] * e[d + 1];
  return sum;
}

RooflineForm fit_form(const std::vector<FitPoint>& points, const KernelRates& rates) {
  // A fraction above 0.95 of the compute peak is not physical; memory may exceed HBM's rate where operands stay in L2.
  const auto error = [&](const Eigen::VectorXd& x) {
    const RooflineForm form = form_of(x);
    if (form.compute > 0.95 || form.memory > 3 || form.exponent > 30 || form.local > 30 || form.routed > 30)
      return 10.0;
    return form_error(points, rates, form);
  };
  const bool streams =
      std::any_of(points.begin(), points.end(), [](const FitPoint& p) { return p.work.local_bytes > 0; });
  Eigen::VectorXd start(streams ? 6 : 4);
  start.head(4) << std::log(0.6), std::log(0.7), std::log(5e-6), std::log(1.5);
  if (streams) start.tail(2) << std::log(0.5), std::log(0.5);
  return form_of(minimise(error, minimise(error, start)));
}

std::vector<ErrorBand> error_bands(std::vector<std::pair<double, double>> pairs) {
  std::sort(pairs.begin(), pairs.end());
  const std::size_t count = std::clamp<std::size_t>(pairs.size() / 60, 1, 5);
  std::vector<ErrorBand> bands;
  for (std::size_t b = 0; b < count; ++b) {
    const std::size_t first = b * pairs.size() / count, last = (b + 1) * pairs.size() / count;
    std::vector<double> ratios;
    for (std::size_t i = first; i < last; ++i) ratios.push_back(pairs[i].second);
    bands.push_back(
        {pairs[last - 1].first, std::min(quantile(ratios, 0.1), 0.9999), std::max(quantile(ratios, 0.9), 1.0001)});
  }
  return bands;
}

std::vector<double> fit_table(KernelTable& table, const std::vector<FitPoint>& points, const FitSpec& spec, int folds) {
  table.form = fit_form(points, table.rates);
  const std::vector<FitPoint> search = thinned(points);
  const Covariance covariance =
      choose_covariance(search, residuals_of(search, table.form, table.rates), spec.axes.size());
  table.grid = fill_grid(points, spec, table, covariance);
  std::vector<double> left_out(points.size(), 0.0);
  for (int fold = 0; folds > 1 && fold < folds; ++fold) {
    const auto is_left = [&](const FitPoint& p) {
      return static_cast<int>(p.fold % static_cast<std::uint64_t>(folds)) == fold;
    };
    std::vector<FitPoint> kept;
    std::copy_if(points.begin(), points.end(), std::back_inserter(kept),
                 [&](const FitPoint& p) { return !is_left(p); });
    if (kept.empty() || kept.size() == points.size()) continue;
    KernelTable without = table;
    without.form = fit_form(kept, table.rates);
    without.grid = fill_grid(kept, spec, without, covariance);
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (is_left(points[i])) left_out[i] = predicted(without, spec, points[i]);
    }
  }
  judge(table, points, left_out);
  return left_out;
}

}  // namespace shardplan
