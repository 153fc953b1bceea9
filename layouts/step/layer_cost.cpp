#include "layouts/step/layer_cost.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "layouts/step/price.hpp"

namespace shardplan {
namespace {

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
constexpr std::size_t kModules = 10;

}  // namespace

/// Collects the operations of one layer. Every method adds the forward operation and its backward counterparts.
class LayerBuilder {
 public:
  explicit LayerBuilder(const LayerPricer& pricer)
      : p_(pricer), q_(pricer.question_), layout_(q_.layout), stack_(q_.stack), price_(q_) {}

  /// A linear layer: tokens m, output n, input k. `tp_backward` = seconds of a reduction that may hide under its weight
  /// gradient.
  void linear(Module module, Part part, double m, std::int64_t n, std::int64_t k, DataType type,
              double hidden_reduction = 0, double hidden_gather = 0, bool casts = true) {
    if (n <= 0 || k <= 0) return;
    const auto rows = std::max<std::int64_t>(1, std::llround(m));
    const Price forward = price_.gemm(rows, n, k, type, GemmPass::forward);
    const Price dgrad = price_.gemm(rows, n, k, type, GemmPass::input_grad);
    const Price wgrad = price_.gemm(rows, n, k, type, GemmPass::weight_grad, stack_.fp32_accumulate);
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
  }

  /// Casts of an FP8 or FP4 product: input in the forward pass, gradient in the backward pass, each read once in BF16
  /// and written once by rows and once by columns (Transformer Engine's cast-transpose); per-row scales read the tensor
  /// twice more for their maxima, once a direction. The weights' own cast is once a step and lies in the optimizer's
  /// traffic.
  void cast(double m, std::int64_t n, std::int64_t k, DataType type) {
    if (!q_.options.on(Effect::elementwise)) return;
    const double out = 2 * bytes_of(type),
                 in = 2.0 * (type == DataType::fp8_row ? 3 : 1) * (elementwise_mode() == Elementwise::eager ? 2 : 1);
    add_forward(Module::other, Part::elementwise,
                price_.memory(MemoryKernel::cast, m * static_cast<double>(k) * (in + out)));
    backward(Part::elementwise, price_.memory(MemoryKernel::cast, m * static_cast<double>(n) * (in + out)), 1);
  }

  /// Memory-bound work: bytes of the forward and of the backward pass as they are for tensors of 16 bits, kernels each.
  /// One kernel an operator, or what a
  /// compiler generates, streams at the rate of a copy, and its bytes are all that it moves; hand-written kernels have
  /// tables of their own, over the least traffic.
  void elementwise(Module module, MemoryKernel kernel, double forward_bytes, double backward_bytes, int kernels = 1) {
    if (!q_.options.on(Effect::elementwise)) return;
    const Elementwise mode = elementwise_mode();
    if ((mode == Elementwise::eager || mode == Elementwise::compiled) && kernel != MemoryKernel::permute)
      kernel = MemoryKernel::copy;
    forward_bytes *= price_.wide_bytes() / 2;
    backward_bytes *= price_.wide_bytes() / 2;
    if (forward_bytes > 0) add_forward(module, Part::elementwise, price_.memory(kernel, forward_bytes), 1, kernels);
    if (backward_bytes > 0) backward(Part::elementwise, price_.memory(kernel, backward_bytes), kernels);
  }

  void add_forward(Module module, Part part, const Price& price, double times = 1, int kernels = 1) {
    by_module_[static_cast<std::size_t>(module)].add(part, price, times);
    by_module_[static_cast<std::size_t>(module)].host += kernels * price_.launch();
  }
  void backward(Part part, const Price& price, int kernels, double times = 1) {
    cost_.input_grad.add(part, price, times);
    launch_backward(kernels);
  }
  void launch_backward(int kernels) { cost_.input_grad.host += kernels * price_.launch(); }
  void communicate_forward(Module module, Part part, const Price& price, int calls = 1) {
    if (price.seconds <= 0) return;
    by_module_[static_cast<std::size_t>(module)].add(part, price);
    by_module_[static_cast<std::size_t>(module)].host += calls * price_.collective_launch();
  }
  void communicate_backward(Part part, const Price& price, int calls = 1) {
    if (price.seconds <= 0) return;
    cost_.input_grad.add(part, price);
    cost_.input_grad.host += calls * price_.collective_launch();
  }
  /// A backward collective that runs beside a GEMM: what is left of it, and what it takes from the GEMM.
  void exposed_backward(double seconds, double gemm_seconds) {
    if (seconds <= 0) return;
    cost_.input_grad.host += price_.collective_launch();
    const double left =
        std::max(0.0, seconds - gemm_seconds) + price_.contention(Part::tp) * std::min(seconds, gemm_seconds);
    cost_.input_grad.add(Part::tp, Price{left, left, left, price_.derived()});
  }

