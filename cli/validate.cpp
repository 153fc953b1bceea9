// shardplan validate: measured against predicted, row by row and by family.
#include "cli/validate.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"

namespace shardplan {

namespace {

constexpr std::array kRowKinds = {
    RowKind{"kernel rows", is_kernel_rows, score_kernel_rows},
    RowKind{"DeepEP rows", is_deepep_rows, score_deepep_rows},
    RowKind{"collective rows", is_collective_rows, score_collective_rows},
    RowKind{"training runs", is_training_runs, score_training_runs},
};

struct Options {
  std::string rows, format = "text";
  std::vector<std::string> families;
  bool leave_out = false;
  std::string fit_constants;
  bool fit_all = false;
};

RowFile read_rows(const std::string& path) {
  RowFile file{path, {}, {}};
  if (path.size() > 5 && path.substr(path.size() - 5) == ".json") {
    file.json = Field::read(path);
  } else {
    file.csv = CsvTable::read(path);
  }
  return file;
}

std::vector<ScoredRow> score(const RowFile& file, const ScoreOptions& options) {
  for (const RowKind& kind : row_kinds()) {
    if (kind.matches(file)) return kind.score(file, options);
  }
  std::string known;
  for (const RowKind& kind : row_kinds()) known += (known.empty() ? "" : ", ") + std::string(kind.name);
  throw InputError(file.path, "its header is of no kind that can be scored (" + known + ")");
}

void keep_families(std::vector<ScoredRow>& rows, const std::vector<std::string>& families) {
  if (families.empty()) return;
  std::set<std::string> known;
  for (const ScoredRow& row : rows) known.insert(row.family);
  const std::vector<std::string> names(known.begin(), known.end());
  for (const std::string& family : families) {
    if (known.count(family) == 0)
      throw InputError("--family", "no row is of family \"" + family + "\"" + did_you_mean(family, names));
  }
  std::erase_if(rows, [&](const ScoredRow& row) {
    return std::find(families.begin(), families.end(), row.family) == families.end();
  });
}

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json json_of(const ScoredRow& row) {
  nlohmann::ordered_json out{{"id", row.id}, {"family", row.family}};
  out["measured_s"] = row.measured_s > 0 ? nlohmann::ordered_json(row.measured_s) : nlohmann::ordered_json(nullptr);
  if (row.skipped.empty()) {
    out["predicted_s"] = row.predicted_s;
    out["low_s"] = or_null(row.low_s);
    out["high_s"] = or_null(row.high_s);
    if (row.measured_s > 0) out["error"] = row.error();
  }
  if (row.measured_memory) out["measured_memory_bytes"] = *row.measured_memory;
  if (row.predicted_memory) out["predicted_memory_bytes"] = *row.predicted_memory;
  if (!row.skipped.empty()) out["skipped"] = row.skipped;
  if (!row.note.empty()) out["note"] = row.note;
  return out;
}

nlohmann::ordered_json json_of(const FamilyAccuracy& a) {
  return {{"n", a.n},
          {"skipped", a.skipped},
          {"mape", or_null(a.mape)},
          {"median_ape", or_null(a.median_ape)},
          {"p90_ape", or_null(a.p90_ape)},
          {"max_ape", or_null(a.max_ape)},
          {"bias", or_null(a.bias)},
          {"coverage_80", or_null(a.coverage_80)},
          {"kendall_tau", or_null(a.kendall_tau)},
          {"regret", or_null(a.regret)},
          {"memory_mape", or_null(a.memory_mape)}};
}

std::string percent_or_dash(const std::optional<double>& value) {
  char text[32];
  if (!value) return "-";
  std::snprintf(text, sizeof text, "%.1f", 100 * *value);
  return text;
}

void print_families(const std::map<std::string, FamilyAccuracy>& families) {
  std::size_t widest = 6;
  for (const auto& [name, a] : families) widest = std::max(widest, name.size());
  const int width = static_cast<int>(widest);
  std::printf("%-*s %6s %8s %7s %7s %7s %7s %7s %9s %6s\n", width, "family", "rows", "skipped", "MAPE%", "median%",
              "p90%", "max%", "bias%", "within80%", "tau");
  for (const auto& [name, a] : families) {
    std::printf("%-*s %6d %8d %7s %7s %7s %7s %7s %9s %6s\n", width, name.c_str(), a.n, a.skipped,
                percent_or_dash(a.mape).c_str(), percent_or_dash(a.median_ape).c_str(),
                percent_or_dash(a.p90_ape).c_str(), percent_or_dash(a.max_ape).c_str(), percent_or_dash(a.bias).c_str(),
                percent_or_dash(a.coverage_80).c_str(),
                a.kendall_tau ? text_of_number(*a.kendall_tau, 2).c_str() : "-");
  }
}

void print_skips(const std::vector<ScoredRow>& rows) {
  std::map<std::string, int> reasons;
  for (const ScoredRow& row : rows) {
    if (!row.skipped.empty()) ++reasons[row.skipped];
  }
  for (const auto& [reason, count] : reasons) std::printf("skipped %d: %s\n", count, reason.c_str());
}

void run(const Options& o) {
  const RowFile file = read_rows(o.rows);
  if (!o.fit_constants.empty()) return fit_step_constants(file, o.fit_constants, o.fit_all);
  std::vector<ScoredRow> rows = score(file, {o.families, o.leave_out});
  keep_families(rows, o.families);
  const auto families = accuracy_by_family(rows);
  if (o.format == "json") {
    nlohmann::ordered_json out{{"rows", nlohmann::ordered_json::array()},
                               {"families", nlohmann::ordered_json::object()}};
    out["leave_out"] = o.leave_out;
    for (const ScoredRow& row : rows) out["rows"].push_back(json_of(row));
    for (const auto& [name, accuracy] : families) out["families"][name] = json_of(accuracy);
    return print_json(out);
  }
  std::printf(
      "Predicted against measured: error = predicted / measured - 1%s.\n",
      o.leave_out
          ? "; each row predicted from tables fitted without it, its fold (kernels) or its whole curve (collectives)"
          : "");
  std::printf("within80%% = share of measured values inside the stated 80 %% interval.\n\n");
  print_families(families);
  print_skips(rows);
}

}  // namespace

std::span<const RowKind> row_kinds() { return kRowKinds; }

void add_validate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("validate", "Score predictions against measured rows.");
  verb->add_option("--rows", options->rows, "CSV or JSON file; its header tells what the rows are")->required();
  verb->add_option("--family", options->families, "only these families (repeat for more)");
  verb->add_flag("--leave-out", options->leave_out, "predict each row from tables fitted without it");
  verb->add_option("--fit-constants", options->fit_constants,
                   "training runs only: fit the step's constants on half of the questions and write them to this file");
  verb->add_flag("--fit-all", options->fit_all, "with --fit-constants: fit on all questions");
  add_format_option(*verb, options->format);
  verb->footer("Example:\n  shardplan validate --rows gemm_shapes.csv --leave-out");
  verb->callback([options] { run(*options); });
}

}  // namespace shardplan
