#pragma once
// Published runs that a prediction can be held beside: the nearest one shows how far this program was off there.
#include <string>
#include <vector>

#include "layouts/score_runs.hpp"

namespace shardplan {

/// A measured run of layouts/data/measured_anchors.json.
struct Anchor {
  std::string id, source, precision, layout;
  double measured_s = 0;
  RunQuestion question;
};
std::vector<Anchor> measured_anchors();

struct NearestRun {
  Anchor anchor;
  double distance = 0;
  StepReport predicted;  // by the same code as every other step
};

/// What two runs are compared by.
struct RunSize {
  double parameters = 0, gpus = 0, tokens_per_gpu = 0;  // tokens of one step
  std::string gpu_family;
  bool experts = false;
};
RunSize run_size(const Model&, const Cluster&, const Workload&, std::int64_t gpus);
/// Distance between two runs: square root of the sum of squares of ln(parameters), ln(GPUs) and ln(tokens a GPU and
/// step) differences, and 1 for each of: another GPU family (its kernel tables), dense against MoE. Ties go to the
/// earlier in the file.
double run_distance(const RunSize&, const RunSize&);
NearestRun nearest_run(const StepQuestion&);

}  // namespace shardplan
