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

std::vector<ScoredRow> score_training_runs(const RowFile& file, const ScoreOptions& options) {
  const ConstantSet set = options.leave_out ? ConstantSet::half : ConstantSet::all;
  PricerShelf shelf(set);
  std::vector<RunQuestion> runs = run_questions(read_runs(file.path), set);
  if (options.leave_out) {
    for (RunQuestion& q : runs)
      if (!q.run.skipped && in_fit(q.run))
        q.run.skipped = "belongs to the half of the questions that constants are fitted on";
  }
  return score_runs(runs, shelf, 0);
}

void fit_step_constants(const RowFile& file, const std::string& out, bool all) {
  if (!is_training_runs(file))
    throw InputError(file.path, "constants are fitted on training runs (schema shardplan-runs/1)");
  PricerShelf shelf(all ? ConstantSet::all : ConstantSet::half);
  std::vector<RunQuestion> runs = run_questions(read_runs(file.path), all ? ConstantSet::all : ConstantSet::half);
  write_text_file(out, fit_constants(runs, shelf, all));
}

}  // namespace shardplan
