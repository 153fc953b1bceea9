#pragma once
// A gate for accuracy: limits on the figures that sum rows up, and what has moved since a saved run.
//
// A limit is [FAMILY:]FIGURE>NUMBER or [FAMILY:]FIGURE<NUMBER: it is broken where the figure lies beyond the number.
// Errors, bias, regret and memory are in percent; tau, coverage, rows and skipped are plain. A signed number (mape>+1,
// tau<-0.05) is a change against the baseline. Without FAMILY it holds for every family that has the figure; the family
// "overall" is all rows together. A limit that no family can be held against is a mistake, not a pass.
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/accuracy.hpp"

namespace shardplan {

using AccuracyByFamily = std::map<std::string, FamilyAccuracy>;
inline constexpr std::string_view kOverall = "overall";

/// A figure of a family that can be limited.
struct GateFigure {
  std::string_view name;
  bool percent;  // written in percent, kept as a fraction
  std::optional<double> (*of)(const FamilyAccuracy&);
};
std::span<const GateFigure> gate_figures();

struct GateLimit {
  std::string family;  // "" = every family
  const GateFigure* figure = nullptr;
  bool above = true;    // broken where the figure is above the number, else below
  bool change = false;  // the number is a change against the baseline
  double number = 0;    // in the figure's own unit (fractions)
  std::string text;     // as written
};
/// "mape>7,regret>2,tau<0.8,mbridge:mape>10"; InputError with `where` names the part that is wrong.
std::vector<GateLimit> parse_gate_limits(const std::string& text, const std::string& where);

struct BrokenLimit {
  std::string family;
  const GateLimit* limit;
  double value = 0;                // the figure, a fraction where the figure is in percent
  std::optional<double> baseline;  // the figure then, for changes
};
/// Limits broken, in their order and that of the families. `now` and `then` hold "overall" too; `then` may be null.
/// InputError where a limit can be held against nothing.
std::vector<BrokenLimit> broken_limits(std::span<const GateLimit>, const AccuracyByFamily& now,
                                       const AccuracyByFamily* then, const std::string& where);

/// What a saved answer says of one row.
struct SavedRow {
  std::string id, family;
  double measured_s = 0, predicted_s = 0;  // 0 = none
  std::optional<double> predicted_memory;
  std::string skipped;
};
struct SavedAccuracy {
  std::vector<SavedRow> rows;
  AccuracyByFamily families;  // "overall" included where it was saved
};

struct MovedRow {
  enum class Kind { prediction, memory, measurement, now_skipped, now_predicted, gone, added };
  Kind kind = Kind::prediction;
  std::string id, family;
  double before = 0, after = 0;  // seconds, or bytes of memory
  std::string reason;            // why it is skipped now
  /// after / before - 1; 0 where there is no before.
  double change() const { return before > 0 ? after / before - 1 : 0; }
};
inline constexpr std::array<std::string_view, 7> kMovedNames = {"prediction",    "memory", "measurement", "now skipped",
                                                                "now predicted", "gone",   "added"};
/// Rows whose prediction changed by more than `by` (a fraction), or that came, went or changed otherwise; the largest
/// changes first, equal ones in the order of the rows. Rows are matched by id; repeated ids in their order.
std::vector<MovedRow> moved_rows(std::span<const SavedRow> then, std::span<const ScoredRow> now, double by);

}  // namespace shardplan
