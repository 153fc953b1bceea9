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
  double sequence = 0;
  std::string gpu_family, framework;
  double product_bytes = 2;  // bytes an operand's value of the matrix products: 16-bit, 8-bit, 4-bit
  bool experts = false;
};
RunSize run_size(const StepQuestion&);
/// Distance between two runs: square root of the sum of squares of the differences of ln(parameters), of half of
/// ln(GPUs), ln(tokens a GPU and step) and ln(sequence length), of 2 for another GPU family (none of its constants are
/// shared), and of 1 for each of: products of another width, another framework, dense against MoE. By judgement: scale
/// and batch move what a step waits for, the others what its kernels are. Ties go to the earlier in the file.
double run_distance(const RunSize&, const RunSize&);
/// The same in one line.
inline constexpr const char* kRunDistanceText =
    "root of the summed squares of ln(parameters), of half of ln(GPUs), ln(tokens a GPU) and ln(sequence), of 2 for "
    "another GPU family, and of 1 each for products of another width, another framework, dense against experts";
NearestRun nearest_run(const StepQuestion&);

}  // namespace shardplan
