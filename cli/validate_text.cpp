// The text of `validate`: figures by family, what was skipped and what was assumed.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "base/number_text.hpp"
#include "cli/validate.hpp"

namespace shardplan {

namespace {

constexpr std::size_t kMostIds = 4;

std::string percent_or_dash(const std::optional<double>& value) {
  char text[32];
  if (!value) return "-";
  std::snprintf(text, sizeof text, "%.1f", 100 * *value);
  return text;
}

struct Line {
  std::string name;
  FamilyAccuracy accuracy;
};

/// Families, each divided one below it where its rows have more than one part, and all rows together.
std::vector<Line> lines_of(const std::vector<ScoredRow>& rows) {
  std::map<std::string, std::map<std::string, std::vector<ScoredRow>>> families;
  for (const ScoredRow& row : rows) families[row.family][row.part].push_back(row);
  std::vector<Line> out;
  for (const auto& [name, accuracy] : accuracy_by_family(rows)) {
    out.push_back({name, accuracy});
    std::vector<Line> parts;
    for (const auto& [part, members] : families[name])
      if (!part.empty()) parts.push_back({"  " + name + " " + part, accuracy_of(members)});
    if (parts.size() > 1) out.insert(out.end(), parts.begin(), parts.end());
  }
  if (families.size() > 1) out.push_back({"overall", accuracy_of(rows)});
  return out;
}

void print_lines(const std::vector<Line>& lines, bool divided) {
  std::size_t widest = 6;
  for (const Line& line : lines) widest = std::max(widest, line.name.size());
  const int width = static_cast<int>(widest);
  std::printf("%-*s %6s %8s %7s %7s %7s %7s %7s %9s %6s", width, "family", "rows", "skipped", "MAPE%", "median%",
              "p90%", "max%", "bias%", "within80%", "tau");
  std::printf("%s  worst row\n", divided ? "  regret%  memory%" : "");
  for (const auto& [name, a] : lines) {
    std::printf("%-*s %6d %8d %7s %7s %7s %7s %7s %9s %6s", width, name.c_str(), a.n, a.skipped,
                percent_or_dash(a.mape).c_str(), percent_or_dash(a.median_ape).c_str(),
                percent_or_dash(a.p90_ape).c_str(), percent_or_dash(a.max_ape).c_str(), percent_or_dash(a.bias).c_str(),
                percent_or_dash(a.coverage_80).c_str(),
                a.kendall_tau ? text_of_number(*a.kendall_tau, 2).c_str() : "-");
    if (divided) std::printf(" %8s %8s", percent_or_dash(a.regret).c_str(), percent_or_dash(a.memory_mape).c_str());
    std::printf("  %s\n", a.worst.empty() ? "-" : a.worst.c_str());
  }
}

/// One line a text, with how many rows it concerns and the first of them.
void print_reasons(const char* head, const std::vector<ScoredRow>& rows, std::string ScoredRow::* text) {
  std::map<std::string, std::vector<std::string>> reasons;
  for (const ScoredRow& row : rows)
    if (!(row.*text).empty()) reasons[row.*text].push_back(row.id);
  for (const auto& [reason, ids] : reasons) {
    std::string some;
    for (std::size_t i = 0; i < std::min(ids.size(), kMostIds); ++i) some += (i > 0 ? ", " : "") + ids[i];
    std::printf("%s %zu: %s [%s%s]\n", head, ids.size(), reason.c_str(), some.c_str(),
                ids.size() > kMostIds ? ", ..." : "");
  }
}

}  // namespace

void print_accuracy(const std::vector<ScoredRow>& rows, bool divided) {
  print_lines(lines_of(rows), divided);
  std::printf("\n");
  print_reasons("skipped", rows, &ScoredRow::skipped);
  print_reasons("note on", rows, &ScoredRow::note);
}

}  // namespace shardplan
