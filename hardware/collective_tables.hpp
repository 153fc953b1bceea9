#pragma once
// Constants of NCCL's model per GPU, from data/collectives/*.json.
#include <span>
#include <string>
#include <vector>

#include "hardware/collective_nccl.hpp"

namespace shardplan {

struct CollectiveTable {
  std::string gpu;                  // the GPU that was measured
  std::vector<std::string> serves;  // GPUs that borrow its constants, rates scaled by their NVLink
  std::string source;
  double link_bytes_per_second = 0;  // of the measured GPU, per direction
  DomainConstants domain;
};

std::span<const CollectiveTable> collective_tables();

struct TableChoice {
  const CollectiveTable* table = nullptr;
  bool own = false;  // measured on this very GPU
  double scale = 1;  // of rates: this GPU's link over the measured one's
};

/// The table of the GPU, of its calibration or sibling, or of the GPU that lists it under `serves`; else the one of the
/// nearest link rate. Never null.
TableChoice table_for(const Cluster&);

}  // namespace shardplan
