#include "layouts/step/layer_builder.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {
namespace {

/// What checkpointing a region costs the host besides the work it repeats, in operators: states of random numbers
/// saved, set and restored on both devices, inputs detached, a backward call nested in the backward pass (Megatron
/// core, tensor_parallel/random.py). Assumed.
constexpr int kCheckpointOperators = 8;

bool after_attention(Module module) {
  switch (module) {
    case Module::moe_act:
    case Module::experts:
    case Module::moe_other:
    case Module::mlp:
    case Module::shared_experts:
      return true;
    default:
      return false;
  }
}

}  // namespace

LayerBuilder::LayerBuilder(const LayerPricer& pricer)
    : pricer_(pricer), question_(pricer.question()), price_(question_) {}

Elementwise LayerBuilder::elementwise_mode() const {
  if (!layout().compile) return stack().elementwise;
  return *layout().compile ? Elementwise::compiled : Elementwise::eager;
}

void LayerBuilder::linear(Module module, Part part, double m, std::int64_t n, std::int64_t k, DataType type,
                          double hidden_reduction, double hidden_gather, bool casts) {
  if (n <= 0 || k <= 0) return;
  const auto rows = std::max<std::int64_t>(1, std::llround(m));
  const Price forward = price_.gemm(rows, n, k, type, GemmPass::forward);
  const Price dgrad = price_.gemm(rows, n, k, type, GemmPass::input_grad);
  const Price wgrad = price_.gemm(rows, n, k, type, GemmPass::weight_grad, accumulates_fp32());
  add_forward(module, part, forward);
  cost_.input_grad.add(part, dgrad);
  cost_.weight_grad.add(part, wgrad);
  launch_backward(2);
  // The re-gather of the sharded input hides under the input gradient, the reduction of that gradient under the
  // weight gradient.
  exposed_backward(hidden_gather, dgrad.seconds);
  exposed_backward(hidden_reduction, wgrad.seconds);
  // Per-tensor FP8 products are tabled with the quantisation of their input in them.
  if (casts && price_.narrow(type) && type != DataType::fp8) cast(m, n, k, type);
  if (casts && !price_.narrow(type)) keep_narrow(m * static_cast<double>(k));
}

void LayerBuilder::cast(double m, std::int64_t n, std::int64_t k, DataType type) {
  if (!question_.options.on(Effect::elementwise)) return;
  const double out = 2 * bytes_of(type),
               in = 2.0 * (type == DataType::fp8_row ? 3 : 1) * (elementwise_mode() == Elementwise::eager ? 2 : 1);
  add_forward(Module::other, Part::elementwise,
              price_.memory(MemoryKernel::cast, m * static_cast<double>(k) * (in + out)));
  backward(Part::elementwise, price_.memory(MemoryKernel::cast, m * static_cast<double>(n) * (in + out)), 1);
}

void LayerBuilder::keep_narrow(double values) {
  if (!layout().act_store_fp8.value_or(false) || !question_.options.on(Effect::elementwise)) return;
  const Price price = price_.memory(MemoryKernel::cast, values * (price_.wide_bytes() + 1));
  add_forward(Module::other, Part::elementwise, price);
  backward(Part::elementwise, price, 1);
}

void LayerBuilder::elementwise(Module module, MemoryKernel kernel, double forward_bytes, double backward_bytes,
                               int kernels) {
  if (!question_.options.on(Effect::elementwise)) return;
  const Elementwise mode = elementwise_mode();
  if ((mode == Elementwise::eager || mode == Elementwise::compiled) && kernel != MemoryKernel::permute)
    kernel = MemoryKernel::copy;
  forward_bytes *= price_.wide_bytes() / 2;
  backward_bytes *= price_.wide_bytes() / 2;
  if (forward_bytes > 0) add_forward(module, Part::elementwise, price_.memory(kernel, forward_bytes), 1, kernels);
  if (backward_bytes > 0) backward(Part::elementwise, price_.memory(kernel, backward_bytes), kernels);
}

void LayerBuilder::add_forward(Module m, Part part, const Price& price, double times, int kernels) {
  module(m).add(part, price, times);
  module(m).host += kernels * launch();
}

void LayerBuilder::backward(Part part, const Price& price, int kernels, double times) {
  cost_.input_grad.add(part, price, times);
  launch_backward(kernels);
}

void LayerBuilder::communicate_forward(Module m, Part part, const Price& price, int calls) {
  if (price.seconds <= 0) return;
  module(m).add(part, price);
  module(m).host += calls * launch();
}

