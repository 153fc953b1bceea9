#pragma once
// From a table to a price: interpolation inside the measured region, the fitted form outside it, another GPU's rates by
// ratio.
#include <functional>

#include "base/basis.hpp"
#include "hardware/kernel_tables.hpp"

namespace shardplan {

/// A table chosen for one GPU.
struct ChosenTable {
  const KernelTable* table = nullptr;
  KernelRates rates;         // of the GPU that is priced; equal to the table's where it was measured on that GPU
  bool transferred = false;  // measured on a sibling, or for a neighbouring data type
  bool generic = false;      // no measurement at all: a datasheet and ordinary fractions
  double factor = 1;         // times the table: another library's published ratio
};

/// What a price stood on, for `kernel explain`.
struct KernelEvidence {
  const KernelTable* table = nullptr;
  LogGrid::Logs logs{};  // of the coordinates, clamped into the grid
  double outside = 0;    // sum of |log distance| from the measured region
  double ratio = 1;      // form at the asked work and rates over form at the clamped point, 1 inside;
                         // of a grid of ratios: measured over form
  KernelWork work;
  // Grouped products that no library was named for: whether a loop of single products (then `table` and `work` are
  // those of its largest group) stands in for the fused kernel, and what each of the two would take.
  bool loop = false;
  double fused_s = 0, loop_s = 0;
};

/// `logs`: logarithms of the asked coordinates in the order of the table's axes. `actual`: the work asked for.
/// `work_at(logs)`: the work of the grid point that has these coordinates. Factor: times everything (pass, alignment).
template <class WorkAt>
Price price_from_table(const ChosenTable& chosen, LogGrid::Logs logs, const KernelWork& actual, const WorkAt& work_at,
                       double factor = 1, KernelEvidence* evidence = nullptr);

/// The 80 % interval of a table's band around `seconds`, widened for what was not measured: 6 % for each doubling
/// outside the region, 12 % for a transfer, 30 % without any measurement (in logarithms, added in quadrature).
Price with_interval(const ChosenTable& chosen, double seconds, double table_seconds, double outside);

template <class WorkAt>
Price price_from_table(const ChosenTable& chosen, LogGrid::Logs logs, const KernelWork& actual, const WorkAt& work_at,
                       double factor, KernelEvidence* evidence) {
  const KernelTable& table = *chosen.table;
  factor *= chosen.factor * table.scale;
  if (table.grid.empty()) {
    const double seconds = table.form.seconds(actual, chosen.rates) * factor;
    if (evidence != nullptr) *evidence = {&table, logs, 1, 1, actual};
    return with_interval(chosen, seconds, seconds, 0);
  }
  const double outside = table.grid.clamp(logs);
  if (table.ratios) {
    const double miss = std::exp(table.grid.value(logs));
    const double seconds = miss * table.form.seconds(actual, chosen.rates);
    if (evidence != nullptr) *evidence = {&table, logs, outside, miss, actual};
    return with_interval(chosen, seconds * factor, seconds, outside);
  }
  const double base = std::exp(table.grid.value(logs));
  const KernelWork reference = work_at(logs);
  double ratio = 1;
  // Inside the region, on the GPU that was measured, with the work of the measurement: the measured time itself.
  const bool same_work = std::abs(reference.flops - actual.flops) <= 1e-6 * actual.flops &&
                         std::abs(reference.bytes - actual.bytes) <= 1e-6 * actual.bytes;
  if (!same_work || chosen.transferred) {
    ratio = table.form.seconds(actual, chosen.rates) / table.form.seconds(reference, table.rates);
  }
  if (evidence != nullptr) *evidence = {&table, logs, outside, ratio, actual};
  return with_interval(chosen, base * ratio * factor, base * ratio, outside);
}

}  // namespace shardplan
