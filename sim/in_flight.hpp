#pragma once
// Activations in flight, in bytes, from the order alone.
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

struct RankInFlight {
  double until_input_grad = 0;   // a chunk's bytes are freed at the end of its input gradient
  double until_weight_grad = 0;  // all of them are held until its weight gradient has ended
  double split = 0;  // chunk_bytes until the input gradient, then weight_grad_bytes until the weight gradient
};

/// Peaks by rank. A micro-batch holds chunk_bytes[s] (M_B) on virtual stage s from the start of its forward pass on; a
/// full backward pass frees everything when it ends. weight_grad_bytes[s] (M_W) is what the weight gradient still
/// needs. An overlapped pair holds both of its chunks while it runs. Buffers of messages are not counted.
std::vector<RankInFlight> in_flight_bytes(const Order&, const std::vector<double>& chunk_bytes,
                                          const std::vector<double>& weight_grad_bytes);

}  // namespace shardplan