void LayerBuilder::communicate_backward(Part part, const Price& price, int calls) {
  if (price.seconds <= 0) return;
  cost_.input_grad.add(part, price);
  cost_.input_grad.host += calls * launch();
}

/// A backward collective that runs beside a GEMM: what is left of it, and what it takes from the GEMM.
void LayerBuilder::exposed_backward(double seconds, double gemm_seconds) {
  if (seconds <= 0) return;
  cost_.input_grad.host += launch();
  const double left =
      std::max(0.0, seconds - gemm_seconds) + price_.contention(Part::tp) * std::min(seconds, gemm_seconds);
  cost_.input_grad.add(Part::tp, Price{left, left, left, price_.derived()});
}

void LayerBuilder::begin(LayerPart part) {
  const bool captured = price_.captures(part);
  if (captured && !captured_) {
    launch_forward(Module::other, 1);
    launch_backward(1);
  }
  captured_ = captured;
}

void LayerBuilder::mark_attention() {
  LayerLanes& lanes = cost_.lanes;
  lanes.attention = forward_device();
  lanes.attention_back = cost_.input_grad.device();
  lanes.attention_weights = cost_.weight_grad.device();
}

LayerCost LayerBuilder::finish(bool recomputed) {
  LayerLanes& lanes = cost_.lanes;
  lanes.experts = forward_device() - lanes.attention - lanes.dispatch - lanes.combine;
  lanes.experts_back = cost_.input_grad.device() - lanes.attention_back - lanes.combine_back - lanes.dispatch_back;
  lanes.experts_weights = cost_.weight_grad.device() - lanes.attention_weights;
  for (std::size_t i = 0; i < kModules; ++i) {
    cost_.forward += by_module_[i];
    if (!recomputed || !repeats(static_cast<Module>(i))) continue;
    cost_.recompute += by_module_[i];
    // All-to-alls that recomputation repeats have no partner: they stay in its block.
    (after_attention(static_cast<Module>(i)) ? lanes.experts_back : lanes.attention_back) += by_module_[i].device();
  }
  if (recomputed && question_.options.on(Effect::recompute))
    cost_.recompute.host += checkpoints() * kCheckpointOperators * price_.launch();
  if (recomputed && layout().recompute == Recompute::selective && layout().modules.per_op) repeat_per_op();
  return cost_;
}

/// Checkpointed regions of the layer: each is run once more under a graph of its own.
int LayerBuilder::checkpoints() const {
  if (layout().recompute == Recompute::full) return 1;
  int regions = 0;
  for (std::size_t i = 0; i < kModules; ++i) {
    const auto module = static_cast<Module>(i);
    // `moe` is one region of several modules; norms are checkpointed one by one, before the attention and after it.
    if (module == Module::experts || !repeats(module) || by_module_[i].host <= 0) continue;
    if (layout().modules.moe && (module == Module::moe_act || module == Module::shared_experts)) continue;
    regions += module == Module::layernorm ? 2 : 1;
  }
  return regions;
}

/// Half of the matrix products and all element-wise work run again; attention and collectives are kept.
void LayerBuilder::repeat_per_op() {
  Cost again;
  for (const Cost& part : by_module_) again += part;
  again.parts[static_cast<std::size_t>(Part::gemm)] *= 0.5;
  for (const Part kept : {Part::attention, Part::tp, Part::cp, Part::ep})
    again.parts[static_cast<std::size_t>(kept)] = 0;
  const double share = again.device() / std::max(1e-30, cost_.forward.device());
  again.low = cost_.forward.low * share;
  again.high = cost_.forward.high * share;
  again.host *= 0.5;
  for (double& b : again.basis) b *= share;
  cost_.recompute += again;
  cost_.lanes.attention_back += again.device();
}

bool LayerBuilder::repeats(Module module) const {
  if (!question_.options.on(Effect::recompute)) return false;
  if (layout().recompute == Recompute::full) return true;
  if (layout().recompute == Recompute::none) return false;
  const RecomputeModules& m = layout().modules;
  switch (module) {
    case Module::core_attn:
      return m.core_attn;
    case Module::layernorm:
      return m.layernorm;
    case Module::mla_up_proj:
      return m.mla_up_proj;
    case Module::moe_act:
      return m.moe_act || m.moe;
    case Module::experts:
    case Module::moe_other:
      return m.moe;
    case Module::mlp:
      return m.mlp;
    case Module::shared_experts:
      return m.shared_experts || m.moe;
    default:
      return false;
  }
}

double LayerBuilder::forward_device() const {
  double sum = 0;
  for (const Cost& part : by_module_) sum += part.device();
  return sum;
}

}  // namespace shardplan
