#pragma once
// Messages and steps measured with ranks as Open MPI processes: starts the helper program that stands beside this one.
#include <string>
#include <vector>

#include "hardware/measure/measuring.hpp"

namespace shardplan {

/// The helper's path, and mpirun's command line up to it for so many processes. "" where it is not there.
std::string mpi_helper();
std::string mpi_command(int processes);

/// Message, all-reduce, all-to-all and step points. UnavailableError where the helper was not built or mpirun is not
/// found, or where it fails.
std::vector<MeasuredPoint> measure_mpi_ranks(bool quick);

}  // namespace shardplan
