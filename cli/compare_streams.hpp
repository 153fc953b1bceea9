#pragma once
// A real step's streams against the simulated step's: compute, pipeline messages, collectives, expert exchange.
#include <optional>
#include <string>
#include <vector>

#include "hardware/import_trace.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

/// Seconds of one step. A stream of the trace belongs to the lane that most of its time is of.
struct StreamDifference {
  std::string lane;
  std::vector<int> streams;                        // of the trace
  double measured_busy = 0, measured_exposed = 0;  // exposed: while no compute stream worked (compute: busy)
  std::optional<double> simulated_busy;            // nothing: the simulation counts only what is exposed
  double simulated_exposed = 0;
  double gap() const { return simulated_exposed - measured_exposed; }
};

/// Largest gap first. The simulated side is the busiest pipeline rank's; the report must hold its trace. steps: that
/// the trace covers.
std::vector<StreamDifference> compare_streams(const ProfilerTrace&, const StepReport&, double steps);

}  // namespace shardplan
