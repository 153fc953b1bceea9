#pragma once
// A model from plain shape numbers, as measured runs and launch scripts give them.
#include <cstdint>
#include <optional>
#include <string>

#include "models/model.hpp"

namespace shardplan {

struct ModelShape {
  std::string name;
  std::string source;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0 = heads
  std::int64_t head_dim = 0;  // 0 = hidden / heads
  std::int64_t ffn = 0;       // dense layers
  std::int64_t vocab = 0;
  bool gated = true;  // SwiGLU; false = two matrices (GELU)
  bool tied_embeddings = false;
  // Norms and biases follow `gated` where they are not stated: gated = RMS norms without biases (Llama-like), else
  // layer norms and biases on every linear layer (GPT-like).
  std::optional<NormKind> norm;
  std::optional<bool> biases;
  QkNorm qk_norm = QkNorm::none;
  std::int64_t learned_positions = 0;
  std::int64_t window = 0;
  std::int64_t full_attention_every =
      0;  // with a window: every n-th layer attends to all (gpt-oss: 2); 0 = no layer does
  // Mixture of experts, where experts > 0:
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t moe_ffn = 0;
  std::int64_t dense_layers = 0;  // the first n layers are dense
  std::int64_t shared_ffn = 0;    // of all shared experts together
  // Multi-latent attention, where kv_lora > 0:
  std::int64_t q_lora = 0;
  std::int64_t kv_lora = 0;
  std::int64_t qk_nope = 0;  // 0 = head_dim
  std::int64_t qk_rope = 0;
  std::int64_t v_head = 0;      // 0 = qk_nope
  std::int64_t mtp_layers = 0;  // like the last layer
};

/// InputError(where, ...) where the numbers do not make a model.
Model model_from_shape(const ModelShape&, const std::string& where = "model");

}  // namespace shardplan
