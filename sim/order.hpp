#pragma once
// The order of passes on every rank: what a pipeline schedule decides, and nothing else. Plain arrays, no times.
#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

/// forward F; backward B = input and weight gradients in one, its gradient sent when it ends; input_grad I and
/// weight_grad W are its halves, the gradient sent when I ends; overlapped = one forward and one backward as a pair,
/// both end together.
enum class PassKind : std::uint8_t { forward, backward, input_grad, weight_grad, overlapped };

struct Pass {
  PassKind kind = PassKind::forward;
  std::int32_t stage = 0;  // virtual stage (for overlapped: of the forward half)
  std::int32_t microbatch = 0;
  std::int32_t stage2 = -1;  // overlapped only: the backward half
  std::int32_t microbatch2 = -1;
};

/// A whole schedule. Virtual stages form one or more chains (bidirectional schedules: two): stage s sends its output to
/// next[s] (-1 = the last, where the loss is) and its gradient to previous[s] (-1 = the first).
struct Order {
  int ranks = 0;
  int microbatches = 0;      // of all chains together
  int parameter_copies = 1;  // 2 for bidirectional schedules
  std::vector<std::int32_t> rank_of_stage;
  std::vector<std::int32_t> next;
  std::vector<std::int32_t> previous;
  std::vector<std::int32_t>
      layer_slot;  // which slice of the model's depth a virtual stage holds: 0 .. slots-1, first to last
  std::vector<std::vector<Pass>> passes;  // one list a rank, in execution order

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
};

}  // namespace shardplan
