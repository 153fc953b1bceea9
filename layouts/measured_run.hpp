#pragma once
// A measured training run (a row of a file with schema shardplan-runs/1) as the values that predict it.
#include <optional>
#include <string>
#include <vector>

#include "base/field.hpp"
#include "hardware/cluster.hpp"
#include "layouts/layout.hpp"
#include "layouts/memory.hpp"
#include "models/model.hpp"

namespace shardplan {

/// Which of the three figures a run's memory is (`unknown` is compared with allocated).
enum class MemoryKind { allocated, reserved, device, unknown };

/// Members that a row does not state are empty or false. Where `skipped` is set the row cannot be modelled and the
/// other values may be incomplete.
struct MeasuredRun {
  std::string id, family, question, group;
  std::string stack, stack_version;
  bool score = false, score_memory = false;
  std::optional<std::string> skipped;  // what is missing or not modelled

  Model model;
  Cluster cluster;
  Layout layout;
  Workload workload;
  std::string precision;           // as stated: fp8-delayed, fp8-tensor, ...
  bool recompute_unknown = false;  // predicted with the least recompute that fits
  bool split_unknown = false;
  bool pure_16bit = false;  // mixed_precision_mode pure: parameters, gradients and reduction in BF16
  std::optional<bool> balanced_routing;
  std::optional<bool> token_drop;  // capacity factor in use
  std::string notes;
  std::string model_note;  // where the row states no dimensions and its model is built in
  int month = 0;           // 202412: the date in the name of its source, 0 = none; stands in for an unstated release

  std::optional<double> step_time_s;
  std::optional<double> memory_bytes, reserved_bytes;
  MemoryKind memory_kind = MemoryKind::unknown;
};

/// Name of the built-in model that a row's member "model" means, where it states no dimensions of its own.
std::optional<std::string> built_in_model_of_run(const Field&);
/// The members "model" and "hardware" of a row: shape numbers (or a built-in model's); GPU, node and network.
Model model_of_run(const Field&);
Cluster cluster_of_run(const Field&);
/// One row. Throws InputError only where the row has no id; everything else that stands in the way is `skipped`.
MeasuredRun read_run(const Field& row);
/// The figure of a prediction that a run's memory is compared with: of that kind (unknown: allocated), largest of the
/// pipeline ranks or, where the stack's logs print the first one, of that.
double reported_bytes(const MemoryReport&, MemoryKind, const MemoryTraits&);
/// Every row of the file ({"schema": "shardplan-runs/1", "rows": [...]}).
std::vector<MeasuredRun> read_runs(const std::string& path);

}  // namespace shardplan
