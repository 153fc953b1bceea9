// Files damaged at random: read or refused in one line, never worse (run under the sanitizers by the dev preset).
#include <array>
#include <catch2/catch.hpp>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "models/bytes.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"

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

constexpr std::array<std::string_view, 18> kValues = {
    "0",    "-1",   "1",     "3",  "3.7", "10000",  "16777216", "1048576", "268435456", "1e308", "9007199254740993",
    "null", "true", "\"x\"", "[]", "{}",  "[1, 2]", "1e999"};

/// Puts another value in place of a number, or damages a single character.
std::string damaged(std::string text, Random& random) {
  if (random.below(4) == 0) {
    const std::size_t at = random.below(text.size());
    static constexpr std::string_view kLetters = "{}[]\",:0129e.-ntf _a\\";
    text[at] = kLetters[random.below(kLetters.size())];
    return text;
  }
  std::vector<std::size_t> starts;
  for (std::size_t i = 2; i < text.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) && text[i - 1] == ' ') starts.push_back(i);
  }
  const std::size_t from = starts[random.below(starts.size())];
  std::size_t to = from;
  while (std::isdigit(static_cast<unsigned char>(text[to])) || text[to] == '.') ++to;
  return text.replace(from, to - from, kValues[random.below(kValues.size())]);
}

}  // namespace

TEST_CASE("a damaged model file is read or refused", "[models][input]") {
  Random random(20240229);
  int read = 0, refused = 0;
  for (const std::string_view sound : kSound) {
    REQUIRE_NOTHROW(parse_model(sound, "m.json"));
    for (int i = 0; i < 800; ++i) {
      std::string text(sound);
      const std::uint64_t wounds = 1 + random.below(2);
      for (std::uint64_t k = 0; k < wounds; ++k) text = damaged(text, random);
      try {
        const Model m = parse_model(text, "m.json");
        ++read;
        // Whatever was believed must be countable.
        const ParameterCounts counts = count_parameters(m);
        if (counts.total < 1 || counts.active > counts.total || counts.checkpoint < counts.total) FAIL(text);
        if (!(forward_flops(m, 4096).total() > 0) || weight_bytes(m).bf16 < 2 || kv_cache_bytes(m, 4096) < 0)
          FAIL(text);
      } catch (const InputError& e) {
        ++refused;
        if (e.where().empty() || std::string(e.what()).find('\n') != std::string::npos) FAIL(text);
      }
    }
  }
  CHECK(read > 200);
  CHECK(refused > 1000);
}
