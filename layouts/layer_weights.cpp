#include "layouts/layer_weights.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

namespace {

/// Whether frameworks with fused projections keep it in the tensor of another name (of q, of up).
bool joined(std::string_view name) {
  return name == "k" || name == "v" || name == "k_bias" || name == "v_bias" || name == "gate" || name == "gate_bias";
}

RankWeights on_rank(const std::vector<Tensor>& tensors, int tp, int ep, int etp) {
  RankWeights out;
  for (const Tensor& t : tensors) {
    if (!t.trained) continue;
    const bool expert = t.component == Component::routed_experts;
    const auto elements = static_cast<double>(shard_parameters(t, expert ? etp : tp)) / (expert ? ep : 1);
    (expert ? out.experts : out.dense) += elements;
    if (!joined(t.name)) out.tensors += expert ? static_cast<double>(t.copies) / ep : 1;
    if (!t.linear) continue;
    const double one = expert ? elements * ep / static_cast<double>(t.copies) : elements;
    out.distinct += one;
    out.largest = std::max(out.largest, one);
  }
  return out;
}

bool same_attention(const Attention& a, const Attention& b) {
  return a.kind == b.kind && a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.qkv_bias == b.qkv_bias && a.output_bias == b.output_bias && a.qk_norm == b.qk_norm && a.window == b.window &&
         a.sinks == b.sinks && a.q_lora == b.q_lora && a.kv_lora == b.kv_lora && a.qk_nope == b.qk_nope &&
         a.qk_rope == b.qk_rope && a.v_head == b.v_head;
}

bool same_moe(const Moe& a, const Moe& b) {
  return a.experts == b.experts && a.top_k == b.top_k && a.width == b.width && a.shared_width == b.shared_width &&
         a.shared_gate == b.shared_gate && a.gated == b.gated && a.bias == b.bias && a.router_bias == b.router_bias;
}

}  // namespace

RankWeights layer_weights(const Model& m, const Layer& layer, int tp, int ep, int etp) {
  return on_rank(layer_tensors(m, layer), tp, ep, etp);
}

RankWeights mtp_weights(const Model& m, const Layer& layer, int tp, int ep, int etp) {
  return on_rank(mtp_tensors(m, layer), tp, ep, etp);
}

double padded_vocab(const Model& m, int tp, std::int64_t multiple) {
  const auto vocab = static_cast<double>(m.vocab);
  if (multiple <= 0) return vocab;
  const double unit = static_cast<double>(multiple) * tp;
  return std::ceil(vocab / unit) * unit;
}

EndWeights end_weights(const Model& m, int tp, double vocab) {
  EndWeights out;
  const auto hidden = static_cast<double>(m.hidden);
  out.embedding = vocab * hidden / tp + static_cast<double>(m.learned_positions) * hidden;
  out.head = vocab * hidden / tp + (m.head_bias ? vocab / tp : 0);
  out.final_norm = m.vocab == 0 ? 0 : hidden * (m.norm == NormKind::layer_norm ? 2 : 1);
  return out;
}

double layer_multiplies(const Model& m, const Layer& layer) {
  double out = 0;
  for (const Tensor& t : layer_tensors(m, layer)) {
    const bool expert = t.component == Component::routed_experts;
    const double share = expert ? static_cast<double>(layer.moe->top_k) / static_cast<double>(t.copies) : 1;
    if (t.in > 1) out += share * static_cast<double>(t.count());
  }
  return out;
}

bool same_layer(const Layer& a, const Layer& b) {
  if (a.norms != b.norms || a.moe.has_value() != b.moe.has_value() || !same_attention(a.attention, b.attention))
    return false;
  if (a.moe) return same_moe(*a.moe, *b.moe);
  return a.mlp.width == b.mlp.width && a.mlp.gated == b.mlp.gated && a.mlp.bias == b.mlp.bias;
}

}  // namespace shardplan
