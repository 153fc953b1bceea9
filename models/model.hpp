#pragma once
// What is computed, layer by layer. One Model says everything that a layout may cut: tensors, FLOPs, bytes.
// Counts are int64; nothing here knows a GPU or a layout.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardplan {

enum class AttentionKind { grouped_query, multi_latent, gated_delta, lightning };
enum class QkNorm { none, per_head, full_width };
enum class NormKind { rms, layer_norm, layer_norm_no_bias };
enum class RouterScore { softmax, sigmoid, sqrt_softplus };
/// How the published checkpoint stores its linear weights; unstated = no checkpoint of this model is known.
enum class WeightFormat { unstated, bf16, fp16, fp32, fp8_block, mxfp4 };

/// One attention block. grouped_query: MHA where kv_heads == heads, MQA where 1. multi_latent: DeepSeek's MLA.
/// Linear attention, whose state does not grow: gated_delta (Qwen3-Next: heads value heads of v_head, kv_heads key
/// heads of head_dim) and lightning (MiniMax-M1). Those, and what stands under "counted only", have parameters, FLOPs
/// and bytes but no layouts (see why_no_layout in check_model.hpp).
struct Attention {
  AttentionKind kind = AttentionKind::grouped_query;
  std::int64_t heads = 0;  // 0 = none: the layer is its feed-forward network alone, all else here is 0
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // of query and key; for multi_latent use qk_nope + qk_rope (set to their sum)
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::none;
  std::int64_t window = 0;  // sliding window in tokens, 0 = full causal attention
  bool sinks = false;       // one trainable logit per head (gpt-oss)
  // counted only:
  std::int64_t chunk = 0;   // attends inside chunks of this many tokens (Llama 4), 0 = none
  bool query_gate = false;  // a gate on the output, projected with the query (Qwen3-Next)
  std::int64_t index_heads =
      0;  // sparse-attention indexer (DeepSeek-V3.2): heads of index_dim choose index_top_k tokens
  std::int64_t index_dim = 0;
  std::int64_t index_top_k = 0;
  std::int64_t convolution = 0;  // gated_delta: taps of the short convolution
  // multi_latent only (v_head: gated_delta too):
  std::int64_t q_lora = 0;  // 0 = the query projection is not factored
  std::int64_t kv_lora = 0;
  std::int64_t qk_nope = 0;
  std::int64_t qk_rope = 0;
  std::int64_t v_head = 0;

  std::int64_t query_width() const { return heads * head_dim; }  // elements per token of Q
  std::int64_t key_width() const {                               // of K, as attention reads it
    return kind == AttentionKind::multi_latent ? heads * head_dim : kv_heads * head_dim;
  }
  std::int64_t value_width() const {
    return kind == AttentionKind::multi_latent ? heads * v_head : kv_heads * head_dim;
  }
  std::int64_t output_width() const { return kind == AttentionKind::multi_latent ? heads * v_head : heads * head_dim; }
};

/// Dense feed-forward network: gated = SwiGLU-like (three matrices), else two.
struct Mlp {
  std::int64_t width = 0;
  bool gated = true;
  bool bias = false;
};

/// Mixture-of-experts feed-forward network.
struct Moe {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t width = 0;         // of one routed expert
  std::int64_t shared_width = 0;  // of all shared experts together, 0 = none
  bool shared_gate = false;       // Qwen's shared-expert gate (hidden elements)
  bool gated = true;
  bool bias = false;            // of the experts' own matrices (gpt-oss)
  bool router_bias = false;     // trainable
  bool selection_bias = false;  // DeepSeek's score-correction bias: a buffer, not trainable
  RouterScore score = RouterScore::softmax;
  bool renormalise = true;  // gates divided by their sum over the chosen
  double routed_scaling = 1.0;
  std::int64_t groups = 1;  // group-limited selection
  std::int64_t groups_per_token = 1;
};

/// One transformer layer: attention and either a dense MLP or an MoE.
struct Layer {
  Attention attention;
  Mlp mlp;  // used where moe is absent
  std::optional<Moe> moe;
  int norms = 2;  // RMS or layer norms of width hidden
};

struct Model {
  std::string name;
  std::string source;    // where the figures come from
  bool assumed = false;  // stands on a figure marked FROM MEMORY
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;              // 0 = neither embedding nor head: hidden states come in and go out
  std::int64_t max_positions = 0;      // 0 = not stated
  std::int64_t learned_positions = 0;  // rows of a learned position embedding, 0 = none
  bool tied_embeddings = false;
  bool head_bias = false;
  NormKind norm = NormKind::rms;
  std::vector<Layer> layers;
  std::vector<Layer> mtp;  // multi-token-prediction layers (DeepSeek-V3: 1); trained beside the main model
  // What the published checkpoint stores:
  WeightFormat published = WeightFormat::unstated;
  bool fp32_router = false;           // the routers are stored in FP32
  bool checkpoint_mtp = false;        // it holds the MTP layers
  bool mtp_shares_embeddings = true;  // false: it stores copies of embedding and head with each MTP layer
  std::int64_t checkpoint_buffers =
      0;                              // FP32 elements that nobody trains, beside the selection biases (rotary inv_freq)
  std::int64_t other_parameters = 0;  // of parts that are not modelled (a vision tower), in the checkpoint only
  std::vector<std::string> notes;     // what a reader should know: members ignored, conventions assumed

  std::int64_t layer_count() const { return static_cast<std::int64_t>(layers.size()); }
  bool has_moe() const {
    for (const Layer& l : layers)
      if (l.moe) return true;
    return false;
  }
};

}  // namespace shardplan
