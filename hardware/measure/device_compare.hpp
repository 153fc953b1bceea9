#pragma once
// A GPU's measured kernels against what a cluster's calibration says of them: the table that a device check prints.
#include <string>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/measure/measuring.hpp"

namespace shardplan {

/// Points of one kind: "gemm bf16 forward". Errors are predicted / measured - 1.
struct KernelComparison {
  std::string group;
  int n = 0, throttled = 0;
  double median_error = 0, median_absolute = 0, worst = 0;
};

/// Products (all passes, BF16 and FP8), copies, norms, casts, permutes, and the layer (against the sum of its parts as
/// measured). Points flagged as throttled are left out and counted. Groups in order of their names.
std::vector<KernelComparison> compare_kernels(const MeasuringFile&, const Cluster&);

}  // namespace shardplan
