#pragma once
// Sends and receives of an order: where each stands between the passes of its rank.
#include <cstdint>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

enum class ActionKind : std::uint8_t {
  compute,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
  unshard,      // gather a stage's sharded parameters
  reshard,      // free them
  reduce_grad,  // reduce a stage's gradients over its data-parallel group
};

/// One entry of a rank's list. A send names its own stage, a receive the receiving stage.
struct Action {
  ActionKind kind = ActionKind::compute;
  std::int32_t position = -1;  // compute: in Order::passes[rank]
  std::int32_t stage = -1;     // sends and receives
  std::int32_t microbatch = -1;
  std::int32_t peer = -1;  // the other rank
};

/// PyTorch's lowering rule (torch/distributed/pipelining/schedules.py, _add_send_recv): ranks take turns, one pass a
/// turn; a pass may be placed once the messages it needs are in its rank's list; a send stands right after its pass and
/// its receive is appended to the receiver's list at that moment. No message between stages of one rank.
/// Throws InputError("schedule", ...) where the order deadlocks even with unlimited buffers.
std::vector<std::vector<Action>> lower_messages(const Order&);

/// The same with what PyTorch adds around sharded parameters, each of which takes a turn too: before a pass, stages
/// that are not among the next three of the rank are resharded and those that are, unsharded; gradients of a stage are
/// reduced after its last weight gradient.
std::vector<std::vector<Action>> lower_with_parameters(const Order&);

}  // namespace shardplan
