// Mixtures of experts with grouped-query attention: Mixtral, Qwen, OLMoE, gpt-oss, Grok-1, DBRX, MiniMax-M2.
#include <algorithm>

#include "models/check_model.hpp"
#include "models/hugging_face_parts.hpp"

namespace shardplan::hugging_face {

void read_mixtral(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.moe = read_wide_experts(c, true);
  fill_layers(c, m, layer);
  const std::int64_t window = c.count_or({"sliding_window"}, 0, kMostPositions);
  set_windows(c, m, window, [&](std::int64_t) { return window > 0; });
}

void read_qwen2_moe(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer dense, sparse;
  dense.attention = read_grouped_query(c, m);
  refuse_unless(c, "attention_bias", true, "Qwen2 without query, key and value biases");
  refuse_unless(c, "qkv_bias", true, "Qwen2 without query, key and value biases");
  dense.attention.qkv_bias = true;
  dense.mlp.width = read_width(c);
  sparse.attention = dense.attention;
  Moe e = read_experts(c, false);
  e.width = c.count({"moe_intermediate_size"}, 1, kMostFeatures);
  e.shared_width = c.count({"shared_expert_intermediate_size"}, 0, kMostFeatures);
  e.shared_gate = e.shared_width > 0;
  sparse.moe = e;
  fill_qwen_layers(c, m, dense, sparse);
  set_qwen_windows(c, m);
}

void read_qwen3_moe(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer dense, sparse;
  dense.attention = sparse.attention = read_qwen3_attention(c, m);
  dense.mlp.width = read_width(c);
  Moe e = read_experts(c, false);
  e.width = c.count({"moe_intermediate_size"}, 1, kMostFeatures);
  const auto shared = c.find({"shared_expert_intermediate_size"});
  if (shared && shared->count(0, kMostFeatures) > 0) shared->fail("not modelled: Qwen3 with a shared expert");
  sparse.moe = e;
  fill_qwen_layers(c, m, dense, sparse);
  set_qwen_windows(c, m);
}

void read_olmoe(const Config& c, Model& m) {
  read_frame(c, m, false);
  refuse_unless(c, "attention_bias", false, "OLMoE with biases");
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.attention.qk_norm = QkNorm::full_width;
  layer.moe = read_wide_experts(c, false);
  fill_layers(c, m, layer);
}

// gpt-oss: sinks, biases everywhere, alternating windows, the sliding layer first.
void read_gpt_oss(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  refuse_unless(c, "attention_bias", true, "gpt-oss without biases");
  layer.attention.qkv_bias = layer.attention.output_bias = layer.attention.sinks = true;
  Moe e = read_wide_experts(c, true);
  e.bias = e.router_bias = true;
  layer.moe = e;
  fill_layers(c, m, layer);
  set_windows(c, m, read_window(c, 128), [](std::int64_t i) { return i % 2 == 0; });
}

void read_grok(const Config& c, Model& m) {
  read_frame(c, m, true);
  Layer layer;
  layer.norms = 4;
  layer.attention = read_grouped_query(c, m);
  layer.moe = read_wide_experts(c, false);
  fill_layers(c, m, layer);
}

// DBRX nests its attention and experts; its layer norms have no bias.
void read_dbrx(const Config& c, Model& m) {
  read_frame(c, m, false);
  m.norm = NormKind::layer_norm_no_bias;
  const auto attention = c.find({"attn_config"}), experts = c.find({"ffn_config"});
  if (!attention) c.field().fail("missing member \"attn_config\"");
  if (!experts) c.field().fail("missing member \"ffn_config\"");
  judge_members(*attention, {"kv_n_heads"});
  judge_members(*experts, {"ffn_hidden_size", "moe_num_experts", "moe_top_k", "ffn_act_fn",
                           "moe_normalize_expert_weights", "uniform_expert_assignment"});
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.attention.kv_heads = attention->at("kv_n_heads").count(1, kMostFeatures);
  Moe e;
  e.experts = experts->at("moe_num_experts").count(1, kMostExperts);
  e.top_k = experts->at("moe_top_k").count(1, kMostExperts);
  e.width = experts->at("ffn_hidden_size").count(1, kMostFeatures);
  layer.moe = e;
  fill_layers(c, m, layer);
}

void read_minimax_m2(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  if (c.flag_or({"use_qk_norm"}, false)) layer.attention.qk_norm = QkNorm::full_width;
  const std::string kind = c.text_or({"qk_norm_type"}, "per_layer");
  if (kind != "per_layer") c.fail_at({"qk_norm_type"}, "not modelled: \"" + kind + "\"");
  Moe e = read_wide_experts(c, true);
  e.selection_bias = c.flag_or({"use_routing_bias"}, false);
  layer.moe = e;
  const auto shared = c.find({"shared_intermediate_size"});
  if (shared && shared->count(0, kMostFeatures) > 0) shared->fail("not modelled: MiniMax-M2 with a shared expert");
  fill_layers(c, m, layer);
  if (const auto list = c.find({"attn_type_list"})) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (list->item(i).count(0, 9) != 1) list->item(i).fail("not modelled: layers of linear attention");
    }
  }
  c.find({"use_mtp"});
  c.find({"mtp_transformer_layers"});
  if (c.count_or({"num_mtp_modules"}, 0, kMostLayers) > 0) {
    m.notes.push_back("MTP modules are listed but published without weights: not counted");
  }
}

}  // namespace shardplan::hugging_face
