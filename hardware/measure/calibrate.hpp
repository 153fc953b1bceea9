#pragma once
// Turns measuring files into a cluster: figures and tables replaced by what was measured, with the error that the
// tables make on points left out, and steps that were measured set against their prediction.
#include <string>
#include <vector>

#include "hardware/measure/device_compare.hpp"
#include "hardware/measure/host_model.hpp"
#include "hardware/measure/measuring.hpp"

namespace shardplan {

struct StepComparison {
  std::string step;  // "zb-h1, 4 ranks, 4 micro-batches"
  double measured = 0, predicted = 0;
  double error() const { return predicted / measured - 1; }
};

struct Calibration {
  std::string cluster;                        // the file's text
  std::string tables_text;                    // kernel tables (shardplan-kernels/1) and the collective table, "" = none
  std::vector<HostModel::TableError> tables;  // points and leave-one-out error
  std::vector<StepComparison> steps;
  std::vector<KernelComparison> kernels;  // of a GPU, against the cluster as it was
  std::vector<std::string> notes;         // what of the files was not used, and why
};

/// The shape of an expert step that was measured.
ExpertStepShape expert_shape(const MeasuredPoint&);

/// Every "step" point of a file of the cpu backend against its prediction from the file's other points. Steps of
/// another kind than the executor's are left out.
std::vector<StepComparison> compare_steps(const MeasuringFile&, const HostModel&);

/// `cluster`: a GPU name, a named cluster or a file, whose figures stand where nothing was measured.
/// tables_name: of the file beside the cluster's where the caller will write tables_text; the cluster's GPU names it as
/// its calibration. Without a name no tables are made.
Calibration calibrate_cluster(const std::vector<MeasuringFile>&, const std::string& cluster,
                              const std::string& tables_name = "");

}  // namespace shardplan
