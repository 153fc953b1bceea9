#include "hardware/calibrate_kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "hardware/kernel_fit.hpp"
#include "hardware/kernel_shapes.hpp"

namespace shardplan {

namespace {

std::uint64_t mixed(std::uint64_t h, std::uint64_t word) {
  h = (h ^ word) * 0xFF51AFD7ED558CCDULL;
  return h ^ h >> 32;
}

/// Distinct values of a coordinate as nodes, thinned to at most `most` that span the range evenly in the logarithm.
std::vector<double> nodes_of(std::vector<double> values, std::size_t most) {
  std::sort(values.begin(), values.end());
  std::vector<double> distinct;
  for (const double v : values) {
    if (distinct.empty() || v > distinct.back() * 1.001) distinct.push_back(v);
  }
  if (distinct.size() <= most) return distinct;
  std::vector<double> out;
  const double low = std::log(distinct.front()), high = std::log(distinct.back());
  for (std::size_t i = 0; i < most; ++i) {
    const double value = std::exp(low + (high - low) * double(i) / double(std::max<std::size_t>(most, 2) - 1));
    out.push_back(std::round(value * 1000) / 1000);
  }
  return out;
}

struct Layout {
  std::vector<std::string> names;
  std::vector<std::size_t> most;  // nodes an axis at most
  std::vector<bool> increasing;
};

Layout layout_of(KernelRowKind kind) {
  switch (kind) {
    case KernelRowKind::gemm:
      return {{"m", "n", "k"}, {11, 8, 8}, {true, true, true}};
    case KernelRowKind::attention:
      return {{"batch_heads", "seq", "group", "head_dim"}, {6, 6, 4, 4}, {true, true, false, true}};
    case KernelRowKind::memory:
      return {{"bytes"}, {14}, {true}};
    case KernelRowKind::experts:
      break;
  }
  return {
      {"rows_per_expert", "active_experts", "inter", "largest_over_mean"}, {8, 4, 4, 2}, {false, false, false, false}};
}

FitPoint point_of(const KernelRow& row) {
  FitPoint p;
  p.log_seconds = std::log(row.measured);
  p.fold = shape_hash(row) >> 8;
  if (row.kind == KernelRowKind::gemm) {
    p.logs = {std::log(double(row.gemm.m)), std::log(double(row.gemm.n)), std::log(double(row.gemm.k))};
    p.work = gemm_work(row.gemm);
  } else if (row.kind == KernelRowKind::attention) {
    const AttentionFeatures f = attention_features(row.attention);
    p.logs = {std::log(f.batch_heads), std::log(f.seq), std::log(f.group), std::log(f.head_dim)};
    p.work = attention_work(row.attention);
  } else if (row.kind == KernelRowKind::memory) {
    p.logs = {std::log(row.bytes)};
    p.work = {0, row.bytes};
  } else {
    const std::vector<std::int64_t> sizes = timed_group_sizes(row);
    const ExpertFeatures f = expert_features(expert_layer(row, sizes));
    p.logs = expert_logs(f);
    p.work = expert_work(f, bytes_of(row.type));
  }
  return p;
}

FitSpec spec_of(const KernelRow& first, const std::vector<FitPoint>& points) {
  const Layout layout = layout_of(first.kind);
  FitSpec spec;
  spec.increasing = layout.increasing;
  for (std::size_t a = 0; a < layout.names.size(); ++a) {
    std::vector<double> values;
    for (const FitPoint& p : points) values.push_back(std::exp(p.logs[a]));
    spec.axes.push_back({layout.names[a], nodes_of(values, layout.most[a])});
    for (double& node : spec.axes.back().nodes) node = std::round(node * 1000) / 1000;
  }
  const double bytes = bytes_of(first.type), kv_bytes = bytes_of(first.attention.kv_type);
  switch (first.kind) {
    case KernelRowKind::gemm:
      spec.work_at = [bytes](const LogGrid::Logs& at) {
        return gemm_work(std::exp(at[0]), std::exp(at[1]), std::exp(at[2]), bytes);
      };
      break;
    case KernelRowKind::attention:
      spec.work_at = [bytes, kv_bytes](const LogGrid::Logs& at) {
        return attention_work({std::exp(at[0]), std::exp(at[1]), std::exp(at[2]), std::exp(at[3])}, bytes, kv_bytes);
      };
      break;
    case KernelRowKind::memory:
      spec.work_at = [](const LogGrid::Logs& at) { return KernelWork{0, std::exp(at[0])}; };
      break;
    case KernelRowKind::experts:
      spec.work_at = [bytes, like = ExpertFeatures{1, 1, 1, 1, double(first.hidden), 1, 1}](const LogGrid::Logs& at) {
        return expert_work(expert_features_at(at, like), bytes);
      };
      break;
  }
  return spec;
}

/// Expert layers are tabled by model family: kernels are tuned for their widths. "4096x128x8": hidden, experts, top-k.
std::string family_of(const KernelRow& row) {
  if (row.kind == KernelRowKind::memory) return std::string(kMemoryKernelNames[static_cast<std::size_t>(row.memory)]);
  if (row.kind != KernelRowKind::experts) return "";
  return std::to_string(row.hidden) + "x" + std::to_string(row.experts) + "x" + std::to_string(row.top_k);
}

using TableKey = std::tuple<KernelRowKind, DataType, DataType, std::string, std::string>;
TableKey table_key(const KernelRow& row) {
  return {row.kind, row.type, row.attention.kv_type, row.library, family_of(row)};
}

KernelTable table_of(const std::vector<const KernelRow*>& rows, const Gpu& gpu, const KernelCalibration& how) {
  const KernelRow& first = *rows.front();
  KernelTable table;
  constexpr std::array<KernelClass, 4> classes{KernelClass::gemm, KernelClass::attention, KernelClass::experts,
                                               KernelClass::memory};
  table.kernel = classes[static_cast<std::size_t>(first.kind)];
  table.type = first.type;
  table.kv_type = first.attention.kv_type;
  table.library = first.library;
  table.variant = family_of(first);
  table.source = first.source.substr(0, first.source.find(' ')) + ", " + first.version + ", " +
                 std::to_string(rows.size()) + " rows";
  table.date = how.date;
  table.ratios = first.kind == KernelRowKind::experts;
  table.rates = {gpu.peak(first.type), gpu.hbm_bytes_per_second.value};
  if (table.rates.peak <= 0) table.rates.peak = first.peak;
  std::vector<FitPoint> points;
  for (const KernelRow* row : rows) points.push_back(point_of(*row));
  fit_table(table, points, spec_of(first, points), how.folds);
  if (table.bands.empty()) table.bands = {{0, 0.8, 1.25}};
  return table;
}

}  // namespace

std::uint64_t shape_hash(const KernelRow& row) {
  std::uint64_t h = 0x9E3779B97F4A7C15ULL;
  const AttentionShape& a = row.attention;
  for (const std::int64_t word : {row.gemm.m, row.gemm.n, row.gemm.k, a.batch, a.q_len, a.kv_len, a.heads, a.kv_heads,
                                  a.head_dim, row.tokens, row.hidden, row.inter, row.top_k, row.experts, row.tp, row.ep,
                                  std::int64_t(row.skew * 1000), std::int64_t(row.bytes)}) {
    h = mixed(h, static_cast<std::uint64_t>(word));
  }
  return h;
}

std::vector<KernelTable> tables_from_rows(const std::vector<KernelRow>& rows, const Gpu& gpu,
                                          const KernelCalibration& how) {
  std::map<TableKey, std::vector<const KernelRow*>> groups;
  for (const KernelRow& row : rows) {
    if (row.unusable.empty() && row.measured > 0) groups[table_key(row)].push_back(&row);
  }
  std::vector<KernelTable> out;
  for (const auto& [key, members] : groups) out.push_back(table_of(members, gpu, how));
  return out;
}

namespace {

bool same_place(const KernelTable& a, const KernelTable& b) {
  return a.kernel == b.kernel && a.type == b.type && a.kv_type == b.kv_type && a.library == b.library &&
         a.variant == b.variant;
}

void add_missing(std::vector<KernelTable>& tables, const std::vector<KernelTable>& more, bool measured_only) {
  for (const KernelTable& table : more) {
    if (measured_only && table.left_out.n == 0) continue;  // a published figure: its own file has the newest
    const bool there =
        std::any_of(tables.begin(), tables.end(), [&](const KernelTable& t) { return same_place(t, table); });
    if (!there) tables.push_back(table);
  }
}

}  // namespace

KernelTables calibrate_kernels(const std::vector<KernelRow>& rows, const Gpu& gpu, const KernelCalibration& how) {
  const KernelTables *figures = published_kernel_figures(gpu.name), *known = builtin_kernel_tables(gpu.name);
  KernelTables out;
  if (figures != nullptr || known != nullptr) {
    out = figures != nullptr ? *figures : *known;
  } else {
    out.launch_source = "the shortest measured kernel";
    for (const KernelRow& row : rows)
      out.launch_floor = &row == &rows.front() ? row.measured : std::min(out.launch_floor, row.measured);
  }
  out.name = gpu.name;
  out.tables = tables_from_rows(rows, gpu, how);
  if (known != nullptr) add_missing(out.tables, known->tables, figures != nullptr);
  if (figures != nullptr) add_missing(out.tables, figures->tables, false);
  return out;
}

std::vector<Price> left_out_prices(const std::vector<KernelRow>& rows, const Gpu& gpu, int folds) {
  std::vector<Price> out(rows.size());
  for (int fold = 0; fold < folds; ++fold) {
    // Other bits of the hash than the folds inside a fit use.
    const auto is_left = [&](const KernelRow& row) {
      return static_cast<int>((shape_hash(row) >> 32) % static_cast<std::uint64_t>(folds)) == fold;
    };
    std::vector<KernelRow> kept;
    for (const KernelRow& row : rows) {
      if (!is_left(row)) kept.push_back(row);
    }
    auto tables = std::make_shared<KernelTables>();
    tables->name = gpu.name;
    tables->tables = tables_from_rows(kept, gpu, {});
    const KernelModel model(gpu, Rates::calibrated, tables);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!is_left(rows[i]) || !rows[i].unusable.empty()) continue;
      const bool there = std::any_of(kept.begin(), kept.end(),
                                     [&](const KernelRow& row) { return table_key(row) == table_key(rows[i]); });
      if (there) out[i] = price_row(model, rows[i]);
    }
  }
  return out;
}

}  // namespace shardplan
