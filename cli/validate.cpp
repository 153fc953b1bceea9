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
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"
#include "cli/step_options.hpp"
#include "layouts/score_runs.hpp"

namespace shardplan {

namespace {

constexpr std::array kRowKinds = {
    RowKind{"kernel rows", is_kernel_rows, score_kernel_rows},
    RowKind{"DeepEP rows", is_deepep_rows, score_deepep_rows},
    RowKind{"collective rows", is_collective_rows, score_collective_rows},
    RowKind{"training runs", is_training_runs, score_training_runs},
};

struct Options {
  std::string rows, format = "text", without, moved_by = "1";
  std::optional<std::string> fail_if;
  GateQuestion gate;
  ScoreOptions score;
  bool constants = false;
  std::optional<std::string> cross_validate;
  std::string fit_constants;
  bool fit_all = false;
  std::string fit_rounds = std::to_string(kFitRounds);
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
  if (!row.question.empty()) out["question"] = row.question;
  if (!row.part.empty()) out["part"] = row.part;
  return out;
}

}  // namespace

nlohmann::ordered_json accuracy_json(const FamilyAccuracy& a) {
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
          {"memory_mape", or_null(a.memory_mape)},
          {"worst", a.worst.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(a.worst)}};
}

namespace {

nlohmann::ordered_json effect_names(std::uint32_t without) {
  auto out = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < kEffectNames.size(); ++i)
    if ((without >> i & 1u) != 0) out.push_back(std::string(kEffectNames[i]));
  return out;
}

/// Options that only training runs have.
void check_kind(const Options& o, const RowFile& file) {
  if (is_training_runs(file)) return;
  const auto refuse = [](const char* option) {
    throw InputError(option, "only training runs (schema shardplan-runs/1) can be asked this");
  };
  if (!o.without.empty()) refuse("--without");
  if (o.score.marked_only) refuse("--marked-only");
  if (!o.fit_constants.empty()) refuse("--fit-constants");
  if (o.cross_validate) refuse("--cross-validate");
}

void print_answer_json(const Options& o, const std::vector<ScoredRow>& rows, const AccuracyByFamily& families,
                       const GateAnswer& gate) {
  nlohmann::ordered_json out{{"rows", nlohmann::ordered_json::array()}, {"families", nlohmann::ordered_json::object()}};
  out["leave_out"] = o.score.leave_out;
  if (o.score.folds > 0) out["folds"] = o.score.folds;
  if (o.score.marked_only) out["marked_only"] = true;
  if (o.score.without != 0) out["without"] = effect_names(o.score.without);
  for (const ScoredRow& row : rows) out["rows"].push_back(json_of(row));
  for (const auto& [name, accuracy] : families)
    (name == kOverall ? out[name] : out["families"][name]) = accuracy_json(accuracy);
  add_gate_json(out, o.gate, gate, families);
  print_json(out);
}

void print_answer_text(const Options& o, const std::vector<ScoredRow>& rows, const AccuracyByFamily& families,
                       const GateAnswer& gate, bool runs) {
  const char* how = o.score.folds > 0 ? "; each row predicted with constants fitted on the other folds of the questions"
                    : !o.score.leave_out ? ""
                    : runs ? "; each row predicted with constants fitted on the other half of the questions"
                           : "; each row predicted from tables fitted without it, its fold (kernels) or its whole "
                             "curve (collectives)";
  std::printf("Predicted against measured: error = predicted / measured - 1%s.\n", how);
  if (o.score.marked_only) std::printf("Only times and memory that the file marks as fit for scoring.\n");
  if (o.score.without != 0) std::printf("Switched off: %s.\n", o.without.c_str());
  std::printf("within80%% = share of measured values inside the stated 80 %% interval.\n");
  if (runs)
    std::printf(
        "tau = rank correlation of the layouts of one question (pairs at least 5 %% apart); regret = time lost by "
        "taking "
        "the\npredicted best of a question instead of the measured best, mean; memory = mean absolute error.\n");
  std::printf("\n");
  print_accuracy(rows, runs);
  print_gate(o.gate, gate, families);
}

void read_gate(Options& o) {
  if (o.fail_if) o.gate.limits = parse_gate_limits(*o.fail_if, "--fail-if");
  o.gate.moved_by = parse_number(o.moved_by, "--moved-by") / 100;
}

