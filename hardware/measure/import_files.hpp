#pragma once
// What others measured, as measuring files: profiler traces. The file's hash goes with it.
#include <string>

#include "hardware/measure/measuring.hpp"

namespace shardplan {

/// One point a kernel class, over its kernels in the trace: quantiles of their durations. Shapes are not in a trace, so
/// these points calibrate nothing; they are for looking and comparing.
MeasuringFile measuring_of_trace(const std::string& path);

}  // namespace shardplan
