#pragma once
// Points of a measuring file as the rows that kernel tables are made of.
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/kernel_rows.hpp"
#include "hardware/measure/measuring.hpp"

namespace shardplan {

/// Products (forward, not hot, all SMs) and memory kernels (copy, norm, cast, permute, activation, add). Their times
/// are medians, on the host's cores means (hardware/measure/host_model.hpp says why). Throttled points are left out.
std::vector<KernelRow> measured_kernel_rows(const MeasuringFile&, const Gpu&);

}  // namespace shardplan
