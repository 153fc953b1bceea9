// shardplan validate --baseline, --fail-if: what moved since a saved answer, and limits on the figures.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/suggest.hpp"
#include "cli/validate.hpp"
#include "layouts/step/question.hpp"

namespace shardplan {

namespace {

constexpr std::size_t kMostRowsInText = 40;

std::optional<double> number_of(const Field& f, const char* key) {
  const auto v = f.find(key);
  return v ? std::optional<double>(v->number()) : std::nullopt;
}

FamilyAccuracy read_accuracy(const Field& f) {
  FamilyAccuracy a;
  a.n = static_cast<int>(f.at("n").count(0, 1 << 30));
  a.skipped = static_cast<int>(f.at("skipped").count(0, 1 << 30));
  a.mape = number_of(f, "mape");
  a.median_ape = number_of(f, "median_ape");
  a.p90_ape = number_of(f, "p90_ape");
  a.max_ape = number_of(f, "max_ape");
  a.bias = number_of(f, "bias");
  a.coverage_80 = number_of(f, "coverage_80");
  a.kendall_tau = number_of(f, "kendall_tau");
  a.regret = number_of(f, "regret");
  a.memory_mape = number_of(f, "memory_mape");
  return a;
}

SavedRow read_saved_row(const Field& f) {
  SavedRow row;
  row.id = f.at("id").text();
  row.family = f.at("family").text();
  row.measured_s = number_of(f, "measured_s").value_or(0);
  row.predicted_s = number_of(f, "predicted_s").value_or(0);
  row.predicted_memory = number_of(f, "predicted_memory_bytes");
  if (const auto v = f.find("skipped")) row.skipped = v->text();
  return row;
}

/// A comparison across other settings would call every row moved.
void check_settings(const Field& file, const ScoreOptions& now) {
  const auto then_flag = [&](const char* key) {
    const auto v = file.find(key);
    return v && v->boolean();
  };
  const auto check = [&](const char* key, const char* option, bool asked) {
    if (then_flag(key) != asked)
      throw InputError("--baseline", file.name() + " was saved " + (asked ? "without " : "with ") + option +
                                         ", this run is " + (asked ? "with" : "without") + " it");
  };
  check("leave_out", "--leave-out", now.leave_out);
  check("marked_only", "--marked-only", now.marked_only);
  std::uint32_t without = 0;
  if (const auto list = file.find("without")) {
    for (std::size_t i = 0; i < list->size(); ++i)
      for (std::size_t e = 0; e < kEffectNames.size(); ++e)
        if (list->item(i).text() == kEffectNames[e]) without |= std::uint32_t{1} << e;
  }
  if (without != now.without)
    throw InputError("--baseline", file.name() + " was saved with other effects switched off (--without)");
}

bool asked_for(const std::string& family, const std::vector<std::string>& families) {
  return families.empty() || std::find(families.begin(), families.end(), family) != families.end();
}

/// An answer of `validate --format json`, its rows and families as far as they are asked for now.
SavedAccuracy read_baseline(const std::string& path, const ScoreOptions& now) {
  const Field file = Field::read(path);
  if (!file.is_object() || !file.has("rows") || !file.has("families"))
    throw InputError(path, "expected a saved answer of `shardplan validate --format json` (rows, families)");
  check_settings(file, now);
  SavedAccuracy out;
  const Field rows = file.at("rows"), families = file.at("families");
  if (!rows.is_array()) rows.fail("expected an array, got " + rows.shown());
  if (!families.is_object()) families.fail("expected an object, got " + families.shown());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SavedRow row = read_saved_row(rows.item(i));
    if (asked_for(row.family, now.families)) out.rows.push_back(std::move(row));
  }
  for (const std::string& name : families.keys())
    if (asked_for(name, now.families)) out.families[name] = read_accuracy(families.at(name));
  // Figures of all rows are those of the same selection only.
  if (const auto overall = file.find("overall"); overall && now.families.empty())
    out.families[std::string(kOverall)] = read_accuracy(*overall);
  return out;
}

std::string value_text(const GateFigure& figure, double value) {
  if (figure.percent) return text_of_number(100 * value, 3) + " %";
  return text_of_number(value, 3);
}

std::string moved_text(const MovedRow& row) {
  using Kind = MovedRow::Kind;
  char change[32] = "";
  if (row.before > 0 && row.after > 0) std::snprintf(change, sizeof change, " (%+.1f %%)", 100 * row.change());
  const auto show = row.kind == Kind::memory ? text_of_bytes : text_of_seconds;
  switch (row.kind) {
    case Kind::prediction:
    case Kind::memory:
    case Kind::measurement:
      return show(row.before) + " -> " + show(row.after) + change;
    case Kind::now_skipped:
      return "was " + show(row.before) + ": " + (row.reason.empty() ? "no prediction" : row.reason);
    case Kind::now_predicted:
      return show(row.after);
    case Kind::gone:
      return "is not among the rows any more";
    case Kind::added:
      return row.reason.empty() ? show(row.after) : "skipped: " + row.reason;
  }
  return "";
}

void print_moved(const GateQuestion& q, const GateAnswer& a) {
  std::printf("\nagainst the baseline: %zu of %zu rows moved (predictions by more than %s %%)\n", a.moved.size(),
              a.baseline->rows.size(), text_of_number(100 * q.moved_by, 3).c_str());
  std::size_t shown = 0;
  for (const MovedRow& row : a.moved) {
    if (shown++ == kMostRowsInText) {
      std::printf("  ... and %zu more (all in --format json)\n", a.moved.size() - kMostRowsInText);
      break;
    }
    std::printf("  %-13s %s (%s): %s\n", std::string(kMovedNames[static_cast<std::size_t>(row.kind)]).c_str(),
                row.id.c_str(), row.family.c_str(), moved_text(row).c_str());
  }
}

/// Figures that changed, a line a family.
void print_family_changes(const GateAnswer& a, const AccuracyByFamily& now) {
  for (const auto& [family, accuracy] : now) {
    const auto then = a.baseline->families.find(family);
    if (then == a.baseline->families.end()) {
      std::printf("  family %s: not in the baseline\n", family.c_str());
      continue;
    }
    std::string line;
    for (const GateFigure& figure : gate_figures()) {
      const auto before = figure.of(then->second), after = figure.of(accuracy);
      const auto text = [&](const std::optional<double>& v) { return v ? value_text(figure, *v) : "none"; };
      if (text(before) == text(after)) continue;
      line += (line.empty() ? " " : ", ") + std::string(figure.name) + " " + text(before) + " -> " + text(after);
    }
    if (!line.empty()) std::printf("  family %s:%s\n", family.c_str(), line.c_str());
  }
  for (const auto& [family, accuracy] : a.baseline->families)
    if (!now.contains(family)) std::printf("  family %s: only in the baseline\n", family.c_str());
}

}  // namespace