  /// What was added so far is the attention's block (with a router): the first of the two that a pair runs.
  void mark_attention() {
    LayerLanes& lanes = cost_.lanes;
    lanes.attention = forward_device();
    lanes.attention_back = cost_.input_grad.device();
    lanes.attention_weights = cost_.weight_grad.device();
  }

  /// Sums the modules into the forward pass and the chosen ones into the recomputed work.
  LayerCost finish(bool recomputed) {
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
    if (recomputed && layout_.recompute == Recompute::selective && layout_.modules.per_op) {
      // Half of the matrix products and all element-wise work run again; attention and collectives are kept.
      Cost again;
      for (const Cost& module : by_module_) again += module;
      again.parts[static_cast<std::size_t>(Part::gemm)] *= 0.5;
      for (const Part kept : {Part::attention, Part::tp, Part::cp, Part::ep})
        again.parts[static_cast<std::size_t>(kept)] = 0;
      const double share = again.device() / std::max(1e-30, cost_.forward.device());
      again.low = cost_.forward.low * share;
      again.high = cost_.forward.high * share;
      again.host *= 0.5;
      for (double& b : again.basis) b *= share;
      cost_.recompute += again;
      lanes.attention_back += again.device();
    }
    return cost_;
  }

  DataType linear_type() const { return p_.linear_; }

  /// compile= decides between a compiler and eager operators; without it the stack does.
  Elementwise elementwise_mode() const {
    return layout_.compile ? (*layout_.compile ? Elementwise::compiled : Elementwise::eager) : stack_.elementwise;
  }

  LayerCost cost_;
  const LayerPricer& p_;
  const StepQuestion& q_;
  const Layout& layout_;
  const Stack& stack_;
  StepPricer price_;

