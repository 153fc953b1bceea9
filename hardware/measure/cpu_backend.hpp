#pragma once
// Measures this machine: products, elementwise parts, copies, messages, collectives and whole steps of the executor.
#include <string>

#include "hardware/measure/measuring.hpp"

namespace shardplan {

struct CpuBackendOptions {
  bool quick = false;        // fewer sizes and samples: at most half a minute on two cores
  bool keep_samples = true;  // raw samples in the file
  bool mpi = false;          // ranks of messages and steps as processes of Open MPI, else threads and a mailbox
  std::string arguments;     // what the user asked, for the record
};

/// All times are CPU seconds of the measuring thread, with every core busy in the same work, so that they can be
/// compared on a loaded machine; steps are virtual ones (compute measured, waiting computed). UnavailableError where
/// MPI ranks are asked for and cannot be had.
MeasuringFile measure_cpu(const CpuBackendOptions&);

}  // namespace shardplan
