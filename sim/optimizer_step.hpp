#pragma once
// What a schedule costs a step once the optimizer is part of it.
#include "sim/replay.hpp"

namespace shardplan {

/// barrier: the global gradient norm is all-reduced before any rank steps, so all ranks wait for the last pass.
/// post_validation (Zero Bubble paper, section 4): each rank steps after its own last pass on a partial norm that is
/// passed along the pipeline and validated during the next warm-up; ranks stay skewed from step to step.
enum class OptimizerSync { barrier, post_validation };

struct OptimizerStep {
  OptimizerSync sync = OptimizerSync::barrier;
  double optimizer_seconds = 0;  // of one rank
  double norm_seconds = 0;       // all-reduce of the norm (barrier, and steps that are rolled back)
  double rollback_share = 0;     // post_validation: share of steps whose clipping or NaN is found too late
};

struct StepTime {
  double seconds = 0;      // from step to step
  double over_window = 0;  // seconds - (longest window + optimizer): what synchronising costs
};

/// barrier: makespan + norm + optimizer. post_validation: longest window + optimizer, since every rank repeats its
/// window; a step that is rolled back waits for the makespan and the norm, undoes its optimizer step and runs it again.
/// Left out: the messages of the partial norms (hidden in the warm-up).
StepTime step_time(const Replay&, const OptimizerStep&);

}  // namespace shardplan