GateAnswer ask_gate(const GateQuestion& q, const std::vector<ScoredRow>& rows, const AccuracyByFamily& now,
                    const ScoreOptions& options) {
  GateAnswer out;
  if (!q.baseline.empty()) {
    out.baseline = read_baseline(q.baseline, options);
    out.moved = moved_rows(out.baseline->rows, rows, q.moved_by);
  }
  out.broken = broken_limits(q.limits, now, out.baseline ? &out.baseline->families : nullptr, "--fail-if");
  return out;
}

void print_gate(const GateQuestion& q, const GateAnswer& a, const AccuracyByFamily& now) {
  if (a.baseline) {
    print_moved(q, a);
    print_family_changes(a, now);
  }
  if (q.limits.empty()) return;
  std::printf("\ngate: %s\n", a.broken.empty() ? "passed" : "FAILED");
  for (const BrokenLimit& b : a.broken) {
    const GateFigure& figure = *b.limit->figure;
    std::printf("  %s: %s is %s%s (fails if %s)\n", b.family.c_str(), std::string(figure.name).c_str(),
                value_text(figure, b.value).c_str(),
                b.baseline ? (", was " + value_text(figure, *b.baseline)).c_str() : "", b.limit->text.c_str());
  }
}

void add_gate_json(nlohmann::ordered_json& out, const GateQuestion& q, const GateAnswer& a, const AccuracyByFamily&) {
  using Json = nlohmann::ordered_json;
  if (a.baseline) {
    Json moved = Json::array(), families = Json::object();
    for (const MovedRow& row : a.moved) {
      Json one{{"id", row.id},
               {"family", row.family},
               {"what", std::string(kMovedNames[static_cast<std::size_t>(row.kind)])}};
      const char* unit = row.kind == MovedRow::Kind::memory ? "bytes" : "s";
      if (row.before > 0) one[std::string("before_") + unit] = row.before;
      if (row.after > 0) one[std::string("after_") + unit] = row.after;
      if (row.before > 0 && row.after > 0) one["change"] = row.change();
      if (!row.reason.empty()) one["skipped"] = row.reason;
      moved.push_back(std::move(one));
    }
    for (const auto& [name, accuracy] : a.baseline->families) families[name] = accuracy_json(accuracy);
    out["baseline"] = Json{{"moved_by", q.moved_by}, {"moved", std::move(moved)}, {"families", std::move(families)}};
  }
  if (q.limits.empty()) return;
  Json broken = Json::array();
  for (const BrokenLimit& b : a.broken) {
    Json one{{"family", b.family},
             {"limit", b.limit->text},
             {"figure", std::string(b.limit->figure->name)},
             {"value", b.value}};
    if (b.baseline) one["baseline"] = *b.baseline;
    broken.push_back(std::move(one));
  }
  out["gate"] = Json{{"passed", a.broken.empty()}, {"broken", std::move(broken)}};
}

}  // namespace shardplan
