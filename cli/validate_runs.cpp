// Training runs (schema shardplan-runs/1): each row is simulated as its stack would run it.
#include "base/errors.hpp"
#include "cli/validate.hpp"
#include "layouts/score_runs.hpp"

namespace shardplan {

bool is_training_runs(const RowFile& file) {
  if (!file.json || !file.json->is_object()) return false;
  const auto schema = file.json->find("schema");
  return schema && schema->is_string() && schema->text().rfind("shardplan-runs/", 0) == 0;
}

namespace {

/// Figures that the file does not mark as fit for scoring are dropped, rows without any with them.
void keep_marked(const std::vector<RunQuestion>& runs, std::vector<ScoredRow>& rows) {
  std::vector<ScoredRow> kept;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const MeasuredRun& run = runs[i].run;
    if (!run.score && !run.score_memory) continue;
    ScoredRow row = std::move(rows[i]);
    if (!run.score) row.measured_s = 0;
    if (!run.score_memory) row.measured_memory.reset();
    kept.push_back(std::move(row));
  }
  rows = std::move(kept);
}

}  // namespace

std::vector<ScoredRow> score_training_runs(const RowFile& file, const ScoreOptions& options) {
  if (options.folds > 0) {
    const std::vector<RunQuestion> runs = run_questions(read_runs(file.path), ConstantSet::all);
    std::vector<ScoredRow> rows = cross_validate(runs, options.folds, options.without);
    if (options.marked_only) keep_marked(runs, rows);
    return rows;
  }
  const ConstantSet set = options.leave_out ? ConstantSet::half : ConstantSet::all;
  PricerShelf shelf(set);
  std::vector<RunQuestion> runs = run_questions(read_runs(file.path), set);
  if (options.leave_out) {
    for (RunQuestion& q : runs)
      if (!q.run.skipped && in_fit(q.run))
        q.run.skipped = "belongs to the half of the questions that constants are fitted on";
  }
  std::vector<ScoredRow> rows = score_runs(runs, shelf, options.without);
  if (options.marked_only) keep_marked(runs, rows);
  return rows;
}

void fit_step_constants(const RowFile& file, const std::string& out, bool all, int rounds) {
  if (!is_training_runs(file))
    throw InputError(file.path, "constants are fitted on training runs (schema shardplan-runs/1)");
  PricerShelf shelf(all ? ConstantSet::all : ConstantSet::half);
  std::vector<RunQuestion> runs = run_questions(read_runs(file.path), all ? ConstantSet::all : ConstantSet::half);
  write_text_file(out, fit_constants(runs, shelf, {all, rounds}));
}

}  // namespace shardplan
