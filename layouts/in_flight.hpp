#pragma once
// Micro-batches alive on every pipeline rank at the moments that can be the peak of memory, from the schedule's own
// order.
#include <cstdint>
#include <string>
#include <vector>

#include "layouts/layout.hpp"
#include "sim/order.hpp"

namespace shardplan {

/// One moment on one rank: micro-batches by chunk (Layout::slice_of). `alive` hold all their activations (forward
/// begun, input gradient not finished); `waiting` hold what the weight gradient still needs.
struct Moment {
  std::vector<int> alive, waiting;
  int total() const;
};

/// By rank: the moments that no other moment of that rank exceeds in every count. The peak of any non-negative
/// weighting of the counts is among them.
struct InFlight {
  std::vector<std::vector<Moment>> ranks;
  int peak_alive(int rank) const;  // largest sum of alive chunks
};

/// Walks each rank's passes in order; needs no times. `slices_per_rank` chunks a rank, named by the order's layer
/// slots.
InFlight in_flight_of(const Order&, const Layout&);

/// The same for a layout's schedule; closed forms for 1f1b and gpipe, else the schedule's order. Depends only on
/// schedule, pp, vpp, group and micro-batches: callers with many layouts keep the answer by in_flight_key.
InFlight in_flight(const Layout&, std::int64_t microbatches);
std::string in_flight_key(const Layout&, std::int64_t microbatches);

}  // namespace shardplan
