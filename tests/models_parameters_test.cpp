#include <catch2/catch.hpp>

#include "models/load_model.hpp"
#include "models/parameters.hpp"

using namespace shardplan;

namespace {

struct Published {
  const char* model;
  const char* form;    // key of `checkpoints`, "" = the published checkpoint itself
  std::int64_t total;  // elements
};

// Published totals: sums over the checkpoints' tensors as the Hugging Face safetensors listing gives them.
const Published kPublished[] = {
    {"llama-2-7b", "", 6738417664},    // with 32 x 64 rotary buffers
    {"llama-2-13b", "", 13015866880},  // with 40 x 64 rotary buffers
    {"llama-3.1-8b", "", 8030261248},
    {"llama-3.1-70b", "", 70553706496},
    {"llama-3.1-405b", "", 405853388800},
    {"mistral-7b", "", 7241732096},
    {"qwen2.5-7b", "", 7615616512},
    {"qwen2.5-72b", "", 72706203648},
    {"qwen3-8b", "", 8190735360},
    {"qwen3-32b", "", 32762123264},
    {"qwen3-30b-a3b", "", 30532122624},
    {"qwen3-235b-a22b", "", 235093634560},
    {"qwen3-coder-480b-a35b", "", 480154875392},
    {"qwen1.5-moe-a2.7b", "", 14315784192},
    {"qwen2-57b-a14b", "", 57408658944},
    {"mixtral-8x7b", "", 46702792704},
    {"mixtral-8x22b", "", 140620634112},
    {"deepseek-moe-16b", "", 16375728128},
    {"deepseek-v2", "", 235741434880},
    {"deepseek-v2-lite", "", 15706484224},
    {"deepseek-v3", "bf16", 671026419200},      // MAI-DS-R1: no MTP, with 58 x 256 selection biases
    {"deepseek-v3", "bf16_mtp", 684489845504},  // DeepSeek-R1 in BF16: MTP with copies of embedding and head
    {"deepseek-v3", "fp8_mtp", 684531386000},   // with one FP32 scale per 128 x 128 block
    {"deepseek-v3", "", 684531386000},
    {"deepseek-v3.2", "bf16_mtp", 685355329792},
    {"deepseek-v3.2", "", 685396921376},  // FP8, with the indexer's scales
    {"glm-5", "", 753864139008},
    {"llama-4-scout-17b-16e", "", 108641793536},  // with the vision tower
    {"llama-4-maverick-17b-128e", "", 401583781376},
    {"qwen3-next-80b-a3b", "bf16", 79674391296},  // Coder-Next: no MTP
    {"qwen3-next-80b-a3b", "", 81324862720},
    {"minimax-m1", "", 456089655296},
    {"olmoe-1b-7b", "", 6919161856},
    {"gemma-2-9b", "", 9241705984},
    {"gemma-2-27b", "", 27227128320},
    {"gemma-3-4b", "", 4300079472},  // with the vision tower
    {"gemma-3-12b", "", 12187325040},
    {"gemma-3-27b", "", 27432406640},
    {"gpt-oss-20b", "bf16", 20914757184},
    {"gpt-oss-120b", "bf16", 116829156672},
    {"glm-4.5", "", 358337791296},
    {"glm-4.5-air", "", 110468824832},
    {"glm-4.5-air", "bf16", 106852251264},   // INTELLECT-3
    {"minimax-m2.5", "bf16", 228689764864},  // MiniMax-M2
    {"minimax-m2.5", "", 228703644928},      // FP8
};

std::int64_t form_of(const ParameterCounts& counts, const std::string& form) {
  for (const auto& [name, total] : counts.checkpoints) {
    if (name == form) return total;
  }
  return -1;
}

}  // namespace

TEST_CASE("checkpoint totals agree with the published ones to the parameter", "[models]") {
  for (const Published& row : kPublished) {
    INFO(row.model << " " << row.form);
    const ParameterCounts counts = count_parameters(load_model(row.model));
    CHECK((*row.form ? form_of(counts, row.form) : counts.checkpoint) == row.total);
  }
}

TEST_CASE("Kimi K2's published totals hold 61 x 56 elements that its configuration does not explain", "[models]") {
  const ParameterCounts counts = count_parameters(load_model("kimi-k2"));
  CHECK(form_of(counts, "bf16") + 61 * 56 == 1026408235864);
  CHECK(counts.checkpoint + 61 * 56 == 1026470731056);
}

TEST_CASE("components sum to the total for every built-in model", "[models]") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const Model model = load_model(name);
    CHECK(model.name == name);
    const ParameterCounts counts = count_parameters(model);
    std::int64_t sum = 0;
    for (const std::int64_t n : counts.by_component) sum += n;
    CHECK(sum == counts.total);
    std::int64_t layers = trained_parameters(embedding_tensors(model)) + trained_parameters(head_tensors(model));
    for (const Layer& layer : model.layers) layers += layer_parameters(model, layer).total();
    CHECK(layers == counts.total);
    CHECK(counts.active <= counts.total);
    CHECK(counts.active_without_embeddings <= counts.active_without_input_embedding);
    CHECK(counts.active_without_input_embedding <= counts.active);
    CHECK(counts.checkpoint >= counts.total);
  }
}
