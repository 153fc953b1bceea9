#pragma once
// Measured against predicted: one scored row per measurement, and the figures that sum a family of rows up.
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace shardplan {

struct ScoredRow {
  std::string id;
  std::string family;
  double measured_s = 0;  // <= 0: the row measured no time
  double predicted_s = 0;
  std::optional<double> low_s, high_s;     // 80 % interval
  std::optional<double> measured_memory;   // bytes
  std::optional<double> predicted_memory;  // bytes
  std::string skipped;                     // why it was not predicted; empty = it was
  std::string question;  // rows that answer one question (same model, machine and batch) are ranked among
                         // themselves; empty = not ranked
  std::string note;      // what was assumed ("recompute unknown: none")
  std::string part;      // of its family ("dense", "moe"), for readers; empty = the family is not divided

  bool scored() const { return skipped.empty() && measured_s > 0 && predicted_s > 0; }
  double error() const { return predicted_s / measured_s - 1; }
};

/// Fractions, not percent; absent where no row gives them.
struct FamilyAccuracy {
  int n = 0;  // rows scored
  int skipped = 0;
  std::optional<double> mape, median_ape, p90_ape, max_ape;
  std::string worst;                  // id of the row with max_ape, the first of equals
  std::optional<double> bias;         // mean signed error
  std::optional<double> coverage_80;  // share of measured times within [low, high]
  std::optional<double> kendall_tau;  // over pairs of one question that are at least 5 % apart in measured time
  std::optional<double>
      regret;  // mean over questions: measured time of the predicted best over the measured best, less 1
  std::optional<double> memory_mape;
};

FamilyAccuracy accuracy_of(std::span<const ScoredRow> rows);
/// By family, in the order of the names.
std::map<std::string, FamilyAccuracy> accuracy_by_family(std::span<const ScoredRow> rows);

/// The value at fraction q of sorted values, linear between neighbours; values must not be empty.
double quantile(std::vector<double> values, double q);

}  // namespace shardplan
