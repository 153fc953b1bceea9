#include "models/hugging_face_parts.hpp"

#include <algorithm>

#include "models/check_model.hpp"

namespace shardplan::hugging_face {

std::int64_t read_layer_count(const Config& c) {
  return c.count({"num_hidden_layers", "n_layers", "num_layers", "n_layer"}, 1, kMostLayers);
}

void read_frame(const Config& c, Model& m, bool tied) {
  m.hidden = c.count({"hidden_size", "d_model", "n_embd"}, 1, kMostFeatures);
  m.vocab = c.count({"vocab_size"}, 1, kMostVocab);
  m.max_positions = c.count_or({"max_position_embeddings", "max_seq_len", "n_positions"}, 0, kMostPositions);
  m.tied_embeddings = c.flag_or({"tie_word_embeddings"}, tied);
}

Attention read_grouped_query(const Config& c, const Model& m) {
  Attention a;
  a.heads = c.count({"num_attention_heads", "n_heads", "n_head"}, 1, kMostFeatures);
  a.kv_heads = c.count_or({"num_key_value_heads"}, a.heads, kMostFeatures);
  if (a.kv_heads < 1 || a.heads % a.kv_heads != 0) {
    c.fail_at({"num_key_value_heads"},
              std::to_string(a.heads) + " heads are not a multiple of " + std::to_string(a.kv_heads) + " KV heads");
  }
  if (const auto stated = c.find({"head_dim"})) {
    a.head_dim = stated->count(1, kMostFeatures);
  } else if (m.hidden % a.heads == 0) {
    a.head_dim = m.hidden / a.heads;
  } else {
    c.fail_at({"num_attention_heads", "n_heads", "n_head"}, "hidden size " + std::to_string(m.hidden) +
                                                                " is not a multiple of " + std::to_string(a.heads) +
                                                                " heads, and head_dim is not stated");
  }
  return a;
}

std::int64_t read_width(const Config& c) { return c.count({"intermediate_size", "n_inner"}, 1, kMostFeatures); }

void fill_layers(const Config& c, Model& m, const Layer& layer) {
  m.layers.assign(static_cast<std::size_t>(read_layer_count(c)), layer);
}

std::optional<Field> per_layer(const Config& c, const char* name, const Model& m) {
  const auto list = c.find({name});
  if (list && static_cast<std::int64_t>(list->size()) != m.layer_count()) {
    list->fail(std::to_string(list->size()) + " entries for " + std::to_string(m.layer_count()) + " layers");
  }
  return list;
}

void set_windows(const Config& c, Model& m, std::int64_t window, const std::function<bool(std::int64_t)>& slides) {
  const std::vector<bool> stated = c.sliding_layers(m.layer_count());
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const bool here = stated.empty() ? slides(static_cast<std::int64_t>(i)) : stated[i];
    if (here && window == 0) c.fail_at({"layer_types"}, "layers slide, but sliding_window is not stated");
    m.layers[i].attention.window = here ? window : 0;
  }
}

std::int64_t read_window(const Config& c, std::int64_t fallback) {
  return c.stated("sliding_window") ? c.count_or({"sliding_window"}, 0, kMostPositions)
                                    : c.count_or({"sliding_window"}, fallback, kMostPositions);
}

void set_qwen_windows(const Config& c, Model& m) {
  const bool used = c.flag_or({"use_sliding_window"}, false);
  const std::int64_t window = c.count_or({"sliding_window"}, 0, kMostPositions);
  const std::int64_t first = c.count_or({"max_window_layers"}, m.layer_count(), kMostLayers);
  if (used && window == 0) c.fail_at({"use_sliding_window"}, "true, but sliding_window is not stated");
  set_windows(c, m, window, [&](std::int64_t i) { return used && i >= first; });
}

void refuse_unless(const Config& c, const char* name, bool wanted, const char* what) {
  const auto member = c.find({name});
  if (member && member->boolean() != wanted) member->fail(std::string("not modelled: ") + what);
}

Attention read_qwen3_attention(const Config& c, const Model& m) {
  Attention a = read_grouped_query(c, m);
  a.qkv_bias = a.output_bias = c.flag_or({"attention_bias"}, false);
  refuse_unless(c, "use_qk_norm", true, "Qwen3 without QK-norm");
  refuse_unless(c, "qkv_bias", false, "Qwen3 with qkv_bias");
  a.qk_norm = QkNorm::per_head;  // only the code knows
  return a;
}

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

Moe read_wide_experts(const Config& c, bool renormalise) {
  Moe e = read_experts(c, renormalise);
  e.width = read_width(c);
  return e;
}

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

}  // namespace shardplan::hugging_face
