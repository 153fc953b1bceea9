// DeepSeek and what grew from it: MoE 16B, V2, V3 (Kimi K2), V3.2, GLM-4.5 and GLM-5.
#include <algorithm>
#include <utility>

#include "models/check_model.hpp"
#include "models/hugging_face_parts.hpp"

namespace shardplan::hugging_face {

namespace {

/// DeepSeek's attention: a latent for keys and values, one rotary key. head_dim and num_key_value_heads of the file are
/// not used.
Attention read_multi_latent(const Config& c) {
  Attention a;
  a.kind = AttentionKind::multi_latent;
  a.heads = c.count({"num_attention_heads"}, 1, kMostFeatures);
  a.kv_heads = a.heads;
  a.q_lora = c.count_or({"q_lora_rank"}, 0, kMostFeatures);
  a.kv_lora = c.count({"kv_lora_rank"}, 1, kMostFeatures);
  a.qk_nope = c.count({"qk_nope_head_dim"}, 0, kMostFeatures);
  a.qk_rope = c.count({"qk_rope_head_dim"}, 0, kMostFeatures);
  a.v_head = c.count({"v_head_dim"}, 1, kMostFeatures);
  a.head_dim = a.qk_nope + a.qk_rope;
  c.find({"head_dim"});
  c.find({"num_key_value_heads"});
  refuse_unless(c, "attention_bias", false, "biases in multi-latent attention");
  return a;
}

/// The first first_k_dense_replace layers are dense, then every moe_layer_freq-th is a mixture of experts.
void fill_deepseek_layers(const Config& c, Model& m, const Layer& dense, const Layer& sparse) {
  fill_layers(c, m, dense);
  const std::int64_t first = c.count_or({"first_k_dense_replace"}, 0, kMostLayers);
  const std::int64_t every = std::max<std::int64_t>(1, c.count_or({"moe_layer_freq"}, 1, kMostLayers));
  if (first > m.layer_count())
    c.fail_at({"first_k_dense_replace"}, std::to_string(first) + " dense layers of " + std::to_string(m.layer_count()));
  for (std::int64_t i = first; i < m.layer_count(); ++i) {
    if (i % every == 0) m.layers[static_cast<std::size_t>(i)] = sparse;
  }
}

Moe read_deepseek_experts(const Config& c, bool renormalise) {
  Moe e = read_experts(c, renormalise);
  e.width = c.count({"moe_intermediate_size"}, 1, kMostFeatures);
  e.shared_width = c.count_or({"n_shared_experts", "num_shared_experts"}, 0, kMostExperts) * e.width;
  e.routed_scaling = c.positive_or({"routed_scaling_factor"}, 1);
  e.groups = std::max<std::int64_t>(1, c.count_or({"n_group"}, 1, kMostExperts));
  e.groups_per_token = std::max<std::int64_t>(1, c.count_or({"topk_group"}, e.groups, kMostExperts));
  return e;
}

void read_deepseek_mtp(const Config& c, Model& m) {
  const std::int64_t n = c.count_or({"num_nextn_predict_layers"}, 0, kMostLayers);
  m.mtp.assign(static_cast<std::size_t>(n), m.layers.back());
  m.checkpoint_mtp = n > 0;
  m.mtp_shares_embeddings = false;  // the published checkpoints store copies with the layer
}

/// DeepSeek Sparse Attention: an indexer in every layer, the MTP layer included.
Attention read_indexed(const Config& c) {
  Attention a = read_multi_latent(c);
  a.index_heads = c.count({"index_n_heads"}, 1, kMostFeatures);
  a.index_dim = c.count({"index_head_dim"}, 1, kMostFeatures);
  a.index_top_k = c.count({"index_topk"}, 1, kMostPositions);
  return a;
}

void set_attention(Model& m, const Attention& a) {
  for (auto* list : {&m.layers, &m.mtp}) {
    for (Layer& layer : *list) layer.attention = a;
  }
}

/// The dense and the sparse layer of V2 and V3, their experts left to the caller.
std::pair<Layer, Layer> read_latent_layers(const Config& c, Model& m) {
  Layer dense, sparse;
  dense.attention = sparse.attention = read_multi_latent(c);
  if (!c.stated("q_lora_rank"))
    m.notes.push_back("q_lora_rank is not stated: the query projection is taken as not factored");
  dense.mlp.width = read_width(c);
  return {dense, sparse};
}

}  // namespace

// DeepSeekMoE 16B: ordinary attention.
void read_deepseek(const Config& c, Model& m) {
  read_frame(c, m, false);
  refuse_unless(c, "attention_bias", false, "DeepSeekMoE with biases");
  Layer dense, sparse;
  dense.attention = sparse.attention = read_grouped_query(c, m);
  dense.mlp.width = read_width(c);
  sparse.moe = read_deepseek_experts(c, false);
  fill_deepseek_layers(c, m, dense, sparse);
}

void read_deepseek_v2(const Config& c, Model& m) {
  read_frame(c, m, false);
  auto [dense, sparse] = read_latent_layers(c, m);
  Moe e = read_deepseek_experts(c, false);
  const std::string method = c.text_or({"topk_method"}, "greedy");
  if (method == "greedy") e.groups = e.groups_per_token = 1;
  if (method != "greedy" && method != "group_limited_greedy")
    c.fail_at({"topk_method"}, "not modelled: \"" + method + "\"");
  sparse.moe = e;
  fill_deepseek_layers(c, m, dense, sparse);
}

void read_deepseek_v3(const Config& c, Model& m) {
  read_frame(c, m, false);
  auto [dense, sparse] = read_latent_layers(c, m);
  Moe e = read_deepseek_experts(c, true);
  if (!c.find({"scoring_func"})) e.score = RouterScore::sigmoid;
  const std::string method = c.text_or({"topk_method"}, "noaux_tc");
  if (method != "noaux_tc") c.fail_at({"topk_method"}, "not modelled: \"" + method + "\"");
  e.selection_bias = true;
  sparse.moe = e;
  fill_deepseek_layers(c, m, dense, sparse);
  read_deepseek_mtp(c, m);
}

void read_deepseek_v32(const Config& c, Model& m) {
  read_deepseek_v3(c, m);
  set_attention(m, read_indexed(c));
}

// GLM-5: as DeepSeek-V3.2, but its MTP layer shares embedding and head.
void read_glm_moe_dsa(const Config& c, Model& m) {
  read_deepseek_v32(c, m);
  m.mtp_shares_embeddings = true;
}

// GLM-4.5: grouped-query attention with query, key and value biases, DeepSeek-like experts and MTP.
void read_glm4_moe(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer dense, sparse;
  dense.attention = read_grouped_query(c, m);
  dense.attention.qkv_bias = c.flag_or({"attention_bias"}, false);
  dense.attention.qk_norm = c.flag_or({"use_qk_norm"}, false) ? QkNorm::per_head : QkNorm::none;
  sparse.attention = dense.attention;
  dense.mlp.width = read_width(c);
  Moe e = read_deepseek_experts(c, true);
  if (!c.find({"scoring_func"})) e.score = RouterScore::sigmoid;
  e.selection_bias = true;
  sparse.moe = e;
  fill_deepseek_layers(c, m, dense, sparse);
  read_deepseek_mtp(c, m);
  if (!m.mtp.empty())
    m.notes.push_back("the MTP layer is taken to store copies of embedding and head (GLM-4.5 does, GLM-4.6 does not)");
}

}  // namespace shardplan::hugging_face