void run(Options& o) {
  if (o.constants) return print_step_constants(o.score.leave_out, o.format == "json");
  if (o.rows.empty()) throw InputError("--rows", "is required");
  read_gate(o);
  o.score.without = parse_effects(o.without, "--without");
  const RowFile file = read_rows(o.rows);
  check_kind(o, file);
  if (o.cross_validate) {
    const std::int64_t folds = parse_count(*o.cross_validate, "--cross-validate");
    if (folds < 2 || folds > 100)
      throw InputError("--cross-validate", "expected 2 to 100 folds, got " + *o.cross_validate);
    if (o.score.leave_out) throw InputError("--cross-validate", "leaves rows out by itself: drop --leave-out");
    o.score.folds = static_cast<int>(folds);
  }
  if (!o.fit_constants.empty()) {
    const std::int64_t rounds = parse_count(o.fit_rounds, "--fit-rounds");
    if (rounds > 1000) throw InputError("--fit-rounds", "out of range: " + o.fit_rounds + " is above 1000");
    return fit_step_constants(file, o.fit_constants, o.fit_all, static_cast<int>(rounds));
  }
  std::vector<ScoredRow> rows = score(file, o.score);
  keep_families(rows, o.score.families);
  AccuracyByFamily families = accuracy_by_family(rows);
  families[std::string(kOverall)] = accuracy_of(rows);
  const GateAnswer gate = ask_gate(o.gate, rows, families, o.score);
  if (o.format == "json") {
    print_answer_json(o, rows, families, gate);
  } else {
    print_answer_text(o, rows, families, gate, is_training_runs(file));
  }
  if (!gate.broken.empty()) throw ExitCode{1};
}

}  // namespace

std::span<const RowKind> row_kinds() { return kRowKinds; }

void add_validate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("validate", "Scores predictions against measured rows");
  verb->add_option("--rows", options->rows, "CSV or JSON file; its header tells what the rows are");
  verb->add_option("--family", options->score.families, "only these families (repeat for more)");
  verb->add_flag("--leave-out", options->score.leave_out,
                 "predict each row from tables or constants fitted without it; of training runs, only the half of the "
                 "questions that the constants were not fitted on");
  verb->add_option("--cross-validate", options->cross_validate,
                   "training runs: predict each row with constants fitted on the other of so many folds of the "
                   "questions (minutes)");
  verb->add_flag("--marked-only", options->score.marked_only,
                 "training runs: only times (score) and memory (score_memory) that the file marks as fit for scoring");
  verb->add_option("--without", options->without,
                   "training runs: switch effects off, separated by commas: " + effects_text());
  verb->add_option("--baseline", options->gate.baseline,
                   "a saved answer of --format json: name the rows and families that moved since");
  verb->add_option("--moved-by", options->moved_by, "percent by which a prediction must change to have moved")
      ->default_str(options->moved_by);
  const auto keep_limits = [options](const std::vector<std::string>& given) {
    for (const std::string& text : given) options->fail_if = options->fail_if ? *options->fail_if + "," + text : text;
    return true;
  };
  verb->add_option(
          "--fail-if", keep_limits,
          "exit with 1 if a limit is broken: [FAMILY:]FIGURE>NUMBER or <NUMBER, separated by commas. Figures: mape, "
          "median, "
          "p90, max, bias (absolute), regret, memory in percent; tau, coverage (0 to 1), rows, skipped plain. A signed "
          "number "
          "(mape>+1) is a change against --baseline. Without FAMILY every family is held to it; \"overall\" is all "
          "rows")
      ->type_name("TEXT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_flag("--constants", options->constants,
                 "print the step's fitted constants instead (with --leave-out: those fitted on half of the questions)");
  verb->add_option("--fit-constants", options->fit_constants,
                   "training runs only: fit the step's constants on half of the questions and write them to this file");
  verb->add_flag("--fit-all", options->fit_all, "with --fit-constants: fit on all questions");
  verb->add_option("--fit-rounds", options->fit_rounds,
                   "with --fit-constants: at most so many rounds; 0 keeps the values and counts rows and spreads anew")
      ->default_str(options->fit_rounds);
  add_format_option(*verb, options->format);
  verb->footer(
      "Exit: 0 answered, 1 a limit of --fail-if is broken, 2 bad input.\n"
      "Example:\n  shardplan validate --rows gemm_shapes.csv --leave-out\n"
      "  shardplan validate --rows runs.json --format json > saved.json\n"
      "  shardplan validate --rows runs.json --baseline saved.json --fail-if "
      "\"mape>+1,mlperf:mape>5,overall:tau<0.8\"");
  verb->callback([options, verb] {
    if (verb->count("--baseline") > 0 && options->gate.baseline.empty())
      throw InputError("--baseline", "expected a file, got \"\"");
    run(*options);
  });
}

}  // namespace shardplan
