#include "hardware/kernel_extend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hardware/kernel_shapes.hpp"

namespace shardplan {

namespace {

/// How far each coordinate is continued, and whether more of it takes more time.
struct Reach {
  std::string_view axis;
  double least, most;
  bool increasing;
};
constexpr std::array<Reach, 7> kReach{{{"m", 1, 1 << 20, true},
                                       {"n", 16, 1 << 19, true},
                                       {"k", 16, 1 << 19, true},
                                       {"batch_heads", 0.25, 1 << 14, true},
                                       {"seq", 16, 1 << 21, true},
                                       {"group", 1, 1, false},
                                       {"head_dim", 32, 512, true}}};

const Reach* reach_of(const std::string& axis) {
  for (const Reach& reach : kReach) {
    if (reach.axis == axis) return &reach;
  }
  return nullptr;
}

GridAxis continued(const GridAxis& axis, const Reach& reach) {
  GridAxis out{axis.name, {}};
  for (double x = axis.nodes.front() / 2; x >= reach.least; x /= 2) out.nodes.insert(out.nodes.begin(), x);
  out.nodes.insert(out.nodes.end(), axis.nodes.begin(), axis.nodes.end());
  for (double x = axis.nodes.back() * 2; x <= reach.most; x *= 2) out.nodes.push_back(x);
  return out;
}

KernelWork work_at(const KernelTable& table, const LogGrid::Logs& at) {
  const double bytes = bytes_of(table.type), kv_bytes = bytes_of(table.kv_type);
  if (table.kernel == KernelClass::gemm) return gemm_work(std::exp(at[0]), std::exp(at[1]), std::exp(at[2]), bytes);
  return attention_work({std::exp(at[0]), std::exp(at[1]), std::exp(at[2]), std::exp(at[3])}, bytes, kv_bytes);
}

void extend(KernelTable& table) {
  const LogGrid inner = table.grid;
  std::vector<GridAxis> axes;
  std::vector<bool> increasing;
  std::size_t count = 1;
  for (const GridAxis& axis : inner.axes()) {
    const Reach* reach = reach_of(axis.name);
    if (reach == nullptr) return;  // a table of another layout
    axes.push_back(reach->most > reach->least ? continued(axis, *reach) : axis);
    increasing.push_back(reach->increasing);
    count *= axes.back().nodes.size();
  }
  std::vector<double> values(count), least(count), most(count);
  for (std::size_t i = 0; i < count; ++i) {
    LogGrid::Logs at{};
    std::size_t rest = i;
    for (std::size_t a = axes.size(); a-- > 0;) {
      at[a] = std::log(axes[a].nodes[rest % axes[a].nodes.size()]);
      rest /= axes[a].nodes.size();
    }
    LogGrid::Logs edge = at;
    const bool measured = inner.clamp(edge) <= 0;
    values[i] = inner.value(edge);
    if (!measured) {
      values[i] += std::log(table.form.seconds(work_at(table, at), table.rates) /
                            table.form.seconds(work_at(table, edge), table.rates));
    }
    least[i] = measured ? values[i] : -std::numeric_limits<double>::infinity();
    most[i] = measured ? values[i] : std::numeric_limits<double>::infinity();
  }
  LogGrid grid(std::move(axes), std::move(values));
  // Outer nodes between the measured ones below and above them, then the running maximum: measured nodes cannot move.
  run_monotone(grid, least, increasing, true);
  run_monotone(grid, most, increasing, false);
  for (std::size_t i = 0; i < count; ++i) grid.values()[i] = std::min(std::max(grid.values()[i], least[i]), most[i]);
  run_monotone(grid, grid.values(), increasing, true);
  grid.set_measured(inner);
  table.grid = std::move(grid);
}

}  // namespace

KernelTables extended(const KernelTables& tables) {
  KernelTables out = tables;
  for (KernelTable& table : out.tables) {
    const bool times = table.kernel == KernelClass::gemm || table.kernel == KernelClass::attention;
    if (times && !table.grid.empty() && !table.ratios) extend(table);
  }
  return out;
}

}  // namespace shardplan
