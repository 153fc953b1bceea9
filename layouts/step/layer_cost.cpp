#include "layouts/step/layer_cost.hpp"

#include <algorithm>

#include "layouts/step/attention_block.hpp"
#include "layouts/step/expert_block.hpp"
#include "layouts/step/feed_forward_block.hpp"

namespace shardplan {

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
  const ElementwiseTraffic traffic = elementwise_traffic(b.elementwise_mode());
  const double h = static_cast<double>(question_.model->hidden);
  const int extra_norms = attends ? std::max(0, layer.norms - 1) : layer.norms;  // attention's is priced with it
  b.elementwise(Module::layernorm, MemoryKernel::norm, extra_norms * sequence_tokens_ * h * traffic.norm,
                extra_norms * sequence_tokens_ * h * traffic.norm_backward, extra_norms * traffic.norm_kernels);
  if (layer.moe) {
    expert_block(b, *layer.moe, groups_, linear_);
  } else {
    b.mark_attention();
    b.begin(LayerPart::mlp);
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
  b.elementwise(Module::other, MemoryKernel::copy, 4 * b.tokens() * static_cast<double>(b.question().model->hidden), 0);
  return b.finish(false).forward;
}

}  // namespace

Cost LayerPricer::embedding_forward() const {
  LayerBuilder b(*this);
  if (question_.model->vocab == 0) return hidden_states_copied(b);
  if (question_.options.on(Effect::vocabulary)) {
    const double bytes = 2 * b.price().wide_bytes() * tokens_ * static_cast<double>(question_.model->hidden);
    b.add_forward(Module::other, Part::vocabulary, b.price().memory(MemoryKernel::embedding, bytes), 1, 3);
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
    const double bytes = (8 + b.price().wide_bytes()) * tokens_ * static_cast<double>(question_.model->hidden);
    b.backward(Part::vocabulary, b.price().memory(MemoryKernel::embedding, bytes), 3);
    const TpTraffic t = tp_traffic(b, groups_, wide_);
    if (t.on && t.sequence) b.communicate_backward(Part::tp, t.gather);
  }
  return b.finish(false).input_grad;
}

/// Bytes that a fused cross-entropy moves a logit of 16 bits, forward and backward.
constexpr double kFusedLossBytes = 14;

LayerCost LayerPricer::head() const {
  LayerBuilder b(*this);
  if (question_.model->vocab == 0) {
    LayerCost out;
    out.input_grad = hidden_states_copied(b);
    return out;
  }
  if (!question_.options.on(Effect::vocabulary)) return b.finish(false);
  const Model& model = *question_.model;
  const ElementwiseTraffic traffic = elementwise_traffic(b.elementwise_mode());
  const double h = static_cast<double>(model.hidden);
  b.elementwise(Module::other, MemoryKernel::norm, sequence_tokens_ * h * traffic.norm,
                sequence_tokens_ * h * traffic.norm_backward, traffic.norm_kernels);
  const TpTraffic t = tp_traffic(b, groups_, wide_);
  // Megatron stacks pad the vocabulary to a multiple of 128 x tp (FROM MEMORY); the others train the stated size.
  const std::int64_t tp = question_.layout.tp;
  const bool pads = b.stack().framework == "megatron" || b.stack().framework == "deepspeed";
  const std::int64_t unit = pads ? 128 * tp : tp;
  const std::int64_t columns = (model.vocab + unit - 1) / unit * unit / tp;
  // The output head stays in 16 bits under FP8 recipes.
  b.linear(Module::other, Part::vocabulary, tokens_, columns, model.hidden, wide_, hidden_reduction(b, t, 1),
           hidden_gather(b, t), false);
  if (t.on) {
    if (t.sequence) b.communicate_forward(Module::other, Part::tp, t.gather);
    if (hidden_reduction(b, t, 1) == 0) b.communicate_backward(Part::tp, t.sequence ? t.scatter : t.reduce);
    // Maximum, sum of exponentials and target logit of each token: three all-reduces of 4 bytes a token.
    const Price stats = b.price().collective(Collective::all_reduce, 4 * tokens_, groups_.tp);
    for (int i = 0; i < 3; ++i) b.communicate_forward(Module::other, Part::tp, stats);
  }
  const bool fused = question_.layout.fused_loss.value_or(false);
  const double bytes =
      fused ? kFusedLossBytes : b.stack().loss_bytes_per_logit;  // forward and backward together, half each
  // Plain operators stream like a copy; a fused kernel has a table of its own.
  const MemoryKernel kernel = bytes > kFusedLossBytes ? MemoryKernel::copy : MemoryKernel::cross_entropy;
  const double logits = tokens_ * static_cast<double>(columns) * b.price().wide_bytes() / 2;  // as if of 16 bits
  b.add_forward(Module::other, Part::vocabulary, b.price().memory(kernel, logits * bytes / 2), 1, fused ? 2 : 8);
  b.backward(Part::vocabulary, b.price().memory(kernel, logits * bytes / 2), fused ? 1 : 4);
  return b.finish(false);
}

LayerCost LayerPricer::mtp_projection() const {
  LayerBuilder b(*this);
  b.linear(Module::other, Part::gemm, tokens_, question_.model->hidden / question_.layout.tp,
           2 * question_.model->hidden, linear_);
  return b.finish(false);
}

}  // namespace shardplan
