#pragma once
// What validate can score: one row of the table a kind of file. A kind is added in its own cli/validate_<kind>.cpp.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/accuracy.hpp"
#include "base/csv.hpp"
#include "base/field.hpp"

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
/// Fits the step's constants on the runs of a file and writes step_constants.json.
void fit_step_constants(const RowFile&, const std::string& out, bool all);

}  // namespace shardplan
