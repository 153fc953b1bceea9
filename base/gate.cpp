#include "base/gate.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/pieces.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"

namespace shardplan {

namespace {

using Value = std::optional<double>;

constexpr std::array kFigures = {
    GateFigure{"mape", true, [](const FamilyAccuracy& a) { return a.mape; }},
    GateFigure{"median", true, [](const FamilyAccuracy& a) { return a.median_ape; }},
    GateFigure{"p90", true, [](const FamilyAccuracy& a) { return a.p90_ape; }},
    GateFigure{"max", true, [](const FamilyAccuracy& a) { return a.max_ape; }},
    GateFigure{"bias", true, [](const FamilyAccuracy& a) { return a.bias ? Value(std::abs(*a.bias)) : Value(); }},
    GateFigure{"coverage", false, [](const FamilyAccuracy& a) { return a.coverage_80; }},
    GateFigure{"tau", false, [](const FamilyAccuracy& a) { return a.kendall_tau; }},
    GateFigure{"regret", true, [](const FamilyAccuracy& a) { return a.regret; }},
    GateFigure{"memory", true, [](const FamilyAccuracy& a) { return a.memory_mape; }},
    GateFigure{"rows", false, [](const FamilyAccuracy& a) { return Value(a.n); }},
    GateFigure{"skipped", false, [](const FamilyAccuracy& a) { return Value(a.skipped); }},
};

const GateFigure& find_figure(const std::string& name, const std::string& shown, const std::string& where) {
  std::vector<std::string> known;
  for (const GateFigure& figure : kFigures) {
    if (figure.name == name) return figure;
    known.emplace_back(figure.name);
  }
  std::string all;
  for (const std::string& word : known) all += (all.empty() ? "" : ", ") + word;
  const std::string near = did_you_mean(name, known);
  throw InputError(
      where, shown + ": unknown figure \"" + name.substr(0, 60) + "\"" + (near.empty() ? "; known: " + all : near));
}

GateLimit parse_limit(const std::string& text, const std::string& where) {
  const std::string shown = "\"" + text.substr(0, 80) + "\"";
  // Names of families may hold < and >: the figure stands after the last colon.
  const std::size_t colon = text.rfind(':');
  const std::size_t begin = colon == std::string::npos ? 0 : colon + 1;
  const std::size_t at = text.find_first_of("<>", begin);
  if (at == std::string::npos)
    throw InputError(where, shown + ": expected [FAMILY:]FIGURE>NUMBER or [FAMILY:]FIGURE<NUMBER");
  GateLimit out;
  out.text = text;
  if (colon == 0) throw InputError(where, shown + ": no family before the colon");
  if (colon != std::string::npos) out.family = text.substr(0, colon);
  out.figure = &find_figure(text.substr(begin, at - begin), shown, where);
  out.above = text[at] == '>';
  std::string number = text.substr(at + 1);
  if (number.empty()) throw InputError(where, shown + ": no number after " + text[at]);
  out.change = number[0] == '+' || number[0] == '-';
  const double sign = number[0] == '-' ? -1 : 1;
  if (out.change) number.erase(0, 1);
  if (number.empty() || number.find_first_not_of("0123456789.") != std::string::npos)
    throw InputError(
        where, shown + ": expected a plain number after " + text[at] + ", got \"" + text.substr(at + 1, 60) + "\"");
  out.number = sign * parse_number(number, where) / (out.figure->percent ? 100 : 1);
  return out;
}

/// Families that a limit speaks of.
std::vector<std::string> families_of(const GateLimit& limit, const AccuracyByFamily& now, const std::string& where) {
  std::vector<std::string> names;
  for (const auto& [name, accuracy] : now)
    if (limit.family.empty() ? name != kOverall : name == limit.family) names.push_back(name);
  if (!limit.family.empty() && names.empty()) {
    std::vector<std::string> known;
    for (const auto& [name, accuracy] : now) known.push_back(name);
    throw InputError(where, "\"" + limit.text + "\": no row is of family \"" + limit.family + "\"" +
                                did_you_mean(limit.family, known));
  }
  return names;
}

Value then_of(const GateLimit& limit, const AccuracyByFamily* then, const std::string& family) {
  if (then == nullptr) return {};
  const auto found = then->find(family);
  return found == then->end() ? Value() : limit.figure->of(found->second);
}

}  // namespace

std::span<const GateFigure> gate_figures() { return kFigures; }

std::vector<GateLimit> parse_gate_limits(const std::string& text, const std::string& where) {
  std::vector<GateLimit> out;
  for (const std::string_view part : pieces_of(text, ',')) {
    if (part.empty()) throw InputError(where, "\"" + text.substr(0, 80) + "\": an empty limit");
    out.push_back(parse_limit(std::string(part), where));
  }
  return out;
}

std::vector<BrokenLimit> broken_limits(std::span<const GateLimit> limits, const AccuracyByFamily& now,
                                       const AccuracyByFamily* then, const std::string& where) {
  std::vector<BrokenLimit> out;
  for (const GateLimit& limit : limits) {
    if (limit.change && then == nullptr)
      throw InputError(where, "\"" + limit.text + "\": a signed number is a change: it needs --baseline");
    bool held = false;
    for (const std::string& family : families_of(limit, now, where)) {
      const Value value = limit.figure->of(now.at(family));
      const Value before = then_of(limit, then, family);
      if (!value || (limit.change && !before)) continue;
      held = true;
      const double seen = limit.change ? *value - *before : *value;
      if (limit.above ? seen > limit.number : seen < limit.number)
        out.push_back({family, &limit, *value, limit.change ? before : Value()});
    }
    if (!held)
      throw InputError(where, "\"" + limit.text +
                                  "\": " + (limit.family.empty() ? "no family" : "family \"" + limit.family + "\"") +
                                  (limit.family.empty() ? " has " : " has no ") + std::string(limit.figure->name) +
                                  (limit.change ? " both now and in the baseline" : ""));
  }
  return out;
}

namespace {

/// Differences of one row, the gravest only.
std::optional<MovedRow> difference(const SavedRow& then, const ScoredRow& now, double by) {
  using Kind = MovedRow::Kind;
  MovedRow out{Kind::prediction, now.id, now.family, then.predicted_s, now.predicted_s, now.skipped};
  const auto apart = [&](double a, double b) { return a > 0 && b > 0 && std::abs(b / a - 1) > by; };
  const bool predicted_then = then.skipped.empty() && then.predicted_s > 0;
  const bool predicted_now = now.skipped.empty() && now.predicted_s > 0;
  if (predicted_then != predicted_now) {
    out.kind = predicted_now ? Kind::now_predicted : Kind::now_skipped;
    return out;
  }
  if (predicted_now && apart(then.predicted_s, now.predicted_s)) return out;
  if (then.predicted_memory && now.predicted_memory && apart(*then.predicted_memory, *now.predicted_memory)) {
    out.kind = Kind::memory, out.before = *then.predicted_memory, out.after = *now.predicted_memory;
    return out;
  }
  // The measurement itself is another one: any change counts.
  const double before = std::max(0.0, then.measured_s), after = std::max(0.0, now.measured_s);
  if (std::abs(after - before) > 1e-9 * std::max(after, before)) {
    out.kind = Kind::measurement, out.before = before, out.after = after;
    return out;
  }
  return {};
}

}  // namespace

std::vector<MovedRow> moved_rows(std::span<const SavedRow> then, std::span<const ScoredRow> now, double by) {
  using Kind = MovedRow::Kind;
  std::map<std::pair<std::string, int>, const SavedRow*> saved;
  std::map<std::string, int> seen;
  for (const SavedRow& row : then) saved[{row.id, seen[row.id]++}] = &row;
  seen.clear();
  std::vector<MovedRow> out;
  for (const ScoredRow& row : now) {
    const auto found = saved.find({row.id, seen[row.id]++});
    if (found == saved.end()) {
      out.push_back({Kind::added, row.id, row.family, 0, row.predicted_s, row.skipped});
      continue;
    }
    if (const auto moved = difference(*found->second, row, by)) out.push_back(*moved);
    saved.erase(found);
  }
  seen.clear();
  for (const SavedRow& row : then) {
    if (saved.contains({row.id, seen[row.id]++}))
      out.push_back({Kind::gone, row.id, row.family, row.predicted_s, 0, ""});
  }
  std::stable_sort(out.begin(), out.end(), [](const MovedRow& a, const MovedRow& b) {
    if (a.kind != b.kind) return a.kind < b.kind;
    return std::abs(a.change()) > std::abs(b.change());
  });
  return out;
}

}  // namespace shardplan
