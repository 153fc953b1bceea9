#pragma once
// Steps that the cpu backend ran, asked of `simulate`: the same model, layout and batch on the calibrated cluster.
#include <string>
#include <vector>

#include "hardware/measure/measuring.hpp"

namespace shardplan {

struct SimulatedStep {
  double seconds = 0;
  std::string command;  // that gives them again
};

/// One answer a step point of the files, in their order, as compare_steps() has them. cluster_path: of the calibrated
/// cluster, written already; model files and the experts' loads are
/// written beside it (host.json: host.blocks-4x128x128.json).
std::vector<SimulatedStep> simulate_measured_steps(const std::vector<MeasuringFile>&, const std::string& cluster_path);

/// "host.json" and "tables.json": "host.tables.json".
std::string path_beside(const std::string& path, const std::string& ending);

}  // namespace shardplan
