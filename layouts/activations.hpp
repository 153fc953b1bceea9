#pragma once
// What a layer keeps from its forward pass for its backward pass, tensor by tensor, on one rank and for one
// micro-batch.
#include <cstdint>
#include <string_view>
#include <vector>

#include "hardware/cluster.hpp"
#include "layouts/layout.hpp"
#include "models/model.hpp"

namespace shardplan {

/// Bytes of an activation outside quantised products: 4 in FP32 training, else 2 (Megatron and PyTorch keep 16 bits
/// under FP8 and FP4 too).
constexpr double wide_bytes(DataType precision) { return precision == DataType::fp32 ? 4 : 2; }

/// How a stack runs the element-wise parts, which decides what they keep. A few named facts; their sources are with the
/// stacks in layouts/data/memory_stacks.json.
struct ActivationTraits {
  bool unfused_attention = false;  // softmax input and output in memory: 2 bytes a score each kept tensor
  bool dropout = false;            // one-byte masks (and, without fused attention, the dropped scores)
  double eager_bytes = 0;          // an FFN element: what an activation function made of several kernels keeps more
  bool joined_qkv = false;         // the value is a view of the joined QKV output, which stays alive with it
  bool fp8_linear_inputs =
      false;  // FP8 recipes that keep the quantised input of a linear layer instead of the 16-bit one
};

/// Which recomputation drops a tensor: bits.
enum Recomputed : unsigned {
  kNever = 0,
  kCoreAttention = 1,
  kLayerNorm = 2,
  kMlaUpProjection = 4,
  kMoeActivation = 8,
  kMoe = 16,
  kMlp = 32,
  kSharedExperts = 64,
  kPerOp = 128
};
unsigned recomputed_modules(const Layout&);

/// One kept tensor. `bytes` on this rank for one micro-batch.
struct SavedTensor {
  std::string_view part;  // attention | mlp | router | experts | shared experts
  std::string_view name;
  double bytes = 0;
  unsigned dropped_by = kNever;
};

/// Everything the tensors of a layer depend on beside the layer itself.
struct ActivationQuestion {
  std::int64_t hidden = 0;
  NormKind norm = NormKind::rms;
  double tokens = 0;         // of a micro-batch on one context-parallel rank: mbs seq_len / cp
  double width = 2;          // bytes of an element that nothing quantises: 2, of FP32 training 4
  std::int64_t seq_len = 0;  // keys that a query may see, for unfused attention
  int tp = 1, cp = 1, etp = 1;
  bool sp = false;
  bool ulysses = false;        // attention's output is kept before and after the exchange of heads
  double load = 1;             // routed tokens of this rank over the mean
  bool act_store_fp8 = false;  // linear and activation-function inputs at one byte
  bool narrow = false;         // FP8 or FP4 products
  ActivationTraits traits;
};
ActivationQuestion activation_question(const Layout&, const Model&, const Workload&, const ActivationTraits&,
                                       double load);

/// All tensors kept without recomputation, in the order of the forward pass. FlashAttention, BF16 (2 bytes), no dropout
/// unless traits say otherwise. Left out: rotary tables, token ids, random states (< 0.1 %).
std::vector<SavedTensor> saved_tensors(const ActivationQuestion&, const Layer&);

/// Sums over saved_tensors, and what the backward pass of the layer needs for a moment.
struct LayerActivations {
  double kept = 0;        // with `modules` recomputed
  double all = 0;         // without recomputation
  double recomputed = 0;  // all - kept: alive again while this layer's backward pass runs
  double input = 0;       // the layer's input alone: what full recomputation keeps
  double waiting =
      0;  // between input and weight gradient (schedules that split them): linear inputs and output gradients
  double workspace = 0;  // gradients alive at the worst moment of the backward pass, gathered copies included
};
LayerActivations layer_activations(const ActivationQuestion&, const Layer&, unsigned modules);

/// Korthikanti et al. (arXiv 2205.05198) eq. 1-4, bytes per layer and micro-batch of s tokens: s h (10 + (24 + 5 a
/// s/h)/t), with sequence parallelism s h/t (34 + 5 a s/h); `flash` drops the scores' term. Assumes a GELU MLP of width
/// 4 h, multi-head attention and dropout masks.
double korthikanti_bytes(double tokens, double hidden, double heads, double seq_len, int tp, bool sp, bool flash);

}  // namespace shardplan
