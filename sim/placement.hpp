#pragma once
// Where virtual stages live. Each returns an Order with its stages placed and one empty list of passes a rank.
#include "sim/order.hpp"

namespace shardplan {

/// Virtual stage s on rank s mod p; ranks * chunks stages in one chain.
Order loop_placement(int ranks, int microbatches, int chunks = 1);
/// Down and back up: 2 p stages, s on rank s (s < p) else 2 p - 1 - s.
Order v_placement(int ranks, int microbatches);
/// Two chains over the same ranks: stages 0 .. p-1 down (stage s on rank s), p .. 2p-1 up (stage p + s on rank p-1-s).
/// Micro-batches 0 .. m/2 - 1 go down, the others up. Two copies of the parameters.
Order bidirectional_placement(int ranks, int microbatches);

inline Pass forward_pass(int stage, int microbatch) { return {PassKind::forward, stage, microbatch, -1, -1}; }
inline Pass backward_pass(int stage, int microbatch) { return {PassKind::backward, stage, microbatch, -1, -1}; }
inline Pass input_grad_pass(int stage, int microbatch) { return {PassKind::input_grad, stage, microbatch, -1, -1}; }
inline Pass weight_grad_pass(int stage, int microbatch) { return {PassKind::weight_grad, stage, microbatch, -1, -1}; }
inline Pass overlapped_pass(const Pass& forward, const Pass& backward) {
  return {PassKind::overlapped, forward.stage, forward.microbatch, backward.stage, backward.microbatch};
}

}  // namespace shardplan
