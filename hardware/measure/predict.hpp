#pragma once
// The simulator's side of simulated-against-measured: what replay() says of a step that the executor ran.
#include <cstdint>
#include <vector>

#include "hardware/measure/executor.hpp"
#include "sim/replay.hpp"

namespace shardplan {

enum class StepClock { wall, cpu };

/// Durations of a recorded step, by rank and position, of the first replica.
std::vector<std::vector<double>> recorded_durations(const StepRecord&, const Order&, StepClock);

/// Medians of calibration samples as PassTimes; a message costs nothing of its own (its copies are inside the passes).
PassTimes median_times(const PipelineExecutor::Samples&);

/// The middle of `draws` replays in which every pass takes the time of a calibration sample drawn for it: unlike a
/// replay of medians it keeps what max() over ranks does to noise.
double sampled_makespan(const Order&, const PipelineExecutor::Samples&, int draws, std::uint64_t seed);

/// Messages between different ranks in one step of the order, and their bytes.
struct MessageCount {
  std::int64_t messages = 0, bytes = 0;
};
MessageCount expected_messages(const Order&, double message_bytes);

/// Whether the order splits its backward passes.
bool splits_backward(const Order&);

}  // namespace shardplan
