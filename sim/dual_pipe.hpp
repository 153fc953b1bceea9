#pragma once
// The eight steps that DualPipe and DualPipeV share on one rank (deepseek-ai/DualPipe, dualpipe.py and dualpipev.py).
#include <array>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

struct DualPipeRank {
  int half = 1;                           // ranks a half: p / 2 (DualPipe) or p (DualPipeV)
  int depth = 0;                          // distance from the outer end of its half: 0 .. half - 1
  int microbatches = 1;                   // of one phase
  std::array<int, 2> stage{};             // virtual stage of phase 0 (the rank's own half) and of phase 1
  std::array<int, 2> first_microbatch{};  // its first micro-batch
};

/// With H = half, h = depth, n = microbatches; F0 = next forward of phase 0; I leaves a weight gradient in a queue, W
/// runs the oldest; (F0&B1) is an overlapped pair:
///  1. 2 (H-h-1) x F0            2. (h+1) x F0 F1            3. (H-h-1) x I1 W F1
///  4. (n-2H+h+1) x (F0&B1) (F1&B0), the first pair of the middle rank (h = H-1) one after the other
///  5. (H-h-1) x B1 (F1&B0)      6. (h+1) x B1 B0, halfway on as I1 I0
///  7. (H-h-1) x W I0            8. (h+1) x W
void dual_pipe_rank(std::vector<Pass>& list, const DualPipeRank& rank);

}  // namespace shardplan
