#pragma once
// List scheduling: an order built by running it. Every rank starts whatever is ready, backward passes first.
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

struct ListQuestion {
  Order placement;  // stages placed, lists of passes empty
  /// By rank: lanes of passes (forward and backward only) that must keep their order among themselves.
  std::vector<std::vector<std::vector<Pass>>> lanes;
  double forward = 1, backward = 1;  // times of a pass, hops are free
  /// By rank: chunks in flight at most. Exceeded, one chunk at a time, only where nothing else could run any more.
  std::vector<int> most_in_flight;
};

/// Ties: the earliest start, then backward before forward, then the lane that is least far, then the stage
/// nearest to the loss.
Order list_order(ListQuestion question);

}  // namespace shardplan
