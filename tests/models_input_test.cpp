// Malformed models: what is wrong, and where, in one line.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/errors.hpp"
#include "layouts/layout.hpp"
#include "models/check_model.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"
#include "models/shape.hpp"
#include "models/transform.hpp"

using namespace shardplan;

namespace {

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const InputError& e) {
    return "error: " + e.where() + ": " + e.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

const std::string kHuggingFace = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
 "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 100,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

const std::string kMixture =
    R"({"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
 "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 100, "num_experts": 8,
 "num_experts_per_tok": 2})";

const std::string kOwn = R"({"schema": "shardplan-model/1", "name": "x", "source": "test", "hidden": 64, "vocab": 100,
 "attentions": {"full": {"heads": 8, "kv_heads": 4, "head_dim": 8}},
 "ffns": {"dense": {"width": 128}, "experts": {"experts": 8, "top_k": 2, "width": 32}},
 "layers": [{"repeat": 1, "attention": "full", "ffn": "dense"}, {"repeat": 1, "attention": "full", "ffn": "experts"}]})";

struct Case {
  const std::string* file;
  const char* what;
  const char* with;
  const char* error;
};

const Case kCases[] = {
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": 64.5)",
     "error: m.json: /hidden_size: expected a whole number, got 64.5"},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": "64")",
     "error: m.json: /hidden_size: expected a whole number, got \"64\""},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": true)",
     "error: m.json: /hidden_size: expected a whole number, got true"},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": 0)",
     "error: m.json: /hidden_size: out of range: 0 is below 1"},
    {&kHuggingFace, R"("hidden_size": 64,)", "", "error: m.json: /: missing member \"hidden_size\""},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": null)",
     "error: m.json: /hidden_size: expected a whole number, got null"},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_sise": 64)",
     "error: m.json: /hidden_sise: unknown member (did you mean \"hidden_size\"?)"},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": 1e400)",
     "error: m.json: number out of range near byte 83"},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": 64, "hidden_size": 65)",
     "error: m.json: /hidden_size: the member stands twice"},
    {&kHuggingFace, R"("num_hidden_layers": 2)", R"("num_hidden_layers": -2)",
     "error: m.json: /num_hidden_layers: out of range: -2 is below 1"},
    {&kHuggingFace, R"("num_hidden_layers": 2)", R"("num_hidden_layers": 1000000)",
     "error: m.json: /num_hidden_layers: out of range: 1000000 is above 10000"},
    {&kHuggingFace, R"("num_hidden_layers": 2)", R"("num_hidden_layers": 2, "n_layers": 3)",
     "error: m.json: /n_layers: contradicts /num_hidden_layers: 3 against 2"},
    {&kHuggingFace, R"("num_attention_heads": 8)", R"("num_attention_heads": 7)",
     "error: m.json: /num_key_value_heads: 7 heads are not a multiple of 4 KV heads"},
    {&kHuggingFace, R"("num_key_value_heads": 4)", R"("num_key_value_heads": 3)",
     "error: m.json: /num_key_value_heads: 8 heads are not a multiple of 3 KV heads"},
    {&kHuggingFace, R"("num_key_value_heads": 4)", R"("num_key_value_heads": 0)",
     "error: m.json: /num_key_value_heads: 8 heads are not a multiple of 0 KV heads"},
    {&kHuggingFace, R"("num_key_value_heads")", R"("num_key_value_head")",
     "error: m.json: /num_key_value_head: unknown member (did you mean \"num_key_value_heads\"?)"},
    {&kHuggingFace, R"("hidden_size": 64)", R"("hidden_size": 63)",
     "error: m.json: /num_attention_heads: hidden size 63 is not a multiple of 8 heads, and head_dim is not stated"},
    {&kHuggingFace, R"("vocab_size": 100)", R"("vocab_size": 100, "number_of_towers": 3)",
     "error: m.json: /number_of_towers: unknown member, which may change the model"},
    {&kHuggingFace, R"("tie_word_embeddings": false)", R"("tie_word_embeddings": 0)",
     "error: m.json: /tie_word_embeddings: expected true or false, got 0"},
    {&kHuggingFace, R"("tie_word_embeddings": false)", R"("tie_word_embedings": true)",
     "error: m.json: /tie_word_embedings: unknown member (did you mean \"tie_word_embeddings\"?)"},
    {&kHuggingFace, R"("vocab_size": 100)", R"("vocab_size": 100, "vision_config": {"hidden_size": 8})",
     "error: m.json: /vision_config: not modelled: a vision tower"},
    {&kHuggingFace, R"("vocab_size": 100)", R"("vocab_size": 100, "index_topk": 2048)",
     "error: m.json: /index_topk: not modelled: a sparse-attention indexer"},
    {&kHuggingFace, R"("vocab_size": 100)", R"("vocab_size": 100, "layer_types": ["full_attention"])",
     "error: m.json: /layer_types: 1 entries for 2 layers"},
    {&kHuggingFace, R"("vocab_size": 100)",
     R"("vocab_size": 100, "layer_types": ["full_attention", "linear_attention"])",
     "error: m.json: /layer_types/1: not modelled: \"linear_attention\""},
    {&kHuggingFace, R"("model_type": "llama")", R"("model_type": "lama")",
     "error: m.json: /model_type: not modelled: model type \"lama\" (did you mean \"llama\"?)"},
    {&kHuggingFace, R"("model_type": "llama")", R"("model_type": "jamba")",
     "error: m.json: /model_type: not modelled: jamba (state-space layers)"},
    {&kHuggingFace, R"("model_type": "llama",)", "",
     "error: m.json: /: neither a shardplan model (member \"schema\") nor a Hugging Face configuration (member "
     "\"model_type\")"},
    {&kHuggingFace, "LlamaForCausalLM", "LlamaForSequenceClassification",
     "error: m.json: /architectures/0: not modelled: \"LlamaForSequenceClassification\" (only language-model heads "
     "are)"},
    {&kMixture, R"("num_experts_per_tok": 2)", R"("num_experts_per_tok": 9)",
     "error: m.json: /num_experts_per_tok: a token chooses 9 of only 8 experts"},
    {&kMixture, R"("num_experts_per_tok": 2)", R"("num_experts_per_token": 0)",
     "error: m.json: /num_experts_per_token: out of range: 0 is below 1"},
    {&kMixture, R"("num_experts": 8)", R"("num_experts": 8, "num_local_experts": 16)",
     "error: m.json: /num_local_experts: contradicts /num_experts: 16 against 8"},
    {&kMixture, R"("num_experts": 8)", R"("num_experts": 8, "shared_expert_intermediate_size": 64)",
     "error: m.json: /shared_expert_intermediate_size: not modelled: Qwen3 with a shared expert"},
    {&kMixture, R"("num_experts": 8)", R"("num_experts": 8, "mlp_only_layers": [2])",
     "error: m.json: /mlp_only_layers/0: out of range: 2 is above 1"},
    {&kMixture, R"("num_experts": 8)", R"("num_experts": 8, "num_nextn_predict_layers": 1)",
     "error: m.json: /num_nextn_predict_layers: unknown member, which may change the model"},
    {&kOwn, R"("hidden": 64)", R"("hiden": 64)", "error: m.json: /hiden: unknown member (did you mean \"hidden\"?)"},
    {&kOwn, R"("kv_heads": 4)", R"("kv_heads": 5)",
     "error: m.json: /attentions/full/kv_heads: 8 heads are not a multiple of 5 KV heads"},
    {&kOwn, R"("top_k": 2)", R"("top_k": 12)",
     "error: m.json: /ffns/experts/top_k: a token chooses 12 of only 8 experts"},
    {&kOwn, R"("top_k": 2)", R"("top_k": 2, "groups": 3)", "error: m.json: 8 experts do not divide into 3 groups"},
    {&kOwn, R"("ffn": "dense")", R"("ffn": "dens")",
     "error: m.json: /layers/0/ffn: no such entry \"dens\" (did you mean \"dense\"?)"},
    {&kOwn, R"("repeat": 1)", R"("repeat": 1000000)",
     "error: m.json: /layers/0/repeat: out of range: 1000000 is above 10000"},
    {&kOwn, R"("repeat": 1)", R"("repeat": 0)", "no error"},
    {&kOwn, "shardplan-model/1", "shardplan-model/9", "error: m.json: /schema: expected \"shardplan-model/1\""},
    {&kOwn, R"("width": 128)", R"("width": 1e30)",
     "error: m.json: /ffns/dense/width: out of range: 1e+30 is above 16777216"},
    {&kOwn, R"("hidden": 64, "vocab": 100)", R"("hidden": 16777216, "vocab": 268435456)",
     "error: m.json: the model has more than 2^53 parameters"},
    {&kOwn, R"("source": "test")", R"("source": "test", "norm": "rmsnorm")",
     "error: m.json: /norm: unknown value \"rmsnorm\""},
};

}  // namespace

