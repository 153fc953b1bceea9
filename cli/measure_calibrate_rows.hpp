#pragma once
// measure calibrate on CSV rows: collective rows and DeepEP rows become the tables of hardware/data.
#include <string>
#include <vector>

namespace shardplan {

/// Whether the first of these files is a CSV of collective or DeepEP rows.
bool are_network_rows(const std::vector<std::string>& files);
/// Writes one file a GPU (and common.json for collectives) into the folder `out`, which must exist; prints what it
/// fitted.
void calibrate_network_rows(const std::vector<std::string>& files, const std::string& out, bool json);

}  // namespace shardplan
