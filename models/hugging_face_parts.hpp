#pragma once
// What the families' readers share, and the readers themselves: each fills a Model from what its config.json says and
// from what only its modelling code knows (transformers, mlx-lm and the repositories' own modelling files; checked by
// the totals of published checkpoints in tests/models_parameters_test.cpp).
#include <cstdint>
#include <functional>
#include <optional>

#include "models/hugging_face_config.hpp"
#include "models/model.hpp"

namespace shardplan::hugging_face {

using Config = HuggingFaceConfig;

/// Under any of its four names.
std::int64_t read_layer_count(const Config& c);
/// What every family states. `tied` is the family's own default.
void read_frame(const Config& c, Model& m, bool tied);
/// heads, kv_heads (default: heads), head_dim (default: hidden / heads).
Attention read_grouped_query(const Config& c, const Model& m);
/// Of the dense feed-forward network.
std::int64_t read_width(const Config& c);
/// As many copies of `layer` as the file has layers.
void fill_layers(const Config& c, Model& m, const Layer& layer);
/// A list with one entry a layer, or nothing.
std::optional<Field> per_layer(const Config& c, const char* name, const Model& m);
/// Sliding windows on the layers that layer_types names, else on those that `slides` says.
void set_windows(const Config& c, Model& m, std::int64_t window, const std::function<bool(std::int64_t)>& slides);
/// sliding_window: null is none, absent is the family's default.
std::int64_t read_window(const Config& c, std::int64_t fallback);
/// Qwen: the window holds only with use_sliding_window, and then from layer max_window_layers on.
void set_qwen_windows(const Config& c, Model& m);
/// A switch whose other position is not modelled; absent is fine.
void refuse_unless(const Config& c, const char* name, bool wanted, const char* what);
/// With the QK-norm that only the code knows of.
Attention read_qwen3_attention(const Config& c, const Model& m);
/// experts, top_k and the router's rule.
Moe read_experts(const Config& c, bool renormalise);
/// The same where an expert is as wide as the model's intermediate size.
Moe read_wide_experts(const Config& c, bool renormalise);
/// Qwen: every decoder_sparse_step-th layer is a mixture of experts, but for those of mlp_only_layers.
void fill_qwen_layers(const Config& c, Model& m, const Layer& dense, const Layer& sparse);

// The readers; the table is in hugging_face_families.cpp.
void read_llama(const Config&, Model&);
void read_mistral(const Config&, Model&);
void read_qwen2(const Config&, Model&);
void read_qwen3(const Config&, Model&);
void read_gpt2(const Config&, Model&);
void read_gemma2(const Config&, Model&);
void read_gemma3(const Config&, Model&);
void read_mixtral(const Config&, Model&);
void read_qwen2_moe(const Config&, Model&);
void read_qwen3_moe(const Config&, Model&);
void read_olmoe(const Config&, Model&);
void read_gpt_oss(const Config&, Model&);
void read_grok(const Config&, Model&);
void read_dbrx(const Config&, Model&);
void read_minimax_m2(const Config&, Model&);
void read_deepseek(const Config&, Model&);
void read_deepseek_v2(const Config&, Model&);
void read_deepseek_v3(const Config&, Model&);
void read_deepseek_v32(const Config&, Model&);
void read_glm_moe_dsa(const Config&, Model&);
void read_glm4_moe(const Config&, Model&);
void read_llama4(const Config&, Model&);
void read_qwen3_next(const Config&, Model&);
void read_minimax_m1(const Config&, Model&);

}  // namespace shardplan::hugging_face
