#pragma once
// Loads the CUDA plug-in at run time (dlopen), so that the program itself needs no CUDA.
#include <optional>
#include <string>
#include <vector>

#include "hardware/measure/measuring.hpp"

namespace shardplan {

struct CudaBackendOptions {
  bool quick = false;
  double seconds = 0;             // device time to aim at; 0 = the plug-in's default
  std::vector<std::string> only;  // parts: gemm, memory, launch, contention, collectives, layer; empty = all
  std::string arguments;
  std::vector<std::vector<double>> traffic;  // bytes from rank to rank, for the all-to-allv; empty = a skewed one
};

/// Where the plug-in is looked for: SHARDPLAN_CUDA_PLUGIN (a file), else beside the program.
std::string cuda_plugin_path();
/// Versions of the libraries that the plug-in is linked to, or nothing where there is no plug-in that loads.
std::optional<std::string> cuda_plugin_versions();
/// UnavailableError (exit 3): no plug-in and how to build it; no driver or device.
MeasuringFile measure_cuda(const CudaBackendOptions&);

}  // namespace shardplan