 private:
  bool repeats(Module module) const {
    if (!q_.options.on(Effect::recompute)) return false;
    if (layout_.recompute == Recompute::full) return true;
    if (layout_.recompute == Recompute::none) return false;
    const RecomputeModules& m = layout_.modules;
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

  double forward_device() const {
    double sum = 0;
    for (const Cost& module : by_module_) sum += module.device();
    return sum;
  }
  static bool after_attention(Module module) {
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

  std::array<Cost, kModules> by_module_{};
};

namespace {

/// Bytes an element of memory-bound work, 16-bit tensors, forward and backward. eager: one kernel an operator. Its RMS
/// norm runs in FP32 (to FP32 6, square 8, mean 4, scale 8, back 6, weight 4; backward: weight 4 and its gradient 8, to
/// FP32 6, both sides of the product 20, power 24, sum 8, back 6, the input's two paths 8), its rotation in complex
/// FP32 (6, 8, 6), its activation as SiLU 4 and product 6 (backward 12 and 6). fused: hand-written kernels (norm; bias
/// + dropout + add; bias + activation; rotary); compiled: norm fused with the addition before it; plain: every
/// operator reads its inputs and writes its output once, and the residual's gradient is added like the residual.
/// Counted from reads and writes of each kernel; leaves out row statistics and biases.
struct Traffic {
  double norm, norm_backward, add, add_backward, gated, gated_backward, plain, plain_backward, rotary, rotary_backward;
  int norm_kernels, act_kernels, rotary_kernels;
};
constexpr Traffic traffic_of(Elementwise mode) {
  switch (mode) {
    case Elementwise::eager:
      return {36, 84, 6, 6, 10, 18, 8, 12, 20, 20, 6, 3, 8};
    case Elementwise::fused:
      return {4, 8, 6, 2, 6, 10, 4, 6, 4, 4, 1, 1, 2};
    case Elementwise::compiled:
      return {4, 6, 4, 2, 6, 10, 4, 6, 4, 4, 1, 1, 1};
    case Elementwise::plain:
      return {4, 8, 6, 6, 6, 10, 4, 6, 4, 4, 1, 1, 1};
  }
  return {};
}

Elementwise elementwise_of(const LayerBuilder& b) { return b.elementwise_mode(); }

Price scaled(Price p, double factor) {
  p.seconds *= factor;
  p.low *= factor;
  p.high *= factor;
  return p;
}

/// The tensor-parallel traffic of one column-parallel ... row-parallel block, added around its products.
struct TpTraffic {
  bool on = false, sequence = false;
  Price gather, scatter,
      reduce;  // all-gather and reduce-scatter of the sequence; all-reduce without sequence parallelism
};

/// torchao's tensor-parallel styles cast before they gather where a tensor has one scale
/// (torchao/float8/float8_tensor_parallel.py); with a scale a row they gather 16 bits. Transformer Engine's stacks are
/// priced with 16 bits, which overstates those of its releases that gather what their quantisers wrote. Reductions are
/// in 16 bits everywhere.
double gathered_bytes(const LayerBuilder& b, DataType type) {
  return b.stack_.framework == "pytorch" && type == DataType::fp8 ? bytes_of(type) : b.price_.wide_bytes();
}

/// `type` = of the products whose input is gathered.
TpTraffic tp_traffic(const LayerBuilder& b, const Groups& groups, DataType type) {
  TpTraffic t;
  if (b.layout_.tp == 1 || !b.q_.options.on(Effect::tp_communication)) return t;
  t.on = true;
  t.sequence = b.layout_.sequence_parallel();
  // Activations of all tokens of the rank: s b h elements.
  const double elements = b.p_.tokens() * static_cast<double>(b.q_.model->hidden);
  if (t.sequence) {
    t.gather = b.price_.collective(Collective::all_gather, gathered_bytes(b, type) * elements, groups.tp);
    t.scatter = b.price_.collective(Collective::reduce_scatter, b.price_.wide_bytes() * elements, groups.tp);
  } else {
    t.reduce = b.price_.collective(Collective::all_reduce, b.price_.wide_bytes() * elements, groups.tp);
  }
  return t;
}

TpOverlap tp_overlap_of(const LayerBuilder& b) { return b.layout_.tp_overlap.value_or(b.stack_.tp_overlap); }

/// PyTorch's asynchronous tensor parallelism: the compiler finds a gather before a product, or a product before a
/// reduce-scatter, and fuses the two through symmetric memory (torch/_inductor/fx_passes/micro_pipeline_tp.py). What it
/// does not find stays in the open: a reduce-scatter of a sum of several products (the input gradients of Q, K and V,
/// of gate and up); the input's second gather, before its weight gradient (the gathered tokens are what that product
/// sums over); with per-row FP8 scales every gather, whose casts lie between it and the product (pytorch issue 149990).
bool symmetric_memory(const LayerBuilder& b) {
  return b.stack_.framework == "pytorch" && tp_overlap_of(b) == TpOverlap::async;
}
/// Its fused reduce-scatter collects the partial results of all ranks and sums them afterwards, in the open: read once,
/// written as one shard.
Price partial_sums(const LayerBuilder& b) {
  const double bytes = b.price_.wide_bytes() * b.p_.tokens() * static_cast<double>(b.q_.model->hidden);
  return b.price_.memory(MemoryKernel::add, bytes * (1 + 1.0 / b.layout_.tp));
}

/// Seconds of the block's backward reduction that may hide under its column-parallel weight gradient; `products` share
/// the block's input.
double hidden_reduction(const LayerBuilder& b, const TpTraffic& t, int products) {
  if (!t.on || (!b.stack_.async_tp_backward && tp_overlap_of(b) == TpOverlap::none)) return 0;
  if (symmetric_memory(b) && products > 1) return 0;
  return t.sequence ? t.scatter.seconds : t.reduce.seconds;
}
/// Seconds of the input's second gather, before its weight gradient, that may hide.
double hidden_gather(const LayerBuilder& b, const TpTraffic& t) {
  if (!t.on || !t.sequence || symmetric_memory(b) ||
      (!b.stack_.async_tp_backward && tp_overlap_of(b) == TpOverlap::none))
    return 0;
  return t.gather.seconds;
}

/// Exposed seconds of a forward collective beside a product of `gemm` seconds.
/// none, bulk: all of it. async, user buffers: cut into tp chunks sent while the next chunk is multiplied: the first
/// chunk and what exceeds the product stay visible, and what hides takes its SMs from the product. async, symmetric
/// memory: a rank's own chunk is multiplied while the others travel, by copy engines, which hold no SMs.
double exposed_beside(const LayerBuilder& b, double seconds, double gemm) {
  if (tp_overlap_of(b) != TpOverlap::async || seconds <= 0) return seconds;
  const double chunk = 1.0 / b.layout_.tp;
  if (symmetric_memory(b)) return std::max(0.0, seconds - gemm * (1 - chunk));
  const double rest = seconds * (1 - chunk);
  return seconds * chunk + std::max(0.0, rest - gemm) + b.price_.contention(Part::tp) * std::min(rest, gemm);
}

/// Collectives around a block whose first `products`, side by side, take `column` seconds and whose last takes `row`
/// seconds, forward.
void tp_collectives(LayerBuilder& b, const TpTraffic& t, Module module, int products, double column, double row) {
  if (!t.on) return;
  const auto exposed = [&](const Price& p, double gemm) {
    return p.seconds > 0 ? scaled(p, exposed_beside(b, p.seconds, gemm) / p.seconds) : p;
  };
  if (!t.sequence) {
    b.communicate_forward(module, Part::tp, exposed(t.reduce, row));
    if (hidden_reduction(b, t, products) == 0) b.communicate_backward(Part::tp, t.reduce);
    return;
  }
  const bool lone_gather = symmetric_memory(b) && b.linear_type() == DataType::fp8_row;
  b.communicate_forward(module, Part::tp, lone_gather ? t.gather : exposed(t.gather, column));
  b.communicate_forward(module, Part::tp, exposed(t.scatter, row));
  // Of the row-parallel output gradient, before both its products.
  b.communicate_backward(Part::tp, lone_gather ? t.gather : exposed(t.gather, row));
  const bool reduced = hidden_reduction(b, t, products) > 0;
  if (!reduced) b.communicate_backward(Part::tp, t.scatter);
  if (hidden_gather(b, t) == 0) b.communicate_backward(Part::tp, t.gather);
  if (!symmetric_memory(b)) return;
  b.communicate_forward(module, Part::tp, partial_sums(b));
  if (reduced) b.communicate_backward(Part::tp, partial_sums(b));
}

/// Causal attention of this rank, forward or backward, and what its context-parallel exchange leaves exposed.
void attention_core(LayerBuilder& b, const Attention& a, const Groups& groups) {
  const Layout& layout = b.layout_;
  const std::int64_t seq = b.q_.workload.seq_len;
  AttentionShape shape;
  shape.batch = layout.mbs;
  shape.heads = std::max<std::int64_t>(1, a.heads / layout.tp);
  shape.kv_heads =
      a.kind == AttentionKind::multi_latent ? shape.heads : std::max<std::int64_t>(1, a.kv_heads / layout.tp);
  shape.head_dim = a.head_dim;
  shape.v_head_dim = a.kind == AttentionKind::multi_latent ? a.v_head : 0;
  shape.window = a.window;
  shape.type = b.price_.wide_type();
  shape.library = b.q_.options.on(Effect::unfused_attention) || b.stack_.attention != AttentionLibrary::unfused
                      ? b.stack_.attention
                      : AttentionLibrary::fa2;
  shape.dropout = b.stack_.attention_dropout;
  const int launches = shape.library == AttentionLibrary::unfused ? 6 : 1;
  const auto both = [&](AttentionShape s, double times) {
    s.pass = AttentionPass::forward;
    b.add_forward(Module::core_attn, Part::attention, b.price_.attention(s), times, launches);
    s.pass = AttentionPass::backward;
    b.backward(Part::attention, b.price_.attention(s), launches, times);
  };
  const int cp = layout.cp;
  const ContextParallel by = layout.cp_by.value_or(b.stack_.cp_by);
  if (cp == 1) {
    shape.q_len = shape.kv_len = seq;
    both(shape, 1);
    return;
  }
  const double kv_bytes = b.price_.wide_bytes() * b.p_.tokens() * static_cast<double>(shape.kv_heads) *
                          static_cast<double>(a.head_dim + (shape.v_head_dim > 0 ? shape.v_head_dim : a.head_dim));
  const double q_bytes = b.price_.wide_bytes() * b.p_.tokens() * static_cast<double>(shape.heads * a.head_dim);
  if (by == ContextParallel::ulysses) {
    // All tokens of heads / cp: Q, K, V in and the output out, each an all-to-all.
    shape.heads = std::max<std::int64_t>(1, shape.heads / cp);
    shape.kv_heads = std::max<std::int64_t>(1, shape.kv_heads / cp);
    shape.q_len = shape.kv_len = seq;
    both(shape, 1);
    const Price moved = b.price_.collective(Collective::all_to_all, 2 * q_bytes + kv_bytes, groups.cp);
    b.communicate_forward(Module::core_attn, Part::cp, moved, 4);
    b.communicate_backward(Part::cp, moved, 4);
    return;
  }
  const std::int64_t local = std::max<std::int64_t>(1, seq / cp);
  if (by == ContextParallel::all_gather) {
    // Each rank holds two slices, one from either end: its queries see half of all keys on average.
    shape.q_len = local;
    shape.kv_len = std::max<std::int64_t>(1, seq / 2);
    shape.causal = false;
    both(shape, 1);
    b.communicate_forward(Module::core_attn, Part::cp,
                          b.price_.collective(Collective::all_gather, kv_bytes * cp, groups.cp));
    b.communicate_backward(Part::cp, b.price_.collective(Collective::reduce_scatter, kv_bytes * cp, groups.cp), 2);
    return;
  }
  // Ring, zig-zag: the local causal block, then cp - 1 blocks of which half the pairs are visible; K and V travel
  // meanwhile.
  shape.q_len = shape.kv_len = local;
  AttentionShape step = shape;
  step.causal = false;
  step.kv_len = std::max<std::int64_t>(1, local / 2);
  both(shape, 1);
  both(step, cp - 1);
  const Price message = b.price_.collective(Collective::send_recv, kv_bytes, groups.cp);
  step.pass = AttentionPass::forward;
  const double forward = b.price_.attention(step).seconds;
  step.pass = AttentionPass::backward;
  const double backward = b.price_.attention(step).seconds;
  const auto left = [&](const Price& p, double under) {
    return p.seconds > 0 ? scaled(p, (cp - 1) * std::max(0.0, p.seconds - under) / p.seconds) : p;
  };
  b.communicate_forward(Module::core_attn, Part::cp, left(message, forward), cp - 1);
  b.communicate_backward(Part::cp, left(scaled(message, 2), backward), cp - 1);  // K, V and their gradients
}

void attention_block(LayerBuilder& b, const Layer& layer, const Groups& groups, DataType linear) {
  const Attention& a = layer.attention;
  const Layout& layout = b.layout_;
  const double m = b.p_.tokens(), local = b.p_.sequence_tokens();
  const std::int64_t h = b.q_.model->hidden, tp = layout.tp;
  const Traffic traffic = traffic_of(elementwise_of(b));
  const TpTraffic t = tp_traffic(b, groups, linear);
  constexpr int kProducts = 3;  // Q, K and V of the same input; with latent attention their up-projections

  b.elementwise(Module::layernorm, MemoryKernel::norm, local * static_cast<double>(h) * traffic.norm,
                local * static_cast<double>(h) * traffic.norm_backward, traffic.norm_kernels);
  double column = 0;
  if (a.kind == AttentionKind::multi_latent) {
    // Down-projections are replicated over tensor ranks and run on their slice of the sequence.
    if (a.q_lora > 0) {
      b.linear(Module::linear, Part::gemm, local, a.q_lora, h, linear);
      b.elementwise(Module::layernorm, MemoryKernel::norm, local * static_cast<double>(a.q_lora) * traffic.norm,
                    local * static_cast<double>(a.q_lora) * traffic.norm_backward, traffic.norm_kernels);
      b.linear(Module::mla_up_proj, Part::gemm, m, a.query_width() / tp, a.q_lora, linear);
    } else {
      b.linear(Module::linear, Part::gemm, m, a.query_width() / tp, h, linear);
    }
    b.linear(Module::linear, Part::gemm, local, a.kv_lora + a.qk_rope, h, linear);
    b.elementwise(Module::layernorm, MemoryKernel::norm, local * static_cast<double>(a.kv_lora) * traffic.norm,
                  local * static_cast<double>(a.kv_lora) * traffic.norm_backward, traffic.norm_kernels);
    b.linear(Module::mla_up_proj, Part::gemm, m, a.heads * (a.qk_nope + a.v_head) / tp, a.kv_lora, linear,
             hidden_reduction(b, t, kProducts), hidden_gather(b, t));
    // Keys are joined from their compressed and rotary parts: written and read once more.
    b.elementwise(Module::mla_up_proj, MemoryKernel::copy, m * static_cast<double>(a.key_width() / tp) * 4,
                  m * static_cast<double>(a.key_width() / tp) * 4);
  } else {
    const std::int64_t kv = std::max<std::int64_t>(a.kv_heads / tp, 1) * a.head_dim;
    const std::int64_t n = a.query_width() / tp + 2 * kv;
    column = b.price_.gemm(std::llround(m), n, h, linear, GemmPass::forward).seconds;
    b.linear(Module::linear, Part::gemm, m, n, h, linear, hidden_reduction(b, t, kProducts), hidden_gather(b, t));
  }
  const double rotated = m * static_cast<double>((a.query_width() + a.key_width()) / tp);
  if (b.q_.model->learned_positions == 0)
    b.elementwise(Module::other, MemoryKernel::rotary, rotated * traffic.rotary, rotated * traffic.rotary_backward,
                  traffic.rotary_kernels);
  if (a.qk_norm != QkNorm::none)
    b.elementwise(Module::layernorm, MemoryKernel::norm, rotated * traffic.norm, rotated * traffic.norm_backward,
                  2 * traffic.norm_kernels);
  attention_core(b, a, groups);
  const double row = b.price_.gemm(std::llround(m), h, a.output_width() / tp, linear, GemmPass::forward).seconds;
  b.linear(Module::linear, Part::gemm, m, h, a.output_width() / tp, linear);
  tp_collectives(b, t, Module::linear, kProducts, column, row);
  b.elementwise(Module::other, MemoryKernel::add, local * static_cast<double>(h) * traffic.add,
                local * static_cast<double>(h) * traffic.add_backward);
}

/// Gate, up and down products of width `width` per rank, their activation and (outside MoE) their collectives.
void mlp_products(LayerBuilder& b, double m, std::int64_t width, bool gated, DataType linear, Module module, Part part,
                  const TpTraffic& t) {
  const std::int64_t h = b.q_.model->hidden;
  const Traffic traffic = traffic_of(elementwise_of(b));
  const std::int64_t columns = gated ? 2 * width : width;
  const double column =
      b.price_.gemm(std::max<std::int64_t>(1, std::llround(m)), columns, h, linear, GemmPass::forward).seconds;
  const double row =
      b.price_.gemm(std::max<std::int64_t>(1, std::llround(m)), h, width, linear, GemmPass::forward).seconds;
  const int products = gated ? 2 : 1;
  b.linear(module, part, m, columns, h, linear, hidden_reduction(b, t, products), hidden_gather(b, t));
  b.elementwise(
      module, MemoryKernel::activation, m * static_cast<double>(width) * (gated ? traffic.gated : traffic.plain),
      m * static_cast<double>(width) * (gated ? traffic.gated_backward : traffic.plain_backward), traffic.act_kernels);
  b.linear(module, part, m, h, width, linear);
  tp_collectives(b, t, module, products, column, row);
}

void expert_products(LayerBuilder& b, const Moe& moe, const std::vector<std::int64_t>& tokens, DataType linear) {
  const std::int64_t h = b.q_.model->hidden, width = moe.width / b.layout_.etp;
  // One launch an expert and product: Transformer Engine's grouped linear layer loops over streams.
  const int launches = static_cast<int>(tokens.size());
  const auto product = [&](std::int64_t n, std::int64_t k) {
    GroupedGemm g{tokens, n, k, linear, GemmPass::forward, false};
    b.add_forward(Module::experts, Part::experts, b.price_.grouped(g), 1, launches);
    g.pass = GemmPass::input_grad;
    b.cost_.input_grad.add(Part::experts, b.price_.grouped(g));
    g.pass = GemmPass::weight_grad;
    g.accumulate_fp32 = b.stack_.fp32_accumulate;
    b.cost_.weight_grad.add(Part::experts, b.price_.grouped(g));
    b.launch_backward(2 * launches);
  };
  double rows = 0;
  for (const std::int64_t n : tokens) rows += static_cast<double>(n);
  const Traffic traffic = traffic_of(elementwise_of(b));
  product(moe.gated ? 2 * width : width, h);
  b.elementwise(Module::moe_act, MemoryKernel::activation,
                rows * static_cast<double>(width) * (moe.gated ? traffic.gated : traffic.plain),
                rows * static_cast<double>(width) * (moe.gated ? traffic.gated_backward : traffic.plain_backward),
                traffic.act_kernels);
  product(h, width);
  if (b.price_.narrow(linear) && linear != DataType::fp8) {
    b.cast(rows, moe.gated ? 2 * width : width, h, linear);
    b.cast(rows, h, width, linear);
  }
}

void moe_block(LayerBuilder& b, const Moe& moe, const Groups& groups, DataType linear) {
  const Layout& layout = b.layout_;
  const std::int64_t h = b.q_.model->hidden;
  // Each rank of a tensor group routes its own slice of the sequence (Megatron requires sequence parallelism here).
  const double local = layout.tp > 1 ? b.p_.tokens() / layout.tp : b.p_.tokens();
  b.linear(Module::moe_other, Part::gemm, local, moe.experts, h, b.price_.wide_type(), 0, 0, false);
  b.elementwise(Module::moe_other, MemoryKernel::norm, local * static_cast<double>(moe.experts) * 20,
                local * static_cast<double>(moe.experts) * 12, 8);
  b.mark_attention();
  // Rows gathered into expert order and back: read and written once each way, forward and backward.
  const double moved = local * static_cast<double>(moe.top_k * h) * 2;
  b.elementwise(Module::moe_other, MemoryKernel::permute, 2 * 2 * moved, 2 * 2 * moved, 6);

  const ExpertTraffic exchange = b.price_.expert_traffic(moe, local, h, groups);
  double hidden = 0;
  const EpOverlap overlap = layout.ep_overlap.value_or(EpOverlap::none);
  double shared_seconds = 0;
  if (moe.shared_width > 0) {
    const std::int64_t width = std::max<std::int64_t>(1, moe.shared_width / layout.tp);
    shared_seconds =
        b.price_
            .gemm(std::llround(std::max(1.0, b.p_.tokens())), (moe.gated ? 2 : 1) * width, h, linear, GemmPass::forward)
            .seconds;
    mlp_products(b, b.p_.tokens(), width, moe.gated, linear, Module::shared_experts, Part::gemm,
                 tp_traffic(b, groups, linear));
  }
  if (overlap == EpOverlap::shared) hidden = std::min(shared_seconds, exchange.dispatch.seconds);
  expert_products(b, moe, exchange.tokens, linear);
  if (layout.etp > 1) {
    const double bytes = b.price_.wide_bytes() * local * static_cast<double>(moe.top_k * h) * layout.etp;
    b.communicate_forward(Module::moe_other, Part::tp, b.price_.collective(Collective::all_gather, bytes, groups.etp));
    b.communicate_forward(Module::moe_other, Part::tp,
                          b.price_.collective(Collective::reduce_scatter, bytes, groups.etp));
    b.communicate_backward(Part::tp, b.price_.collective(Collective::all_gather, bytes, groups.etp));
    b.communicate_backward(Part::tp, b.price_.collective(Collective::reduce_scatter, bytes, groups.etp));
  }
  if (layout.ep > 1 && b.q_.options.on(Effect::moe_communication)) {
    const double out = exchange.dispatch.seconds, back = exchange.combine.seconds;
    b.communicate_forward(Module::moe_other, Part::ep, scaled(exchange.dispatch, out > 0 ? (out - hidden) / out : 0),
                          2);
    b.communicate_forward(Module::moe_other, Part::ep, exchange.combine);
    // The backward pass sends gradients the same ways: combine's gradient out, dispatch's back, both in 16 bits.
    b.communicate_backward(Part::ep, exchange.combine);
    b.communicate_backward(Part::ep, exchange.combine);
    b.cost_.forward_a2a = out + back - hidden;
    b.cost_.backward_a2a = 2 * back;
    LayerLanes& lanes = b.cost_.lanes;
    lanes.dispatch = out - hidden;
    lanes.combine = lanes.combine_back = lanes.dispatch_back = back;
    lanes.contention = exchange.contention;
  }
}

}  // namespace

LayerPricer::LayerPricer(const StepQuestion& question, const Groups& groups) : question_(question), groups_(groups) {
  const Layout& layout = question.layout;
  tokens_ = static_cast<double>(layout.mbs) * static_cast<double>(question.workload.seq_len) / layout.cp;
  sequence_tokens_ = layout.sequence_parallel() ? tokens_ / layout.tp : tokens_;
  linear_ = question.workload.precision;
  wide_ = linear_ == DataType::fp16 ? DataType::fp16 : (linear_ == DataType::fp32 ? DataType::fp32 : DataType::bf16);
}

LayerCost LayerPricer::layer(const Layer& layer, bool recomputed) const {
  LayerBuilder b(*this);
  const bool attends = layer.attention.heads > 0;
  if (attends) attention_block(b, layer, groups_, linear_);
  const Traffic traffic = traffic_of(elementwise_of(b));
  const double h = static_cast<double>(question_.model->hidden);
  const int extra_norms = attends ? std::max(0, layer.norms - 1) : layer.norms;  // attention's is priced with it
  b.elementwise(Module::layernorm, MemoryKernel::norm, extra_norms * sequence_tokens_ * h * traffic.norm,
                extra_norms * sequence_tokens_ * h * traffic.norm_backward, extra_norms * traffic.norm_kernels);
  if (layer.moe) {
    moe_block(b, *layer.moe, groups_, linear_);
  } else {
    b.mark_attention();
    mlp_products(b, tokens_, layer.mlp.width / question_.layout.tp, layer.mlp.gated, linear_, Module::mlp, Part::gemm,
                 tp_traffic(b, groups_, linear_));
  }
  b.elementwise(Module::other, MemoryKernel::add, sequence_tokens_ * h * traffic.add,
                sequence_tokens_ * h * traffic.add_backward);
  return b.finish(recomputed);
}

namespace {

/// Without a vocabulary hidden states are copied in at the first stage, their gradient out there, and the loss's
/// gradient in at the last: one copy each, read and written.
Cost hidden_states_copied(LayerBuilder& b) {
  b.elementwise(Module::other, MemoryKernel::copy, 4 * b.p_.tokens() * static_cast<double>(b.q_.model->hidden), 0);
  return b.finish(false).forward;
}

}  // namespace

Cost LayerPricer::embedding_forward() const {
  LayerBuilder b(*this);
  if (question_.model->vocab == 0) return hidden_states_copied(b);
  if (question_.options.on(Effect::vocabulary)) {
    const double bytes = 2 * b.price_.wide_bytes() * tokens_ * static_cast<double>(question_.model->hidden);
    b.add_forward(Module::other, Part::vocabulary, b.price_.memory(MemoryKernel::embedding, bytes), 1, 3);
    const TpTraffic t = tp_traffic(b, groups_, wide_);
    if (t.on) b.communicate_forward(Module::other, Part::tp, t.sequence ? t.scatter : t.reduce);
  }
  return b.finish(false).forward;
}

Cost LayerPricer::embedding_backward() const {
  LayerBuilder b(*this);
  if (question_.model->vocab == 0) return hidden_states_copied(b);
  if (question_.options.on(Effect::vocabulary)) {
    // Rows are added into an FP32 gradient by sorted or atomic scatter: gradient read, rows read and written.
    const double bytes = (8 + b.price_.wide_bytes()) * tokens_ * static_cast<double>(question_.model->hidden);
    b.backward(Part::vocabulary, b.price_.memory(MemoryKernel::embedding, bytes), 3);
    const TpTraffic t = tp_traffic(b, groups_, wide_);
    if (t.on && t.sequence) b.communicate_backward(Part::tp, t.gather);
  }
  return b.finish(false).input_grad;
}

LayerCost LayerPricer::head() const {
  LayerBuilder b(*this);
  if (question_.model->vocab == 0) {
    LayerCost out;
    out.input_grad = hidden_states_copied(b);
    return out;
  }
  if (!question_.options.on(Effect::vocabulary)) return b.finish(false);
  const Model& model = *question_.model;
  const Traffic traffic = traffic_of(elementwise_of(b));
  const double h = static_cast<double>(model.hidden);
  b.elementwise(Module::other, MemoryKernel::norm, sequence_tokens_ * h * traffic.norm,
                sequence_tokens_ * h * traffic.norm_backward, traffic.norm_kernels);
  const TpTraffic t = tp_traffic(b, groups_, wide_);
  // Megatron stacks pad the vocabulary to a multiple of 128 x tp (FROM MEMORY); the others train the stated size.
  const std::int64_t tp = question_.layout.tp;
  const bool pads = b.stack_.framework == "megatron" || b.stack_.framework == "deepspeed";
  const std::int64_t unit = pads ? 128 * tp : tp;
  const std::int64_t columns = (model.vocab + unit - 1) / unit * unit / tp;
  // The output head stays in 16 bits under FP8 recipes.
  b.linear(Module::other, Part::vocabulary, tokens_, columns, model.hidden, wide_, hidden_reduction(b, t, 1),
           hidden_gather(b, t), false);
  if (t.on) {
    if (t.sequence) b.communicate_forward(Module::other, Part::tp, t.gather);
    if (hidden_reduction(b, t, 1) == 0) b.communicate_backward(Part::tp, t.sequence ? t.scatter : t.reduce);
    // Maximum, sum of exponentials and target logit of each token: three all-reduces of 4 bytes a token.
    const Price stats = b.price_.collective(Collective::all_reduce, 4 * tokens_, groups_.tp);
    for (int i = 0; i < 3; ++i) b.communicate_forward(Module::other, Part::tp, stats);
  }
  const bool fused = question_.layout.fused_loss.value_or(false);
  const double bytes = fused ? 14 : b.stack_.loss_bytes_per_logit;  // forward and backward together, half each
  const double logits = tokens_ * static_cast<double>(columns) * b.price_.wide_bytes() / 2;  // as if of 16 bits
  b.add_forward(Module::other, Part::vocabulary, b.price_.memory(MemoryKernel::cross_entropy, logits * bytes / 2), 1,
                fused ? 2 : 8);
  b.backward(Part::vocabulary, b.price_.memory(MemoryKernel::cross_entropy, logits * bytes / 2), fused ? 1 : 4);
  return b.finish(false);
}

LayerCost LayerPricer::mtp_projection() const {
  LayerBuilder b(*this);
  b.linear(Module::other, Part::gemm, tokens_, question_.model->hidden / question_.layout.tp,
           2 * question_.model->hidden, linear_);
  return b.finish(false);
}

}  // namespace shardplan
