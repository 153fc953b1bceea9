// Families whose layers differ in how they attend: Llama 4, Qwen3-Next, MiniMax-M1. Counted only.
#include <algorithm>

#include "models/check_model.hpp"
#include "models/hugging_face_parts.hpp"

namespace shardplan::hugging_face {

namespace {

/// Llama 4's layer_types, else every fourth layer attends to all (no_rope_layer_interval's default) and the others in
/// chunks.
void set_chunks(const Config& c, Model& m) {
  const std::int64_t chunk = c.count_or({"attention_chunk_size"}, 8192, kMostPositions);
  const std::int64_t every = std::max<std::int64_t>(1, c.count_or({"no_rope_layer_interval"}, 4, kMostLayers));
  const auto types = per_layer(c, "layer_types", m);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    bool full = (static_cast<std::int64_t>(i) + 1) % every == 0;
    if (types) {
      const std::string kind = types->item(i).text();
      if (kind != "full_attention" && kind != "chunked_attention")
        types->item(i).fail("not modelled: \"" + kind + "\"");
      full = kind == "full_attention";
    }
    m.layers[i].attention.chunk = full ? 0 : chunk;
  }
}

Attention read_gated_delta(const Config& c) {
  Attention a;
  a.kind = AttentionKind::gated_delta;
  a.heads = c.count({"linear_num_value_heads"}, 1, kMostFeatures);
  a.kv_heads = c.count({"linear_num_key_heads"}, 1, kMostFeatures);
  a.head_dim = c.count({"linear_key_head_dim"}, 1, kMostFeatures);
  a.v_head = c.count({"linear_value_head_dim"}, 1, kMostFeatures);
  a.convolution = c.count({"linear_conv_kernel_dim"}, 1, kMostFeatures);
  return a;
}

}  // namespace

// Llama 4's text model: every step-th layer is a mixture of experts of intermediate_size with a shared expert as wide,
// the others are dense of intermediate_size_mlp. Its QK-norm has no weights.
void read_llama4(const Config& c, Model& m) {
  read_frame(c, m, false);
  refuse_unless(c, "attention_bias", false, "Llama 4 with biases");
  c.find({"use_qk_norm"});
  Layer dense, sparse;
  dense.attention = sparse.attention = read_grouped_query(c, m);
  dense.mlp.width = c.count({"intermediate_size_mlp"}, 1, kMostFeatures);
  Moe e = read_experts(c, false);
  e.width = e.shared_width = read_width(c);
  e.score = RouterScore::sigmoid;
  sparse.moe = e;
  const std::int64_t step = std::max<std::int64_t>(1, c.count_or({"interleave_moe_layer_step"}, 1, kMostLayers));
  fill_layers(c, m, dense);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    if ((static_cast<std::int64_t>(i) + 1) % step == 0) m.layers[i] = sparse;
  }
  set_chunks(c, m);
}

// Qwen3-Next: three layers of Gated DeltaNet to one of gated attention; experts as Qwen2's, with QK-norm.
void read_qwen3_next(const Config& c, Model& m) {
  read_frame(c, m, false);
  refuse_unless(c, "attention_bias", false, "Qwen3-Next with biases");
  Layer dense, sparse;
  dense.attention = read_grouped_query(c, m);
  dense.attention.qk_norm = QkNorm::per_head;
  dense.attention.query_gate = true;
  dense.mlp.width = read_width(c);
  Moe e = read_experts(c, true);
  e.width = c.count({"moe_intermediate_size"}, 1, kMostFeatures);
  e.shared_width = c.count({"shared_expert_intermediate_size"}, 0, kMostFeatures);
  e.shared_gate = e.shared_width > 0;
  sparse.attention = dense.attention;
  sparse.moe = e;
  fill_qwen_layers(c, m, dense, sparse);
  const Attention linear = read_gated_delta(c);
  const std::int64_t every = std::max<std::int64_t>(1, c.count_or({"full_attention_interval"}, 4, kMostLayers));
  const auto types = per_layer(c, "layer_types", m);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const std::string kind = types                                             ? types->item(i).text()
                             : (static_cast<std::int64_t>(i) + 1) % every == 0 ? "full_attention"
                                                                               : "linear_attention";
    if (kind == "linear_attention") {
      m.layers[i].attention = linear;
    } else if (kind != "full_attention") {
      types->item(i).fail("not modelled: \"" + kind + "\"");
    }
  }
}

// MiniMax-M1: attn_type_list 0 = lightning attention, 1 = ordinary.
void read_minimax_m1(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.moe = read_wide_experts(c, true);
  const auto shared = c.find({"shared_intermediate_size"});
  if (shared && shared->count(0, kMostFeatures) > 0) shared->fail("not modelled: MiniMax-M1 with a shared expert");
  for (const char* name : {"shared_moe_mode", "postnorm", "layernorm_full_attention_alpha",
                           "layernorm_full_attention_beta", "layernorm_linear_attention_alpha",
                           "layernorm_linear_attention_beta", "layernorm_mlp_alpha", "layernorm_mlp_beta"}) {
    c.find({name});  // residual scaling: no weights
  }
  fill_layers(c, m, layer);
  const auto types = per_layer(c, "attn_type_list", m);
  if (!types) c.field().fail("missing member \"attn_type_list\"");
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    if (types->item(i).count(0, 1) == 1) continue;
    Attention& a = m.layers[i].attention;
    a.kind = AttentionKind::lightning;
    a.kv_heads = a.heads;
  }
}

}  // namespace shardplan::hugging_face
