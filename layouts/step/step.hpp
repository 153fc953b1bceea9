#pragma once
// One training step: stages priced, the schedule replayed, gradients reduced, the optimizer run.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layouts/step/cost.hpp"
#include "layouts/step/question.hpp"
#include "sim/order.hpp"

namespace shardplan {

/// Seconds of one pipeline rank over the whole step.
struct RankStep {
  double busy = 0;            // of its passes
  double pipeline_idle = 0;   // waiting for other ranks
  double reduce_exposed = 0;  // gradient reduction after its last backward pass
  double finish = 0;          // when its gradients are ready
};

struct StepReport {
  double step_time_s = 0, low_s = 0, high_s = 0;
  double pipeline_s = 0;  // the replay's makespan
  // step_time_s = busy_s + bubble_s + reduce_exposed_s + optimizer_s + gather_exposed_s + fixed_s
  double busy_s = 0;            // passes of the busiest rank, launch-bound time included
  double bubble_s = 0;          // the makespan beyond them
  double reduce_exposed_s = 0;  // data-parallel reduction after the makespan
  double optimizer_s = 0;
  double gather_exposed_s = 0;  // parameter all-gather that nothing hid
  double fixed_s = 0;
  double over_ideal = 0, over_total = 0, window = 0;
  std::int64_t microbatches = 0;
  Cost busiest;  // all passes of the rank that holds the step, one after the other
  int busiest_rank = 0;
  double hop_s = 0;  // of one pipeline message
  std::vector<RankStep> ranks;
  double model_flops = 0;  // of the whole step: matrix products and causal attention, no recompute
  double model_flops_full_attention = 0;
  double hardware_flops = 0;  // with recomputation
  double tokens = 0;          // of the whole step
  Basis weakest = Basis::measured;
};

/// Throws InputError where the layout is illegal or asks for what is not modelled.
StepReport simulate_step(const StepQuestion&);

/// A time that no replay of this layout can beat, from the same prices: the search prunes with it.
double step_lower_bound(const StepQuestion&);

}  // namespace shardplan
