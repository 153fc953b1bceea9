#pragma once
// What validate can score: one row of the table a kind of file. A kind is added in its own cli/validate_<kind>.cpp.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/accuracy.hpp"
#include "base/csv.hpp"
#include "base/field.hpp"
#include "base/gate.hpp"

namespace shardplan {

/// The rows' file: a CSV with a header, or one JSON document.
struct RowFile {
  std::string path;
  std::optional<CsvTable> csv;
  std::optional<Field> json;
};

struct ScoreOptions {
  std::vector<std::string> families;  // empty = all
  bool leave_out = false;             // each row is predicted from tables that were fitted without it
  int folds = 0;                      // training runs: > 0 = each predicted with constants fitted on the other folds
  bool marked_only = false;           // training runs: only figures that their file marks as fit for scoring
  std::uint32_t without = 0;          // training runs: bit set of effects switched off
};

struct RowKind {
  std::string_view name;  // "kernel rows", for errors and help
  bool (*matches)(const RowFile&);
  std::vector<ScoredRow> (*score)(const RowFile&, const ScoreOptions&);
};

/// The kinds that the program knows, in the order in which they are asked.
std::span<const RowKind> row_kinds();

// One line a kind.
bool is_kernel_rows(const RowFile&);
std::vector<ScoredRow> score_kernel_rows(const RowFile&, const ScoreOptions&);
bool is_deepep_rows(const RowFile&);
std::vector<ScoredRow> score_deepep_rows(const RowFile&, const ScoreOptions&);
bool is_collective_rows(const RowFile&);
std::vector<ScoredRow> score_collective_rows(const RowFile&, const ScoreOptions&);
bool is_training_runs(const RowFile&);
std::vector<ScoredRow> score_training_runs(const RowFile&, const ScoreOptions&);
/// Tables by family, skipped rows by reason, notes. `divided` = training runs: memory, regret and parts of families
/// too.
void print_accuracy(const std::vector<ScoredRow>&, bool divided);
/// The list of the step's fitted constants; leave_out = those fitted on half of the questions.
void print_step_constants(bool leave_out, bool json);

/// What `--baseline` and `--fail-if` ask.
struct GateQuestion {
  std::string baseline;  // file, "" = none
  std::vector<GateLimit> limits;
  double moved_by = 0.01;  // a row has moved when its prediction changes by more than this fraction
  bool asked() const { return !baseline.empty() || !limits.empty(); }
};
struct GateAnswer {
  std::optional<SavedAccuracy> baseline;
  std::vector<MovedRow> moved;
  std::vector<BrokenLimit> broken;
};
/// InputError where the baseline is no saved answer, or was asked otherwise (--leave-out, --marked-only, --without).
GateAnswer ask_gate(const GateQuestion&, const std::vector<ScoredRow>&, const AccuracyByFamily&, const ScoreOptions&);
void print_gate(const GateQuestion&, const GateAnswer&, const AccuracyByFamily&);
void add_gate_json(nlohmann::ordered_json&, const GateQuestion&, const GateAnswer&, const AccuracyByFamily&);
/// Fractions, null where absent; the keys of the promise.
nlohmann::ordered_json accuracy_json(const FamilyAccuracy&);

/// Fits the step's constants on the runs of a file and writes step_constants.json.
void fit_step_constants(const RowFile&, const std::string& out, bool all, int rounds);

}  // namespace shardplan
