#pragma once
// Points of a measuring file as the rows that kernel and collective tables are made of.
#include <optional>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/collective_rows.hpp"
#include "hardware/kernel_rows.hpp"
#include "hardware/kernel_tables.hpp"
#include "hardware/measure/measuring.hpp"

namespace shardplan {

/// Products (forward, not hot, all SMs) and memory kernels (copy, norm, cast, permute, activation, add). Their times
/// are medians, on the host's cores means (hardware/measure/host_model.hpp says why). Throttled points are left out.
std::vector<KernelRow> measured_kernel_rows(const MeasuringFile&, const Gpu&);

/// A measured product as the model asks for it, in any pass; nothing for points of another kind, hot ones and those on
/// fewer SMs. Weight gradients were added into an FP32 sum.
std::optional<Gemm> measured_gemm(const MeasuredPoint&);

/// Seconds of measured input and weight gradients over the forward product of their dimensions, as `tables` price it:
/// the median. Nothing for a pass of fewer than five points.
std::vector<KernelTables::PassFactor> measured_pass_factors(const MeasuringFile&, const Gpu&, const KernelTables&);

/// Collectives and messages among the ranks of one node; all-to-allv, whose pairs differ, is left out.
std::vector<CollectiveRow> measured_collective_rows(const MeasuringFile&, const Gpu&);

}  // namespace shardplan
