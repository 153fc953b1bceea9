#include "hardware/kernel_grid.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardplan {

LogGrid::LogGrid(std::vector<GridAxis> axes, std::vector<double> values)
    : axes_(std::move(axes)), values_(std::move(values)) {
  strides_.assign(axes_.size(), 1);
  for (std::size_t a = axes_.size(); a-- > 1;) strides_[a - 1] = strides_[a] * axes_[a].nodes.size();
  for (const GridAxis& axis : axes_) {
    std::vector<double> logs;
    for (const double x : axis.nodes) logs.push_back(std::log(x));
    least_.push_back(logs.front());
    most_.push_back(logs.back());
    logs_.push_back(std::move(logs));
  }
}

double LogGrid::clamp(Logs& logs) const {
  double outside = 0;
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    outside += std::abs(logs[a] - std::clamp(logs[a], least_[a], most_[a]));
    logs[a] = std::clamp(logs[a], logs_[a].front(), logs_[a].back());
  }
  return outside < 1e-12 ? 0 : outside;
}

void LogGrid::set_measured(const LogGrid& part) { least_ = part.least_, most_ = part.most_; }

bool LogGrid::is_measured(const std::array<double, kMostAxes>& at) const {
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    const double log = std::log(at[a]);
    if (log < least_[a] - 1e-9 || log > most_[a] + 1e-9) return false;
  }
  return true;
}

LogGrid::Cell LogGrid::cell(std::size_t axis, double log) const {
  const std::vector<double>& nodes = logs_[axis];
  if (nodes.size() == 1) return {0, 0};
  std::size_t low = 0;
  while (low + 2 < nodes.size() && nodes[low + 1] <= log) ++low;
  return {low, (log - nodes[low]) / (nodes[low + 1] - nodes[low])};
}

double LogGrid::value(const Logs& logs) const {
  // Folds one axis at a time over the 2^rank corners.
  std::array<double, 1u << kMostAxes> corner{};
  std::array<Cell, kMostAxes> cells{};
  const std::size_t rank = axes_.size();
  std::size_t base = 0;
  for (std::size_t a = 0; a < rank; ++a) {
    cells[a] = cell(a, logs[a]);
    base += cells[a].low * strides_[a];
  }
  const std::size_t count = std::size_t{1} << rank;
  for (std::size_t c = 0; c < count; ++c) {
    std::size_t index = base;
    for (std::size_t a = 0; a < rank; ++a) {
      if ((c >> a & 1) != 0 && axes_[a].nodes.size() > 1) index += strides_[a];
    }
    corner[c] = values_[index];
  }
  for (std::size_t a = rank; a-- > 0;) {
    const std::size_t half = std::size_t{1} << a;
    for (std::size_t c = 0; c < half; ++c) corner[c] += cells[a].fraction * (corner[c + half] - corner[c]);
  }
  return corner[0];
}

std::vector<LogGrid::Corner> LogGrid::corners(const Logs& logs) const {
  std::vector<Corner> out;
  const std::size_t rank = axes_.size();
  for (std::size_t c = 0; c < std::size_t{1} << rank; ++c) {
    Corner corner{0, {}, 1};
    for (std::size_t a = 0; a < rank; ++a) {
      const Cell at = cell(a, logs[a]);
      const bool high = (c >> a & 1) != 0;
      corner.weight *= high ? at.fraction : 1 - at.fraction;
      const std::size_t node = std::min(at.low + (high ? 1 : 0), axes_[a].nodes.size() - 1);
      corner.index += node * strides_[a];
      corner.at[a] = axes_[a].nodes[node];
    }
    if (corner.weight > 1e-9) out.push_back(corner);
  }
  return out;
}

void run_monotone(const LogGrid& grid, std::vector<double>& values, const std::vector<bool>& increasing,
                  bool from_below) {
  std::size_t stride = values.size();
  for (std::size_t a = 0; a < grid.rank(); ++a) {
    const std::size_t n = grid.axes()[a].nodes.size();
    stride /= n;
    if (!increasing[a]) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (from_below) {
        if (i / stride % n > 0) values[i] = std::max(values[i], values[i - stride]);
      } else {
        const std::size_t j = values.size() - 1 - i;
        if (j / stride % n + 1 < n) values[j] = std::min(values[j], values[j + stride]);
      }
    }
  }
}

double make_monotone(LogGrid& grid, const std::vector<bool>& increasing) {
  std::vector<double>& values = grid.values();
  std::vector<double> up = values, down = values;
  run_monotone(grid, up, increasing, true);
  run_monotone(grid, down, increasing, false);
  double most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double mean = 0.5 * (up[i] + down[i]);
    most = std::max(most, std::abs(mean - values[i]));
    values[i] = mean;
  }
  return most;
}

}  // namespace shardplan
