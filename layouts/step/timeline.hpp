#pragma once
// A step as it runs: the chain that decides it, and a trace of every pipeline rank.
#include "layouts/step/data_parallel.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

/// Fills StepReport::critical and trace of a step whose other members are known and whose replay was the replayer's
/// last. The trace begins with the parameter gather of the step's weights (what nothing hides comes before the first
/// pass) and ends with the optimizer and the host's fixed time: its last slice ends at step_time_s.
void add_timeline(const StepQuestion&, const Pipeline&, const Replay&, const DataParallel&, StepReport&);

}  // namespace shardplan
