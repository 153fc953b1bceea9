// Dense families: Llama, Mistral, Qwen 2 and 3, GPT-2 and its larger siblings, Gemma 2 and 3.
#include <algorithm>

#include "models/check_model.hpp"
#include "models/hugging_face_parts.hpp"

namespace shardplan::hugging_face {

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

}  // namespace shardplan::hugging_face
