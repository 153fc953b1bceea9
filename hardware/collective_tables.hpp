#pragma once
// What is known from measurement about collectives: constants and curves per GPU, and what they share.
// data/collectives/<gpu>.json holds a GPU's; common.json holds the rest. All are written by calibrate_collectives.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/collective_correction.hpp"
#include "hardware/collective_nccl.hpp"

namespace shardplan {

class Field;

struct CollectiveTable {
  std::string gpu;                  // the GPU that was measured
  std::string family, generation;   // as CurveId
  std::vector<std::string> serves;  // GPUs that borrow it, rates scaled by their links
  std::string fabric = "nvswitch";  // inside the node that was measured: the curves hold on no other
  std::string source;
  double link_bytes_per_second = 0;  // of the measured GPU, per direction
  DomainConstants domain;
  std::vector<MeasuredCurve> curves;
  double spread_small = 0.05,
         spread_large = 0.03;  // half-width, in log time, that holds 80 % of repeats and NCCL versions
};

struct CollectiveCalibration {
  std::vector<CollectiveTable> tables;  // sorted by GPU
  CorrelationConstants correlation;
  IntervalConstants interval;
  FabricConstants fabric;
  double across_log_deviation = 0.2;  // standard deviation of log time across nodes, from logs left out

  const CollectiveTable* find(std::string_view gpu) const;
  CorrectionField correction_field() const;
};

/// The built-in one.
std::shared_ptr<const CollectiveCalibration> collective_calibration();
/// The built-in one, with the table in the calibration file that the cluster's GPU names (its member "collectives") in
/// place of that GPU's.
std::shared_ptr<const CollectiveCalibration> calibration_of(const Cluster&);
/// The same with this table.
CollectiveCalibration with_table(const CollectiveCalibration&, CollectiveTable);
/// Links of the node as one GPU sees them, bytes/s per direction: what a table's rates are scaled by.
double link_of(const Cluster&);

CollectiveTable read_collective_table(std::string_view json, const std::string& name);
CollectiveTable read_collective_table(const Field&);
void read_collective_common(std::string_view json, const std::string& name, CollectiveCalibration& into);
std::string json_of(const CollectiveTable&);
std::string common_json_of(const CollectiveCalibration&);

struct TableChoice {
  const CollectiveTable* table = nullptr;
  bool own = false;    // measured on this very GPU
  bool known = false;  // own, or listed under `serves`: its curves hold too
  double scale = 1;    // of rates: this GPU's link over the measured one's
};

/// The table of the GPU, of the GPU that lists it under `serves`, of its sibling; else the one of the nearest link
/// rate. Never null.
TableChoice table_for(const CollectiveCalibration&, const Cluster&);

}  // namespace shardplan
