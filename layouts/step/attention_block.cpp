#include "layouts/step/attention_block.hpp"

#include <algorithm>
#include <cmath>

#include "layouts/step/tensor_parallel.hpp"

namespace shardplan {
namespace {

/// Bytes an element that each further step of ring attention moves beside its attention. The outputs of the steps are
/// merged in FP32: one hand-written kernel reads the step's (2) and updates the sum (8); plain operators, as PyTorch's
/// merger has them (FROM MEMORY), widen it (6), subtract (12), weight (8) and subtract again (12). Backward the step's
/// gradients (2) are added to FP32 sums (8).
struct RingMerge {
  double output, gradient = 10;
};
RingMerge ring_merge(Elementwise mode) {
  return {mode == Elementwise::eager || mode == Elementwise::compiled ? 38.0 : 10.0};
}

/// Causal attention of this rank, forward or backward, and what its context-parallel exchange leaves exposed.
void attention_core(LayerBuilder& b, const Attention& a, const Groups& groups) {
  const Layout& layout = b.layout();
  const std::int64_t seq = b.question().workload.seq_len;
  AttentionShape shape;
  shape.batch = layout.mbs;
  shape.heads = std::max<std::int64_t>(1, a.heads / layout.tp);
  shape.kv_heads =
      a.kind == AttentionKind::multi_latent ? shape.heads : std::max<std::int64_t>(1, a.kv_heads / layout.tp);
  shape.head_dim = a.head_dim;
  shape.v_head_dim = a.kind == AttentionKind::multi_latent ? a.v_head : 0;
  shape.window = a.window;
  shape.type = b.price().wide_type();
  shape.library = b.question().options.on(Effect::unfused_attention) || b.stack().attention != AttentionLibrary::unfused
                      ? b.stack().attention
                      : AttentionLibrary::fa2;
  shape.dropout = b.stack().attention_dropout;
  const int launches = shape.library == AttentionLibrary::unfused ? 6 : 1;
  const auto both = [&](AttentionShape s, double times) {
    s.pass = AttentionPass::forward;
    b.add_forward(Module::core_attn, Part::attention, b.price().attention(s), times, launches);
    s.pass = AttentionPass::backward;
    b.backward(Part::attention, b.price().attention(s), launches, times);
  };
  const int cp = layout.cp;
  const ContextParallel by = layout.cp_by.value_or(b.stack().cp_by);
  if (cp == 1) {
    shape.q_len = shape.kv_len = seq;
    both(shape, 1);
    return;
  }
  const double kv_bytes = b.price().wide_bytes() * b.tokens() * static_cast<double>(shape.kv_heads) *
                          static_cast<double>(a.head_dim + (shape.v_head_dim > 0 ? shape.v_head_dim : a.head_dim));
  const double q_bytes = b.price().wide_bytes() * b.tokens() * static_cast<double>(shape.heads * a.head_dim);
  if (by == ContextParallel::ulysses) {
    // All tokens of heads / cp: Q, K, V in and the output out, each an all-to-all.
    shape.heads = std::max<std::int64_t>(1, shape.heads / cp);
    shape.kv_heads = std::max<std::int64_t>(1, shape.kv_heads / cp);
    shape.q_len = shape.kv_len = seq;
    both(shape, 1);
    const Price moved = b.price().collective(Collective::all_to_all, 2 * q_bytes + kv_bytes, groups.cp);
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
                          b.price().collective(Collective::all_gather, kv_bytes * cp, groups.cp));
    b.communicate_backward(Part::cp, b.price().collective(Collective::reduce_scatter, kv_bytes * cp, groups.cp), 2);
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
  const double wide = b.price().wide_bytes(), steps = cp - 1;
  const RingMerge merge = ring_merge(b.elementwise_mode());
  const double outputs = q_bytes / wide / static_cast<double>(a.head_dim) *
                         static_cast<double>(shape.v_head_dim > 0 ? shape.v_head_dim : a.head_dim);
  b.elementwise(Module::core_attn, MemoryKernel::copy, steps * outputs * merge.output,
                steps * (q_bytes + kv_bytes) / wide * merge.gradient, 2 * (cp - 1));
  const Price message = b.price().collective(Collective::send_recv, kv_bytes, groups.cp);
  step.pass = AttentionPass::forward;
  const double forward = b.price().attention(step).seconds;
  step.pass = AttentionPass::backward;
  const double backward = b.price().attention(step).seconds;
  const auto left = [&](const Price& p, double under) {
    return p.seconds > 0 ? scaled(p, (cp - 1) * std::max(0.0, p.seconds - under) / p.seconds) : p;
  };
  b.communicate_forward(Module::core_attn, Part::cp, left(message, forward), cp - 1);
  b.communicate_backward(Part::cp, left(scaled(message, 2), backward), cp - 1);  // K, V and their gradients
}

/// Operators of Megatron's latent attention between its up-projections and the attention itself that no price has:
/// compressed keys and rotary part split, up-projected keys and values split, made contiguous, the shared key expanded
/// (transformer/multi_latent_attention.py with its fused rotation).
constexpr int kLatentOperators = 4;

}  // namespace

void attention_block(LayerBuilder& b, const Layer& layer, const Groups& groups, DataType linear) {
  const Attention& a = layer.attention;
  const Layout& layout = b.layout();
  const double m = b.tokens(), local = b.sequence_tokens();
  const std::int64_t h = b.question().model->hidden, tp = layout.tp;
  const ElementwiseTraffic traffic = elementwise_traffic(b.elementwise_mode());
  const TpTraffic t = tp_traffic(b, groups, linear);
  b.begin(LayerPart::attention);
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
    const std::int64_t keys = a.key_width() / tp;
    const double joined = m * static_cast<double>(keys) * 4;
    b.elementwise(Module::mla_up_proj, MemoryKernel::copy, joined, joined);
    if (b.stack().framework == "megatron") b.launch_forward(Module::mla_up_proj, kLatentOperators);
    if (b.stack().framework == "megatron") b.launch_backward(kLatentOperators);
  } else {
    const std::int64_t kv = std::max<std::int64_t>(a.kv_heads / tp, 1) * a.head_dim;
    const std::int64_t n = a.query_width() / tp + 2 * kv;
    column = b.price().gemm(std::llround(m), n, h, linear, GemmPass::forward).seconds;
    b.linear(Module::linear, Part::gemm, m, n, h, linear, hidden_reduction(b, t, kProducts), hidden_gather(b, t));
  }
  const std::int64_t queries_and_keys = (a.query_width() + a.key_width()) / tp;
  const double rotated = m * static_cast<double>(queries_and_keys);
  if (b.question().model->learned_positions == 0)
    b.elementwise(Module::other, MemoryKernel::rotary, rotated * traffic.rotary, rotated * traffic.rotary_backward,
                  traffic.rotary_kernels);
  if (a.qk_norm != QkNorm::none)
    b.elementwise(Module::layernorm, MemoryKernel::norm, rotated * traffic.norm, rotated * traffic.norm_backward,
                  2 * traffic.norm_kernels);
  attention_core(b, a, groups);
  const double row = b.price().gemm(std::llround(m), h, a.output_width() / tp, linear, GemmPass::forward).seconds;
  b.linear(Module::linear, Part::gemm, m, h, a.output_width() / tp, linear);
  tp_collectives(b, t, Module::linear, kProducts, column, row);
  b.elementwise(Module::other, MemoryKernel::add, local * static_cast<double>(h) * traffic.add,
                local * static_cast<double>(h) * traffic.add_backward);
}

}  // namespace shardplan
