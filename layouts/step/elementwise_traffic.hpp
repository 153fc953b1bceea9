#pragma once
// Memory traffic of the element-wise kernels of a layer, by how a stack writes them.
#include "layouts/step/stack.hpp"

namespace shardplan {

/// Bytes an element of memory-bound work, 16-bit tensors, forward and backward. eager: one kernel an operator. Its RMS
/// norm runs in FP32 (to FP32 6, square 8, mean 4, scale 8, back 6, weight 4; backward: weight 4 and its gradient 8, to
/// FP32 6, both sides of the product 20, power 24, sum 8, back 6, the input's two paths 8), its rotation in complex
/// FP32 (6, 8, 6), its activation as SiLU 4 and product 6 (backward 12 and 6). fused: hand-written kernels (norm; bias
/// + dropout + add; bias + activation; rotary); compiled: norm fused with the addition before it; plain: every
/// operator reads its inputs and writes its output once, and the residual's gradient is added like the residual.
/// Counted from reads and writes of each kernel; leaves out row statistics and biases.
struct ElementwiseTraffic {
  double norm, norm_backward, add, add_backward, gated, gated_backward, plain, plain_backward, rotary, rotary_backward;
  int norm_kernels, act_kernels, rotary_kernels;
};
ElementwiseTraffic elementwise_traffic(Elementwise);

}  // namespace shardplan
