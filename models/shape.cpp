#include "models/shape.hpp"

#include "base/errors.hpp"
#include "models/check_model.hpp"

namespace shardplan {
namespace {

void check_range(std::int64_t value, std::int64_t least, std::int64_t most, const char* name,
                 const std::string& where) {
  if (value < least)
    throw InputError(
        where, std::string(name) + " out of range: " + std::to_string(value) + " is below " + std::to_string(least));
  if (value > most)
    throw InputError(
        where, std::string(name) + " out of range: " + std::to_string(value) + " is above " + std::to_string(most));
}

void check_shape(const ModelShape& s, const std::string& where) {
  check_range(s.layers, 1, kMostLayers, "layers", where);
  check_range(s.hidden, 1, kMostFeatures, "hidden", where);
  check_range(s.heads, 1, kMostFeatures, "heads", where);
  check_range(s.vocab, 1, kMostVocab, "vocab", where);
  check_range(s.dense_layers, 0, s.layers, "dense_layers", where);
  check_range(s.mtp_layers, 0, kMostLayers, "mtp_layers", where);
  check_range(s.experts, 0, kMostExperts, "experts", where);
  check_range(s.full_attention_every, 0, kMostLayers, "full_attention_every", where);
  const std::pair<const char*, std::int64_t> widths[] = {
      {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim}, {"ffn", s.ffn},
      {"top_k", s.top_k},       {"moe_ffn", s.moe_ffn},   {"shared_ffn", s.shared_ffn},
      {"q_lora", s.q_lora},     {"kv_lora", s.kv_lora},   {"qk_nope", s.qk_nope},
      {"qk_rope", s.qk_rope},   {"v_head", s.v_head},     {"learned_positions", s.learned_positions}};
  for (const auto& [name, value] : widths) check_range(value, 0, kMostFeatures, name, where);
  check_range(s.window, 0, kMostPositions, "window", where);
  if (s.head_dim == 0 && s.kv_lora == 0 && s.hidden % s.heads != 0) {
    throw InputError(where, "hidden " + std::to_string(s.hidden) + " is not a multiple of " + std::to_string(s.heads) +
                                " heads, and head_dim is not stated");
  }
}

Attention attention_of(const ModelShape& s, bool biases) {
  Attention a;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads > 0 ? s.kv_heads : s.heads;
  a.head_dim = s.head_dim > 0 ? s.head_dim : s.hidden / s.heads;
  a.qkv_bias = a.output_bias = biases;
  a.qk_norm = s.qk_norm;
  if (s.kv_lora == 0) return a;
  a.kind = AttentionKind::multi_latent;
  a.qkv_bias = a.output_bias = false;
  a.qk_norm = QkNorm::none;
  a.kv_heads = s.heads;
  a.q_lora = s.q_lora;
  a.kv_lora = s.kv_lora;
  a.qk_nope = s.qk_nope > 0 ? s.qk_nope : a.head_dim;
  a.qk_rope = s.qk_rope;
  a.v_head = s.v_head > 0 ? s.v_head : a.qk_nope;
  a.head_dim = a.qk_nope + a.qk_rope;
  return a;
}

Moe moe_of(const ModelShape& s, bool biases) {
  Moe e;
  e.experts = s.experts;
  e.top_k = s.top_k;
  e.width = s.moe_ffn > 0 ? s.moe_ffn : s.ffn;
  e.shared_width = s.shared_ffn;
  e.gated = s.gated;
  e.bias = biases;
  return e;
}

}  // namespace

Model model_from_shape(const ModelShape& s, const std::string& where) {
  check_shape(s, where);
  const bool biases = s.biases.value_or(!s.gated);
  Model m;
  m.name = s.name;
  m.source = s.source;
  m.hidden = s.hidden;
  m.vocab = s.vocab;
  m.learned_positions = s.learned_positions;
  m.tied_embeddings = s.tied_embeddings;
  m.norm = s.norm.value_or(s.gated ? NormKind::rms : NormKind::layer_norm);
  const Attention attention = attention_of(s, biases);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    Layer layer;
    layer.attention = attention;
    const bool full = s.full_attention_every > 0 && (i + 1) % s.full_attention_every == 0;
    layer.attention.window = full ? 0 : s.window;
    if (s.experts > 0 && i >= s.dense_layers) {
      layer.moe = moe_of(s, biases);
    } else {
      layer.mlp = {.width = s.ffn, .gated = s.gated, .bias = biases};
    }
    m.layers.push_back(layer);
  }
  m.mtp.assign(static_cast<std::size_t>(s.mtp_layers), m.layers.back());
  check_model(m, where);
  return m;
}

}  // namespace shardplan
