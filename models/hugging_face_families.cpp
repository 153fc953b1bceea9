#include "models/hugging_face_families.hpp"

#include "models/hugging_face_parts.hpp"

namespace shardplan {

namespace {

using namespace hugging_face;

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