TEST_CASE("malformed models are refused with the place and the reason", "[models][input]") {
  CHECK(error_of([] { parse_model(kHuggingFace, "m.json"); }) == "no error");
  CHECK(error_of([] { parse_model(kMixture, "m.json"); }) == "no error");
  CHECK(error_of([] { parse_model(kOwn, "m.json"); }) == "no error");
  for (const Case& c : kCases) {
    INFO(c.what << " -> " << c.with);
    const std::string text = replaced(*c.file, c.what, c.with);
    CHECK(error_of([&] { parse_model(text, "m.json"); }) == c.error);
  }
}

TEST_CASE("what cannot be loaded is named", "[models][input]") {
  CHECK(error_of([] { load_model("llama-3.1-70bb"); }) ==
        "error: --model: unknown model \"llama-3.1-70bb\" (did you mean \"llama-3.1-70b\"?)");
  CHECK(error_of([] { load_model(""); }) == "error: --model: expected a model's name or a path");
  CHECK(error_of([] { load_model("/no/such/config.json"); }) == "error: /no/such/config.json: no such file");
  CHECK(error_of([] { load_model("deepseek-v4-pro"); }) ==
        "error: --model: deepseek-v4-pro: not modelled: compressed sparse attention and hyper-connections");
  CHECK(error_of([] { parse_model("[1]", "m.json"); }) == "error: m.json: /: expected an object, got a list");
  CHECK(error_of([] { parse_model("{", "m.json"); }).rfind("error: m.json: not JSON", 0) == 0);
  CHECK(error_of([] { parse_model("{}", "m.json"); }).rfind("error: m.json: /: neither", 0) == 0);
}

