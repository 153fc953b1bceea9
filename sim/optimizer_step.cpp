#include "sim/optimizer_step.hpp"

namespace shardplan {

StepTime step_time(const Replay& r, const OptimizerStep& o) {
  const double window = r.max_stage_window + o.optimizer_seconds;
  StepTime step;
  if (o.sync == OptimizerSync::barrier) {
    step.seconds = r.makespan + o.norm_seconds + o.optimizer_seconds;
  } else {
    const double rollback = r.makespan - r.max_stage_window + o.norm_seconds + 2 * o.optimizer_seconds;
    step.seconds = window + o.rollback_share * rollback;
  }
  step.over_window = step.seconds - window;
  return step;
}

}  // namespace shardplan
