#pragma once
// Collects the operations of one layer, forward and backward, by the module that selective recompute can name.
#include <array>
#include <cstdint>

#include "layouts/step/elementwise_traffic.hpp"
#include "layouts/step/layer_cost.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {

/// Parts of a layer that selective recompute can name.
enum class Module : unsigned char {
  core_attn,
  layernorm,
  mla_up_proj,
  moe_act,
  experts,
  moe_other,
  mlp,
  shared_experts,
  linear,
  other
};
inline constexpr std::size_t kModules = 10;

/// Every method adds a forward operation, its backward counterparts, or both. Lives as long as its pricer.
class LayerBuilder {
 public:
  explicit LayerBuilder(const LayerPricer&);

  const StepQuestion& question() const { return question_; }
  const Layout& layout() const { return question_.layout; }
  const Stack& stack() const { return question_.stack; }
  const StepPricer& price() const { return price_; }
  double tokens() const { return pricer_.tokens(); }
  double sequence_tokens() const { return pricer_.sequence_tokens(); }
  DataType linear_type() const { return pricer_.linear_type(); }
  /// compile= decides between a compiler and eager operators; without it the stack does.
  Elementwise elementwise_mode() const;
  /// Whether weight gradients are added up in FP32: as grad-accumulate= says, or as the stack does it.
  bool accumulates_fp32() const { return layout().grad_accumulate_fp32.value_or(stack().fp32_accumulate); }
  LayerCost& cost() { return cost_; }

  /// A linear layer: tokens m, output n, input k. `hidden_reduction` = seconds of a reduction of its input's gradient
  /// that may hide under its weight gradient, `hidden_gather` = seconds of a gather of its input that may hide under
  /// its input gradient.
  void linear(Module, Part, double m, std::int64_t n, std::int64_t k, DataType, double hidden_reduction = 0,
              double hidden_gather = 0, bool casts = true);

  /// Casts of an FP8 or FP4 product: input in the forward pass, gradient in the backward pass, each read once in BF16
  /// and written once by rows and once by columns (Transformer Engine's cast-transpose); per-row scales read the tensor
  /// twice more for their maxima, once a direction. The weights' own cast is once a step and lies in the optimizer's
  /// traffic.
  void cast(double m, std::int64_t n, std::int64_t k, DataType);

  /// act-store=fp8: these values are kept in one byte from their forward to their backward pass: cast down once, cast
  /// up once, scales left out. Nothing otherwise. Inputs of narrow products are kept as their own cast left them.
  void keep_narrow(double values);

  /// Memory-bound work: bytes of the forward and of the backward pass as they are for tensors of 16 bits, `kernels`
  /// each. One kernel an operator, or what a compiler generates, streams at the rate of a copy, and its bytes are all
  /// that it moves; hand-written kernels have tables of their own, over the least traffic.
  void elementwise(Module, MemoryKernel, double forward_bytes, double backward_bytes, int kernels = 1);

  void add_forward(Module, Part, const Price&, double times = 1, int kernels = 1);
  void backward(Part, const Price&, int kernels, double times = 1);
  /// Host launches alone: of operators whose device time is negligible, or priced elsewhere.
  void launch_forward(Module m, int operators) { module(m).host += operators * launch(); }
  void launch_backward(int operators) { cost_.input_grad.host += operators * launch(); }
  void communicate_forward(Module, Part, const Price&, int calls = 1);
  void communicate_backward(Part, const Price&, int calls = 1);

  /// What is added from here on belongs to this part of the layer. Where CUDA graphs hold it, a launch a pass stands
  /// for all of its own; parts that follow each other share a graph.
  void begin(LayerPart);

  /// What was added so far is the attention's block (with a router): the first of the two that a pair runs.
  void mark_attention();

  /// Device seconds added so far: of the forward pass, of input and weight gradients.
  double forward_device() const;
  double input_grad_device() const { return cost_.input_grad.device(); }
  double weight_grad_device() const { return cost_.weight_grad.device(); }

  /// Sums the modules into the forward pass and the chosen ones into the recomputed work.
  LayerCost finish(bool recomputed);

 private:
  void exposed_backward(double seconds, double gemm_seconds);
  bool repeats(Module) const;
  int checkpoints() const;
  double launch() const { return captured_ ? 0 : price_.launch(); }
  void repeat_per_op();
  Cost& module(Module m) { return by_module_[static_cast<std::size_t>(m)]; }

  const LayerPricer& pricer_;
  const StepQuestion& question_;
  StepPricer price_;
  LayerCost cost_;
  std::array<Cost, kModules> by_module_{};
  bool captured_ = false;
};

}  // namespace shardplan