TEST_CASE("a model that is only counted has no layouts", "[models][input]") {
  CHECK(why_no_layout(load_model("deepseek-v3")).empty());
  CHECK(why_no_layout(load_model("gpt-oss-20b")).empty());
  CHECK(why_no_layout(load_model("deepseek-v3.2")) == "a sparse-attention indexer");
  CHECK(why_no_layout(load_model("llama-4-scout-17b-16e")) == "chunked attention");
  CHECK(why_no_layout(load_model("minimax-m1")) == "layers of linear attention");
  const auto refused = refuse_layout(Layout{}, load_model("qwen3-next-80b-a3b"), Workload{}, 1);
  CHECK(refused == "not modelled: layouts of a model with layers of linear attention");
}

TEST_CASE("transforms refuse what does not divide", "[models][input]") {
  const Model moe = load_model("mixtral-8x7b"), dense = load_model("llama-3.1-8b");
  CHECK(error_of([&] { segment_experts(moe, 3, "--segment"); }) ==
        "error: --segment: an expert of width 14336 does not divide into 3 pieces");
  CHECK(error_of([&] { segment_experts(dense, 2, "--segment"); }) == "error: --segment: llama-3.1-8b has no experts");
  CHECK(error_of([&] { upcycle(moe, 8, 2, "--upcycle"); }) ==
        "error: --upcycle: mixtral-8x7b already is a mixture of experts");
  CHECK(error_of([&] { upcycle(dense, 8, 9, "--upcycle"); }) == "error: --upcycle: a token chooses 9 of 8 experts");
  CHECK(error_of([&] { isolate_shared(moe, 2, "--isolate-shared"); }) ==
        "error: --isolate-shared: of 2 chosen experts at least one must stay routed");
}

