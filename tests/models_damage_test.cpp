// Files damaged at random: read or refused in one line, never worse (run under the sanitizers by the dev preset).
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "models/bytes.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"
#include "tests/damage.hpp"

using namespace shardplan;

namespace {

constexpr std::array<std::string_view, 5> kSound = {
    R"({"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
 "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 100, "num_experts": 8,
 "num_experts_per_tok": 2, "mlp_only_layers": [1], "decoder_sparse_step": 1, "use_sliding_window": true,
 "sliding_window": 16, "max_window_layers": 2})",
    R"({"model_type": "deepseek_v32", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
 "num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 8, "q_lora_rank": 16,
 "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "vocab_size": 100,
 "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
 "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "index_n_heads": 2, "index_head_dim": 4, "index_topk": 64,
 "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})",
    R"({"model_type": "qwen3_next", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
 "shared_expert_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
 "vocab_size": 100, "num_experts": 8, "num_experts_per_tok": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
 "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "full_attention_interval": 2})",
    R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": null, "vocab_size": 50})",
    R"({"schema": "shardplan-model/1", "name": "x", "source": "test", "hidden": 64, "vocab": 100, "learned_positions": 8,
 "attentions": {"full": {"heads": 8, "kv_heads": 4, "head_dim": 8, "window": 16},
  "latent": {"kind": "multi_latent", "heads": 8, "q_lora": 16, "kv_lora": 8, "qk_nope": 8, "qk_rope": 4, "v_head": 8},
  "linear": {"kind": "gated_delta", "heads": 4, "kv_heads": 2, "head_dim": 8, "v_head": 8, "convolution": 4}},
 "ffns": {"dense": {"width": 128}, "experts": {"experts": 8, "top_k": 2, "width": 32, "shared_width": 32, "groups": 2}},
 "layers": [{"repeat": 1, "attention": "full", "ffn": "dense"},
  {"repeat": 2, "pattern": [{"attention": "latent", "ffn": "experts"}, {"attention": "linear", "ffn": "dense"}]}],
 "mtp": {"layers": [{"repeat": 1, "attention": "latent", "ffn": "experts"}], "shares_embeddings": false},
 "checkpoint": {"format": "fp8_block", "mtp": true, "buffers": 3, "other_parameters": 5}})"};

/// Whatever was believed must be countable.
void use(const std::string& text) {
  const Model m = parse_model(text, "m.json");
  const ParameterCounts counts = count_parameters(m);
  if (counts.total < 1 || counts.active > counts.total || counts.checkpoint < counts.total) FAIL(text);
  if (!(forward_flops(m, 4096).total() > 0) || weight_bytes(m).bf16 < 2 || kv_cache_bytes(m, 4096) < 0) FAIL(text);
}

}  // namespace

TEST_CASE("a damaged model file of every family is read or refused", "[models][input]") {
  Tally all;
  for (const std::string_view sound : kSound) {
    const std::string text(sound);
    REQUIRE_NOTHROW(use(text));
    all += feed_values(text, use, 800, 20240229);
    all += feed_bytes(text, use, 400, 20240229);
  }
  CHECK(all.read > 200);
  CHECK(all.refused > 1000);
}
