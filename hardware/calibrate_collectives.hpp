#pragma once
// From measured rows to the tables of data/collectives: constants by robust regression on log time (compass search),
// curves as geometric means over repeats and NCCL versions, intervals from curves and logs that were left out.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hardware/collective_rows.hpp"
#include "hardware/collective_tables.hpp"

namespace shardplan {

/// Rows of NVLink domains go into the tables of `prior` (a row's GPU must have one there, others are passed over); rows
/// of several nodes into what is common. `prior` gives the starting point, to which the fit is held weakly.
CollectiveCalibration calibrate_collectives(std::span<const CollectiveRow>, const CollectiveCalibration& prior);

/// What was predicted for rows that had no part in the fit.
struct LeftOutRow {
  std::size_t row = 0;  // index into the rows
  double seconds = 0, low = 0, high = 0;
};
/// Splits the rows of one domain by curve (GPU, operation, ranks) and those of several nodes by data set; each part is
/// predicted by a calibration that has not seen it. `keep` chooses which curves are left out.
std::vector<LeftOutRow> leave_out_curves(std::span<const CollectiveRow>, const CollectiveCalibration& prior,
                                         const std::function<bool(const CollectiveRow&)>& keep = {});

}  // namespace shardplan