TEST_CASE("members that cannot change a shape are ignored, and inert ones too", "[models][input]") {
  const std::int64_t plain = count_parameters(parse_model(kHuggingFace, "m.json")).total;
  for (const char* extra : {R"("use_cache": true)", R"("rope_scaling": {"factor": 8.0})", R"("_name_or_path": "x")",
                            R"("index_topk": null)", R"("some_future_switch": false)", R"("attention_dropout": 0.1)"}) {
    INFO(extra);
    const std::string text =
        replaced(kHuggingFace, R"("vocab_size": 100)", std::string(R"("vocab_size": 100, )") + extra);
    CHECK(count_parameters(parse_model(text, "m.json")).total == plain);
  }
  const std::string biased =
      replaced(kHuggingFace, R"("vocab_size": 100)", R"("vocab_size": 100, "attention_bias": true, "mlp_bias": true)");
  CHECK(count_parameters(parse_model(biased, "m.json")).total == plain + 2 * (64 + 32 + 32 + 64 + 2 * 128 + 64));
}

TEST_CASE("a text model inside a larger configuration is read", "[models][input]") {
  const std::string inner = replaced(kHuggingFace, R"("tie_word_embeddings": false,)", "");
  const std::string nested = R"({"model_type": "wrapper", "tie_word_embeddings": true, "text_config": )" + inner + "}";
  CHECK(parse_model(nested, "m.json").tied_embeddings);
  CHECK(count_parameters(parse_model(nested, "m.json")).total ==
        count_parameters(parse_model(kHuggingFace, "m.json")).total - 6400);
}

TEST_CASE("shapes give the same counts as files", "[models]") {
  ModelShape s;
  s.layers = 80, s.hidden = 8192, s.heads = 64, s.kv_heads = 8, s.ffn = 28672, s.vocab = 128256;
  CHECK(count_parameters(model_from_shape(s)).total == 70553706496);
  ModelShape v3;
  v3.layers = 61, v3.hidden = 7168, v3.heads = 128, v3.head_dim = 128, v3.ffn = 18432, v3.vocab = 129280;
  v3.experts = 256, v3.top_k = 8, v3.moe_ffn = 2048, v3.dense_layers = 3, v3.shared_ffn = 2048;
  v3.q_lora = 1536, v3.kv_lora = 512, v3.qk_rope = 64, v3.v_head = 128, v3.mtp_layers = 1;
  CHECK(count_parameters(model_from_shape(v3)).total == 671026404352);
  CHECK(forward_flops(model_from_shape(v3), 4096).total() == forward_flops(load_model("deepseek-v3"), 4096).total());
  ModelShape gpt;
  gpt.layers = 96, gpt.hidden = 12288, gpt.heads = 96, gpt.ffn = 49152, gpt.vocab = 50257, gpt.gated = false;
  gpt.tied_embeddings = true, gpt.learned_positions = 2048;
  CHECK(count_parameters(model_from_shape(gpt)).total == count_parameters(load_model("gpt3-175b")).total);
  CHECK(error_of([] { model_from_shape({}); }) == "error: model: layers out of range: 0 is below 1");
  gpt.heads = 97;
  CHECK(error_of([&] { model_from_shape(gpt, "row 7: /model"); }) ==
        "error: row 7: /model: hidden 12288 is not a multiple of 97 heads, and head_dim is not stated");
}

TEST_CASE("configurations as published give the built-in models", "[models][input]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (!facts) {
    std::cout << "skipped: SHARDPLAN_FACTS is unset (published configurations)\n";
    return;
  }
  int same = 0;
  for (const std::string& name : model_names()) {
    const std::string path = std::string(facts) + "/models/configs/" + name + ".json";
    if (!std::filesystem::exists(path)) continue;
    INFO(name);
    const Model ours = load_model(name), theirs = load_model(path);
    CHECK(ours.layer_count() == theirs.layer_count());
    // The multimodal Gemma 3 checkpoints have 64 rows more than the text configuration says.
    const std::int64_t rows = ours.vocab - theirs.vocab;
    CHECK((rows == 0 || (rows == 64 && name.rfind("gemma-3", 0) == 0)));
    CHECK(count_parameters(ours).total == count_parameters(theirs).total + rows * ours.hidden);
    if (rows == 0) CHECK(forward_flops(ours, 32768).total() == forward_flops(theirs, 32768).total());
    if (name != "qwen3-next-80b-a3b") {  // its configuration does not say that the checkpoint holds an MTP layer
      CHECK(count_parameters(ours).mtp == count_parameters(theirs).mtp);
    }
    ++same;
  }
  CHECK(same > 40);
}
