#pragma once
// Log seconds on a regular grid of up to five coordinates, interpolated linearly in the logarithms of the coordinates.
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shardplan {

/// One coordinate of a grid: its name and its nodes, ascending, in natural units; at least one.
struct GridAxis {
  std::string name;
  std::vector<double> nodes;
};

/// A value per node. Multilinear in log(coordinate): monotone between nodes wherever the nodes are monotone.
class LogGrid {
 public:
  static constexpr std::size_t kMostAxes = 5;
  using Logs = std::array<double, kMostAxes>;

  LogGrid() = default;
  /// `values` row-major, last axis fastest; their number is the product of the axes' lengths.
  LogGrid(std::vector<GridAxis> axes, std::vector<double> values);

  bool empty() const { return values_.empty(); }
  std::size_t rank() const { return axes_.size(); }
  const std::vector<GridAxis>& axes() const { return axes_; }
  const std::vector<double>& values() const { return values_; }
  std::vector<double>& values() { return values_; }

  /// Moves `logs` (logarithms of the coordinates) into the grid's box. Returns how far outside they were: the sum over
  /// axes of |log distance|, 0 inside.
  double clamp(Logs& logs) const;
  /// Says which part of the box was measured: `outside` is counted from there (default: the whole box).
  void set_measured(const LogGrid& part);
  bool is_measured(const std::array<double, kMostAxes>& at) const;
  /// The interpolated value at clamped logs.
  double value(const Logs& logs) const;

  /// A corner of the cell around clamped logs that takes part in the interpolation.
  struct Corner {
    std::size_t index;                 // into values()
    std::array<double, kMostAxes> at;  // natural coordinates
    double weight;
  };
  std::vector<Corner> corners(const Logs& logs) const;

 private:
  struct Cell {
    std::size_t low;  // index of the node below
    double fraction;  // 0..1 towards the node above
  };
  Cell cell(std::size_t axis, double log) const;

  std::vector<GridAxis> axes_;
  std::vector<std::vector<double>> logs_;  // log of the nodes
  std::vector<std::size_t> strides_;
  std::vector<double> values_;
  std::vector<double> least_, most_;  // logs of the measured region, per axis
};

/// Along every axis marked in `increasing`: the running maximum from below (from_below) or the running minimum from
/// above. `values` are of the grid's nodes.
void run_monotone(const LogGrid&, std::vector<double>& values, const std::vector<bool>& increasing, bool from_below);

/// Makes values nondecreasing along the axes marked in `increasing`: the mean of the running maximum from below and the
/// running minimum from above, both monotone. Returns the largest change made.
double make_monotone(LogGrid& grid, const std::vector<bool>& increasing);

}  // namespace shardplan
