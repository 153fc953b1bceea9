#include "layouts/layer_weights.hpp"

#include <algorithm>

namespace shardplan {

namespace {

double d(std::int64_t v) { return static_cast<double>(v); }

double norm_elements(const Model& m, std::int64_t width) { return d(width) * (m.norm == NormKind::layer_norm ? 2 : 1); }

void add_grouped_query(const Model& m, const Attention& a, LayerWeights& out) {
  const double h = d(m.hidden);
  out.sharded += h * d(a.query_width()) + d(a.output_width()) * h;
  out.kv += h * d(a.key_width() + a.value_width());
  if (a.qkv_bias) out.sharded += d(a.query_width());
  if (a.qkv_bias) out.kv += d(a.key_width() + a.value_width());
  if (a.output_bias) out.replicated += h;
  if (a.qk_norm == QkNorm::per_head) out.replicated += 2 * d(a.head_dim);
  if (a.qk_norm == QkNorm::full_width) {
    out.sharded += d(a.query_width());
    out.kv += d(a.key_width());
  }
}

/// DeepSeek's MLA: the down-projections are small and held whole by every tensor-parallel rank (Megatron does the
/// same).
void add_multi_latent(const Model& m, const Attention& a, LayerWeights& out) {
  const double h = d(m.hidden), heads = d(a.heads);
  const double query_in = a.q_lora > 0 ? d(a.q_lora) : h;
  if (a.q_lora > 0) out.replicated += h * d(a.q_lora) + norm_elements(m, a.q_lora);
  out.replicated += h * d(a.kv_lora + a.qk_rope) + norm_elements(m, a.kv_lora);
  out.sharded += query_in * heads * d(a.qk_nope + a.qk_rope) + d(a.kv_lora) * heads * d(a.qk_nope + a.v_head);
  out.sharded += heads * d(a.v_head) * h;
  if (a.output_bias) out.replicated += h;
}

void add_mlp(const Model& m, const Mlp& mlp, LayerWeights& out) {
  const double h = d(m.hidden), f = d(mlp.width), inputs = mlp.gated ? 2 : 1;
  out.sharded += (inputs + 1) * h * f;
  if (mlp.bias) out.sharded += inputs * f;
  if (mlp.bias) out.replicated += h;
}

void add_moe(const Model& m, const Moe& moe, LayerWeights& out) {
  const double h = d(m.hidden), matrices = moe.gated ? 3 : 2;
  out.experts += matrices * h * d(moe.width) * d(moe.experts);
  out.sharded += matrices * h * d(moe.shared_width);
  out.replicated += h * d(moe.experts) + (moe.router_bias ? d(moe.experts) : 0) + (moe.shared_gate ? h : 0);
}

}  // namespace

double LayerWeights::dense_on_rank(int tp) const {
  const double kv_cut = kv_heads > 0 ? static_cast<double>(std::min<std::int64_t>(tp, kv_heads)) : tp;
  return sharded / tp + kv / kv_cut + replicated;
}

LayerWeights layer_weights(const Model& m, const Layer& layer) {
  LayerWeights out;
  out.kv_heads = layer.attention.kv_heads;
  if (layer.attention.kind == AttentionKind::multi_latent) {
    add_multi_latent(m, layer.attention, out);
  } else {
    add_grouped_query(m, layer.attention, out);
  }
  if (layer.moe) {
    add_moe(m, *layer.moe, out);
  } else {
    add_mlp(m, layer.mlp, out);
  }
  out.replicated += layer.norms * norm_elements(m, m.hidden);
  return out;
}

EndWeights end_weights(const Model& m, double padded_vocab) {
  EndWeights out;
  out.embedding = padded_vocab * d(m.hidden);
  out.positions = d(m.learned_positions) * d(m.hidden);
  out.final_norm = norm_elements(m, m.hidden);
  if (!m.tied_embeddings) out.head = padded_vocab * d(m.hidden);
  if (m.head_bias) out.head += padded_vocab;
  return out;
}

LayerWeights mtp_weights(const Model& m, const Layer& layer) {
  LayerWeights out = layer_weights(m, layer);
  out.sharded += 2 * d(m.hidden) * d(m.hidden);
  out.replicated += 3 * norm_elements(m, m.hidden);
  return out;
}

double layer_multiplies(const Model& m, const Layer& layer) {
  const LayerWeights w = layer_weights(m, layer);
  const double chosen = layer.moe ? d(layer.moe->top_k) / d(std::max<std::int64_t>(1, layer.moe->experts)) : 0;
  return w.sharded + w.kv + w.replicated + w.experts * chosen;
}

}  // namespace shardplan
