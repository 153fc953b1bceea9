#include "models/hugging_face_families.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "models/check_model.hpp"
#include "models/hugging_face_config.hpp"

// A family's reader says what its config.json says and what only its modelling code knows (transformers, mlx-lm and the
// repositories' own modelling files; checked by the totals of published checkpoints in
// tests/models_parameters_test.cpp).

namespace shardplan {
namespace {

using Config = HuggingFaceConfig;

std::int64_t read_layer_count(const Config& c) {
  return c.count({"num_hidden_layers", "n_layers", "num_layers", "n_layer"}, 1, kMostLayers);
}

/// What every family states. `tied` is the family's own default.
void read_frame(const Config& c, Model& m, bool tied) {
  m.hidden = c.count({"hidden_size", "d_model", "n_embd"}, 1, kMostFeatures);
  m.vocab = c.count({"vocab_size"}, 1, kMostVocab);
  m.max_positions = c.count_or({"max_position_embeddings", "max_seq_len", "n_positions"}, 0, kMostPositions);
  m.tied_embeddings = c.flag_or({"tie_word_embeddings"}, tied);
}

/// heads, kv_heads (default: heads), head_dim (default: hidden / heads).
Attention read_grouped_query(const Config& c, const Model& m) {
  Attention a;
  a.heads = c.count({"num_attention_heads", "n_heads", "n_head"}, 1, kMostFeatures);
  a.kv_heads = c.count_or({"num_key_value_heads"}, a.heads, kMostFeatures);
  if (a.kv_heads < 1 || a.heads % a.kv_heads != 0) {
    c.find({"num_key_value_heads"})
        ->fail(std::to_string(a.heads) + " heads are not a multiple of " + std::to_string(a.kv_heads) + " KV heads");
  }
  if (const auto stated = c.find({"head_dim"})) {
    a.head_dim = stated->count(1, kMostFeatures);
  } else if (m.hidden % a.heads == 0) {
    a.head_dim = m.hidden / a.heads;
  } else {
    c.find({"num_attention_heads", "n_heads", "n_head"})
        ->fail("hidden size " + std::to_string(m.hidden) + " is not a multiple of " + std::to_string(a.heads) +
               " heads, and head_dim is not stated");
  }
  return a;
}

std::int64_t read_width(const Config& c) { return c.count({"intermediate_size", "n_inner"}, 1, kMostFeatures); }

void fill_layers(const Config& c, Model& m, const Layer& layer) {
  m.layers.assign(static_cast<std::size_t>(read_layer_count(c)), layer);
}

/// A list with one entry a layer, or nothing.
std::optional<Field> per_layer(const Config& c, const char* name, const Model& m) {
  const auto list = c.find({name});
  if (list && static_cast<std::int64_t>(list->size()) != m.layer_count()) {
    list->fail(std::to_string(list->size()) + " entries for " + std::to_string(m.layer_count()) + " layers");
  }
  return list;
}

/// Sliding windows on the layers that layer_types names, else on those that `slides` says.
template <class Slides>
void set_windows(const Config& c, Model& m, std::int64_t window, Slides slides) {
  const std::vector<bool> stated = c.sliding_layers(m.layer_count());
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const bool here = stated.empty() ? slides(static_cast<std::int64_t>(i)) : stated[i];
    if (here && window == 0) c.find({"layer_types"})->fail("layers slide, but sliding_window is not stated");
    m.layers[i].attention.window = here ? window : 0;
  }
}

std::int64_t read_window(const Config& c, std::int64_t fallback) {
  return c.stated("sliding_window") ? c.count_or({"sliding_window"}, 0, kMostPositions)
                                    : c.count_or({"sliding_window"}, fallback, kMostPositions);
}

/// Qwen: the window holds only with use_sliding_window, and then from layer max_window_layers on.
void set_qwen_windows(const Config& c, Model& m) {
  const bool used = c.flag_or({"use_sliding_window"}, false);
  const std::int64_t window = c.count_or({"sliding_window"}, 0, kMostPositions);
  const std::int64_t first = c.count_or({"max_window_layers"}, m.layer_count(), kMostLayers);
  if (used && window == 0) c.find({"use_sliding_window"})->fail("true, but sliding_window is not stated");
  set_windows(c, m, window, [&](std::int64_t i) { return used && i >= first; });
}

void refuse_unless(const Config& c, const char* name, bool wanted, const char* what) {
  const auto member = c.find({name});
  if (member && member->boolean() != wanted) member->fail(std::string("not modelled: ") + what);
}

// ---- dense families

void read_llama(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.attention.qkv_bias = layer.attention.output_bias = c.flag_or({"attention_bias"}, false);
  layer.mlp = {.width = read_width(c), .gated = true, .bias = c.flag_or({"mlp_bias"}, false)};
  fill_layers(c, m, layer);
  set_windows(c, m, 0, [](std::int64_t) { return false; });
}

void read_mistral(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.mlp.width = read_width(c);
  fill_layers(c, m, layer);
  const bool silent = !c.stated("sliding_window");
  const std::int64_t window = read_window(c, 4096);  // MistralConfig's default
  if (silent) m.notes.push_back("sliding_window is not stated: 4,096, the family's default");
  set_windows(c, m, window, [&](std::int64_t) { return window > 0; });
}

void read_qwen2(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  refuse_unless(c, "attention_bias", true, "Qwen2 without query, key and value biases");
  layer.attention.qkv_bias = true;  // only the code knows
  layer.mlp.width = read_width(c);
  fill_layers(c, m, layer);
  set_qwen_windows(c, m);
}

Attention read_qwen3_attention(const Config& c, const Model& m) {
  Attention a = read_grouped_query(c, m);
  a.qkv_bias = a.output_bias = c.flag_or({"attention_bias"}, false);
  refuse_unless(c, "use_qk_norm", true, "Qwen3 without QK-norm");
  refuse_unless(c, "qkv_bias", false, "Qwen3 with qkv_bias");
  a.qk_norm = QkNorm::per_head;  // only the code knows
  return a;
}

void read_qwen3(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_qwen3_attention(c, m);
  layer.mlp.width = read_width(c);
  fill_layers(c, m, layer);
  set_qwen_windows(c, m);
}

// GPT-2 and its larger siblings: learned positions, layer norms with biases, biases everywhere, two-matrix MLP, tied
// head.
void read_gpt2(const Config& c, Model& m) {
  read_frame(c, m, true);
  m.norm = NormKind::layer_norm;
  m.learned_positions = m.max_positions;
  if (m.learned_positions == 0) c.field().fail("missing member \"n_positions\"");
  refuse_unless(c, "attention_bias", true, "GPT-2 without biases");
  refuse_unless(c, "mlp_bias", true, "GPT-2 without biases");
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  layer.attention.qkv_bias = layer.attention.output_bias = true;
  layer.mlp = {
      .width = c.count_or({"intermediate_size", "n_inner"}, 4 * m.hidden, kMostFeatures), .gated = false, .bias = true};
  fill_layers(c, m, layer);
}

// Gemma 2 and 3: four norms a layer, tied embeddings, alternating windows. Gemma's RMS norm stores hidden elements as
// others do.
void read_gemma2(const Config& c, Model& m) {
  read_frame(c, m, true);
  Layer layer;
  layer.norms = 4;
  layer.attention = read_grouped_query(c, m);
  layer.attention.qkv_bias = layer.attention.output_bias = c.flag_or({"attention_bias"}, false);
  layer.mlp.width = read_width(c);
  fill_layers(c, m, layer);
  set_windows(c, m, read_window(c, 4096), [](std::int64_t i) { return i % 2 == 0; });
}

void read_gemma3(const Config& c, Model& m) {
  read_frame(c, m, true);
  Layer layer;
  layer.norms = 4;
  layer.attention = read_grouped_query(c, m);
  layer.attention.qkv_bias = layer.attention.output_bias = c.flag_or({"attention_bias"}, false);
  layer.attention.qk_norm = QkNorm::per_head;
  layer.mlp.width = read_width(c);
  fill_layers(c, m, layer);
  const std::int64_t every =
      std::max<std::int64_t>(1, c.count_or({"sliding_window_pattern", "_sliding_window_pattern"}, 6, kMostLayers));
  set_windows(c, m, read_window(c, 4096), [&](std::int64_t i) { return (i + 1) % every != 0; });
}

// ---- mixtures of experts

/// experts, top_k and the router's rule.
Moe read_experts(const Config& c, bool renormalise) {
  Moe e;
  e.experts = c.count({"num_experts", "num_local_experts", "n_routed_experts"}, 1, kMostExperts);
  const auto chosen = c.find({"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts"});
  if (!chosen) c.field().fail("missing member \"num_experts_per_tok\"");
  e.top_k = chosen->count(1);
  if (e.top_k > e.experts)
    chosen->fail("a token chooses " + std::to_string(e.top_k) + " of only " + std::to_string(e.experts) + " experts");
  e.renormalise = c.flag_or({"norm_topk_prob"}, renormalise);
  const auto score = c.find({"scoring_func"});
  const std::string word = score ? score->text() : "softmax";
  if (word == "sigmoid") {
    e.score = RouterScore::sigmoid;
  } else if (word == "sqrtsoftplus") {
    e.score = RouterScore::sqrt_softplus;
  } else if (word != "softmax") {
    score->fail("not modelled: " + score->shown());
  }
  return e;
}

void read_mixtral(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  Moe e = read_experts(c, true);
  e.width = read_width(c);
  layer.moe = e;
  fill_layers(c, m, layer);
  const std::int64_t window = c.count_or({"sliding_window"}, 0, kMostPositions);
  set_windows(c, m, window, [&](std::int64_t) { return window > 0; });
}

/// Qwen: every decoder_sparse_step-th layer is a mixture of experts, but for those of mlp_only_layers.
void fill_qwen_layers(const Config& c, Model& m, const Layer& dense, const Layer& sparse) {
  const std::int64_t step = c.count_or({"decoder_sparse_step"}, 1, kMostLayers);
  fill_layers(c, m, dense);
  std::vector<bool> only(m.layers.size(), false);
  if (const auto list = c.find({"mlp_only_layers"})) {
    for (std::size_t i = 0; i < list->size(); ++i)
      only[static_cast<std::size_t>(list->item(i).count(0, m.layer_count() - 1))] = true;
  }
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    if (step > 0 && (static_cast<std::int64_t>(i) + 1) % step == 0 && !only[i]) m.layers[i] = sparse;
  }
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
  Moe e = read_experts(c, false);
  e.width = read_width(c);
  layer.moe = e;
  fill_layers(c, m, layer);
}

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
    c.find({"first_k_dense_replace"})
        ->fail(std::to_string(first) + " dense layers of " + std::to_string(m.layer_count()));
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
  Layer dense, sparse;
  dense.attention = sparse.attention = read_multi_latent(c);
  if (!c.stated("q_lora_rank"))
    m.notes.push_back("q_lora_rank is not stated: the query projection is taken as not factored");
  dense.mlp.width = read_width(c);
  Moe e = read_deepseek_experts(c, false);
  const std::string method = c.text_or({"topk_method"}, "greedy");
  if (method == "greedy") e.groups = e.groups_per_token = 1;
  if (method != "greedy" && method != "group_limited_greedy")
    c.find({"topk_method"})->fail("not modelled: \"" + method + "\"");
  sparse.moe = e;
  fill_deepseek_layers(c, m, dense, sparse);
}

