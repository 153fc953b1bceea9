#pragma once
// Grids of times continued beyond the measured region by the fitted form, so that they stay monotone out there.
#include "hardware/kernel_tables.hpp"

namespace shardplan {

/// A copy of the tables whose GEMM and attention grids have nodes a factor 2 apart beyond the measured ones. An outer
/// node is the nearest measured one times the ratio of the form, moved no further than monotony needs; measured nodes
/// stay as they are. Needed because edge times ratio alone is not monotone: the form's fixed part weighs more the
/// smaller the rest.
KernelTables extended(const KernelTables& tables);

}  // namespace shardplan
