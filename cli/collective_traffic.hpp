#pragma once
// collective --op all-to-allv: a traffic matrix on a cluster.
#include <string>

#include "hardware/collectives.hpp"

namespace shardplan {

struct TrafficQuestion {
  std::string file;        // a traffic matrix as nccl-tests' alltoallv_perf reads it
  std::string ranks;       // held against the matrix; "" = as many as it has
  int ranks_per_node = 0;  // members on each board, 0 = all of its GPUs
  Rates rates = Rates::calibrated;
  Fidelity fidelity = Fidelity::flows;  // table: as flows, since no table knows unequal pairs
  std::string format = "text";
};

/// Prints the seconds of the exchange. Calibrated: those of the equal all-to-all that keeps the wires busy for as long.
void print_all_to_allv(const Cluster&, const TrafficQuestion&);

}  // namespace shardplan