void read_deepseek_v3(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer dense, sparse;
  dense.attention = sparse.attention = read_multi_latent(c);
  if (!c.stated("q_lora_rank"))
    m.notes.push_back("q_lora_rank is not stated: the query projection is taken as not factored");
  dense.mlp.width = read_width(c);
  Moe e = read_deepseek_experts(c, true);
  if (!c.find({"scoring_func"})) e.score = RouterScore::sigmoid;
  const std::string method = c.text_or({"topk_method"}, "noaux_tc");
  if (method != "noaux_tc") c.find({"topk_method"})->fail("not modelled: \"" + method + "\"");
  e.selection_bias = true;
  sparse.moe = e;
  fill_deepseek_layers(c, m, dense, sparse);
  read_deepseek_mtp(c, m);
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
  Moe e = read_experts(c, true);
  e.width = read_width(c);
  layer.moe = e;
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

void read_minimax_m2(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  if (c.flag_or({"use_qk_norm"}, false)) layer.attention.qk_norm = QkNorm::full_width;
  const std::string kind = c.text_or({"qk_norm_type"}, "per_layer");
  if (kind != "per_layer") c.find({"qk_norm_type"})->fail("not modelled: \"" + kind + "\"");
  Moe e = read_experts(c, true);
  e.width = read_width(c);
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

// gpt-oss: sinks, biases everywhere, alternating windows, the sliding layer first.
void read_gpt_oss(const Config& c, Model& m) {
  read_frame(c, m, false);
  Layer layer;
  layer.attention = read_grouped_query(c, m);
  refuse_unless(c, "attention_bias", true, "gpt-oss without biases");
  layer.attention.qkv_bias = layer.attention.output_bias = layer.attention.sinks = true;
  Moe e = read_experts(c, true);
  e.width = read_width(c);
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
  Moe e = read_experts(c, false);
  e.width = read_width(c);
  layer.moe = e;
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

constexpr Family kFamilies[] = {
    {"llama", read_llama},
    {"llama4_text", read_llama4},
    {"mistral", read_mistral},
    {"mixtral", read_mixtral},
    {"qwen2", read_qwen2},
    {"qwen2_moe", read_qwen2_moe},
    {"qwen3", read_qwen3},
    {"qwen3_moe", read_qwen3_moe},
    {"qwen3_next", read_qwen3_next},
    {"deepseek", read_deepseek},
    {"deepseek_v2", read_deepseek_v2},
    {"deepseek_v3", read_deepseek_v3},
    {"deepseek_v32", read_deepseek_v32},
    {"kimi_k2", read_deepseek_v3},
    {"glm_moe_dsa", read_glm_moe_dsa},
    {"glm4_moe", read_glm4_moe},
    {"minimax_m1", read_minimax_m1},
    {"minimax_m2", read_minimax_m2},
    {"gpt_oss", read_gpt_oss},
    {"gpt2", read_gpt2},
    {"gemma2", read_gemma2},
    {"gemma3_text", read_gemma3},
    {"olmoe", read_olmoe},
    {"dbrx", read_dbrx},
    {"grok-1", read_grok},
};

constexpr Unsupported kUnsupportedFamilies[] = {
    {"arctic", "a dense residual network beside every mixture of experts"},
    {"bloom", "ALiBi and a norm on the embedding"},
    {"deepseek_v4", "compressed sparse attention and hyper-connections"},
    {"falcon", "attention and feed-forward network in parallel"},
    {"gemma3", "a vision tower; its text part has model type gemma3_text"},
    {"gemma4", "a dense network beside the experts and shared keys and values"},
    {"gpt_neox", "attention and feed-forward network in parallel"},
    {"hunyuan", "keys and values shared between layers"},
    {"jamba", "state-space layers"},
    {"kimi_k25", "a vision tower"},
    {"mamba", "state-space layers"},
    {"mamba2", "state-space layers"},
    {"mllama", "cross-attention and a vision tower"},
    {"nemotron-nas", "architecture search: blocks that differ one by one"},
    {"nemotron_h", "a hybrid of attention and state-space layers"},
    {"qwen3_5_moe", "layers of linear attention"},
    {"qwen3_5_moe_text", "layers of linear attention"},
    {"switch_transformers", "an encoder beside the decoder"},
    {"t5", "an encoder beside the decoder"},
};

constexpr Unsupported kUnsupportedModels[] = {
    {"arctic-480b", "a dense residual network beside every mixture of experts"},
    {"deepseek-moe-145b", "the width of its experts was never published"},
    {"deepseek-v4-flash", "compressed sparse attention and hyper-connections"},
    {"deepseek-v4-pro", "compressed sparse attention and hyper-connections"},
    {"hunyuan-large", "keys and values shared between layers"},
    {"switch-c-2048", "an encoder beside the decoder"},
    {"switch-xxl-395b", "an encoder beside the decoder"},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }
std::span<const Unsupported> unsupported_families() { return kUnsupportedFamilies; }
std::span<const Unsupported> unsupported_models() { return kUnsupportedModels; }

}  // namespace shardplan
