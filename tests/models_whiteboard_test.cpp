// Derivations that an expert writes on a whiteboard about parameters, FLOPs and bytes (DeepSeek-V3 and Llama 3 70B),
// through the program's own functions. Where the written figure hides an assumption, the comment names it.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "models/bytes.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"
#include "models/shape.hpp"
#include "models/transform.hpp"

using namespace shardplan;

namespace {

const Model& v3() {
  static const Model model = load_model("deepseek-v3");
  return model;
}
const Model& llama70() {
  static const Model model = load_model("llama-3.1-70b");
  return model;
}
const Layer& moe_layer() { return v3().layers.back(); }
double d(std::int64_t n) { return static_cast<double>(n); }

double mlp_share(const Model& m) {
  const LayerParameters p = layer_parameters(m, m.layers.front());
  return d(p.mlp) / d(p.mlp + p.attention);
}

Model classic_shape() {
  ModelShape s;
  s.layers = 1, s.hidden = 1024, s.heads = 8, s.ffn = 4096, s.vocab = 100, s.gated = false, s.biases = false;
  return model_from_shape(s);
}

double dense_layers(const Model& m, bool moe) {
  double n = 0;
  for (const Layer& layer : m.layers) n += layer.moe.has_value() == moe ? 1 : 0;
  return n;
}

const Moe& moe_of(const char* model) {
  static Moe kept;
  kept = *first_moe(load_model(model));
  return kept;
}

constexpr std::int64_t kSeq = 8192;
constexpr double kH100Bf16 = 989e12;         // FLOP/s, dense peak
constexpr double kUseful = 0.4 * kH100Bf16;  // the whiteboard's 40 %
constexpr double kYear = 365.25 * 86400, kDay = 86400;
constexpr double kTrainTokens = 15e12;  // unstated there: 15T tokens make its 500 years and 363 days come out

struct Claim {
  const char* id;
  double written;
  double tolerance;  // relative
  double (*computed)();
};

const Claim kClaims[] = {
    {"M1.01 two FLOP per parameter of a SwiGLU network", 2, 1e-12,
     [] {
       return layer_flops(v3(), v3().layers.front(), kSeq).mlp / d(layer_parameters(v3(), v3().layers.front()).mlp);
     }},
    {"M1.02 training costs six FLOP per parameter", 6, 1e-12,
     [] { return six_n_per_token(v3()) / d(count_parameters(v3()).active); }},
    {"M1.03 an expert is a ninth as wide as the dense network", 9, 1e-12,
     [] { return d(v3().layers.front().mlp.width) / d(moe_layer().moe->width); }},
    {"M1.04 257 experts a layer, the shared one included", 257, 1e-12,
     [] { return d(moe_layer().moe->experts) + d(moe_layer().moe->shared_width) / d(moe_layer().moe->width); }},
    {"M1.05 58 mixture-of-experts layers", 58, 1e-12, [] { return dense_layers(v3(), true); }},
    {"M1.06 671B parameters (MTP left out)", 671e9, 0.0005, [] { return d(count_parameters(v3()).total); }},
    // Convention: without the input embedding, whose lookup is not arithmetic; with it 37.55B.
    {"M1.07 37B active", 37e9, 0.012, [] { return d(count_parameters(v3()).active_without_input_embedding); }},
    {"M1.08 eighteen times a dense model's parameters", 18, 0.02,
     [] { return d(count_parameters(v3()).total) / d(count_parameters(v3()).active_without_input_embedding); }},
    {"M1.09 attention holds 11.4B", 11.4e9, 0.002,
     [] { return d(count_parameters(v3()).by_component[static_cast<std::size_t>(Component::attention)]); }},
    // One byte a parameter is 671 GB; with block scales and what stays in BF16, 673 GB. Either way above 8 x 80 GB.
    {"M1.10 FP8 weights", 671e9, 0.005, [] { return weight_bytes(v3()).fp8; }},
    {"M1.11 BF16 weights are 1.34 TB", 1.34e12, 0.002, [] { return weight_bytes(v3()).bf16; }},
    // Assumes multi-head attention and the classic width of 4 hidden; Llama 3 70B (grouped queries, 3.5 hidden, SwiGLU)
    // has 82 %.
    {"M1.13 the feed-forward network is two thirds of a block", 2.0 / 3, 1e-9,
     [] { return mlp_share(classic_shape()); }},
    {"M1.13 corrected for Llama 3 70B", 0.824, 0.001, [] { return mlp_share(llama70()); }},
    {"M2.01 the router holds 1.84M", 1.84e6, 0.003, [] { return d(layer_parameters(v3(), moe_layer()).router); }},
    {"M2.02 and costs 3.67 MFLOP a token", 3.67e6, 0.001, [] { return layer_flops(v3(), moe_layer(), kSeq).router; }},
    {"M2.03 eight experts hold 352M", 352e6, 0.002, [] { return 8 * d(layer_parameters(v3(), moe_layer()).expert); }},
    {"M2.04 and cost 705 MFLOP a token", 705e6, 0.001, [] { return layer_flops(v3(), moe_layer(), kSeq).experts; }},
    {"M2.05 routing costs half a percent of what it authorises", 0.005, 0.05,
     [] { return layer_flops(v3(), moe_layer(), kSeq).router / layer_flops(v3(), moe_layer(), kSeq).experts; }},
    // Of the experts' bank and the router; with attention in the denominator 0.01595 %.
    {"M2.06 the router is 0.016 % of a layer", 0.00016, 0.02,
     [] {
       const LayerParameters p = layer_parameters(v3(), moe_layer());
       return d(p.router) / d(p.experts + p.shared + p.router);
     }},
    {"M2.09 248 experts idle for a token", 248, 1e-12,
     [] { return d(moe_layer().moe->experts - moe_layer().moe->top_k); }},
    {"M2.10 teams of 2 of 8", 28, 1e-12,
     [] { return combinations(moe_of("mixtral-8x7b").experts, moe_of("mixtral-8x7b").top_k); }},
    {"M2.11 teams of 8 of 256", 4e14, 0.03,
     [] { return combinations(moe_layer().moe->experts, moe_layer().moe->top_k); }},
    {"M2.12a teams of 4 of 32", 35960, 1e-12, [] { return combinations(32, 4); }},
    {"M2.12b one of them shared", 4495, 1e-12,
     [] {
       Model m = load_model("mixtral-8x7b");
       for (Layer& layer : m.layers) layer.moe->experts = 32, layer.moe->top_k = 4;
       const Model isolated = isolate_shared(m, 1, "test");
       return combinations(first_moe(isolated)->experts, first_moe(isolated)->top_k);
     }},
    // Exactly 87.5 %.
    {"M2.12c a shared expert removes almost 90 % of the teams", 0.9, 0.03,
     [] { return 1 - combinations(31, 3) / combinations(32, 4); }},
    {"M2.13 segmentation keeps the experts' active parameters", 1, 1e-12,
     [] {
       const Model m = load_model("mixtral-8x7b"), cut = segment_experts(m, 4, "test");
       return layer_flops(cut, cut.layers.front(), kSeq).experts / layer_flops(m, m.layers.front(), kSeq).experts;
     }},
    {"M2.18a Mixtral's experts", 8.2, 1e-12,
     [] { return d(moe_of("mixtral-8x7b").experts) + 0.1 * d(moe_of("mixtral-8x7b").top_k); }},
    {"M2.18b DeepSeek-V3's", 256.8, 1e-12,
     [] { return d(moe_of("deepseek-v3").experts) + 0.1 * d(moe_of("deepseek-v3").top_k); }},
    {"M2.18c Kimi K2's", 384.8, 1e-12, [] { return d(moe_of("kimi-k2").experts) + 0.1 * d(moe_of("kimi-k2").top_k); }},
    {"M2.18d Qwen3-235B's", 128.8, 1e-12,
     [] { return d(moe_of("qwen3-235b-a22b").experts) + 0.1 * d(moe_of("qwen3-235b-a22b").top_k); }},
    {"M2.19 GLM-4.5 has one shared expert beside 160", 161, 1e-12,
     [] { return d(moe_of("glm-4.5").experts) + d(moe_of("glm-4.5").shared_width) / d(moe_of("glm-4.5").width); }},
    {"M4.01 a layer's experts are 11.3B", 11.3e9, 0.003,
     [] { return d(layer_parameters(v3(), moe_layer()).experts + layer_parameters(v3(), moe_layer()).shared); }},
    // 257 does not divide by 64: an average. Placed, a GPU holds 4 routed experts and a replica of the shared one.
    {"M4.02a about four experts on each of 64 GPUs", 4, 0.005, [] { return d(moe_layer().moe->experts + 1) / 64; }},
    {"M4.02b 177M parameters a GPU and layer", 177e6, 0.002,
     [] { return d(layer_parameters(v3(), moe_layer()).experts + layer_parameters(v3(), moe_layer()).shared) / 64; }},
    {"M4.02b corrected: shared expert replicated", 220.2e6, 0.001,
     [] {
       return d(layer_parameters(v3(), moe_layer()).experts) / 64 + d(layer_parameters(v3(), moe_layer()).shared);
     }},
    {"M4.03a dispatch in FP8", 57e3, 0.01, [] { return routed_bytes_per_token(v3(), *moe_layer().moe, 1); }},
    {"M4.03b combine in BF16", 115e3, 0.005, [] { return routed_bytes_per_token(v3(), *moe_layer().moe, 2); }},
    // 70,553,706,496 exactly; written as 70.5, and every later figure uses 70.5.
    {"P1.01 Llama 3 70B", 70.5e9, 0.001, [] { return d(count_parameters(llama70()).total); }},
    // 16 bytes: BF16 weight and gradient, FP32 master and two moments.
    {"P1.03 1.13 TB of model state", 1.13e12, 0.003, [] { return 16 * d(count_parameters(llama70()).total); }},
    {"P1.10 five hundred years on one GPU", 500, 0.03,
     [] { return six_n_per_token(llama70()) * kTrainTokens / kUseful / kYear; }},
    {"P1.11 363 days on 512", 363, 0.002,
     [] { return six_n_per_token(llama70()) * kTrainTokens / kUseful / 512 / kDay; }},
    // Needs 16,384 GPUs, not sixteen thousand, and perfect scaling.
    {"P1.12 eleven days on 16,384", 11, 0.04,
     [] { return six_n_per_token(llama70()) * kTrainTokens / kUseful / 16384 / kDay; }},
    {"P1.13 8.81B parameters a GPU at TP8", 8.81e9, 0.002, [] { return d(count_parameters(llama70()).total) / 8; }},
    // 6 N D: counts the embedding lookup, leaves attention scores out.
    {"P1.14 0.44 s of arithmetic at peak", 0.44, 0.006,
     [] { return six_n_per_token(llama70()) / 8 * kSeq / kH100Bf16; }},
    {"P1.25 438 ms at peak", 0.438, 0.001, [] { return six_n_per_token(llama70()) / 8 * kSeq / kH100Bf16; }},
    // Corrected: matrix products without the lookup (-1.5 %) and causal scores (+7.6 % of 6 N D).
    {"P1.14 corrected: attention scores are 7.6 % more", 0.076, 0.01,
     [] { return 3 * forward_flops(llama70(), kSeq).scores / six_n_per_token(llama70()); }},
    {"P1.14 exact", 0.4649, 0.001, [] { return training_flops(llama70(), kSeq) / 8 * kSeq / kH100Bf16; }},
    {"P3.01 3584 features a GPU at t = 8", 3584, 1e-12, [] { return d(llama70().layers.front().mlp.width) / 8; }},
    {"P3.02a the MLP of a layer is 1.4 GB", 1.4e9, 0.01,
     [] { return 2 * d(layer_parameters(llama70(), llama70().layers.front()).mlp); }},
    {"P3.02b 176 MB a GPU", 176e6, 0.002,
     [] { return 2 * d(layer_parameters(llama70(), llama70().layers.front()).mlp) / 8; }},
};

}  // namespace

TEST_CASE("the whiteboard's figures on parameters, FLOPs and bytes come out", "[models][whiteboard]") {
  for (const Claim& claim : kClaims) {
    INFO(claim.id);
    CHECK(claim.computed() == Approx(claim.written).epsilon(claim.tolerance));
  }
}

TEST_CASE("KV heads fewer than tensor-parallel ranks are duplicated", "[models][whiteboard]") {
  // P3.03: eight KV heads give one a GPU at t = 8, and still one each at t = 16.
  for (const Tensor& t : layer_tensors(llama70(), llama70().layers.front())) {
    if (t.name != "k") continue;
    CHECK(shard_parameters(t, 8) == 8192 * 128);
    CHECK(shard_parameters(t, 16) == 8192 * 128);
    CHECK(shard_parameters(t, 4) == 8192 * 256);
  }
}

TEST_CASE("the key-value cache per token", "[models]") {
  const std::pair<const char*, double> rows[] = {
      {"llama-2-7b", 524288}, {"llama-3.1-70b", 327680}, {"llama-3.1-405b", 516096}, {"qwen3-235b-a22b", 192512},
      {"glm-4.5", 376832},    {"deepseek-v3", 70272},    {"kimi-k2", 70272}};
  for (const auto& [name, bytes] : rows) {
    INFO(name);
    CHECK(kv_bytes_per_token(load_model(name)) == bytes);
  }
  // gpt-oss: half of the layers keep 128 tokens only.
  const Model oss = load_model("gpt-oss-20b");
  CHECK(kv_cache_bytes(oss, 128) == 128 * kv_bytes_per_token(oss));
  CHECK(kv_cache_bytes(oss, 4096) == kv_bytes_per_token(oss) / 2 * (4096 + 128));
}

TEST_CASE("published weight bytes follow the data types of the checkpoint", "[models]") {
  // DeepSeek-V3: every linear weight at one byte with FP32 scales, the rest BF16, selection biases FP32.
  const Model& m = v3();
  const WeightBytes w = weight_bytes(m);
  REQUIRE(w.as_published.has_value());
  CHECK(*w.as_published > w.fp8);
  CHECK(*w.as_published < w.bf16);
  CHECK(*weight_bytes(load_model("llama-3.1-405b")).as_published == 811706777600.0);
  CHECK(*weight_bytes(load_model("mixtral-8x22b")).as_published == 281241268224.0);
  CHECK(*weight_bytes(load_model("minimax-m1")).as_published == 912210767872.0);  // BF16 but for FP32 routers
  CHECK_FALSE(weight_bytes(load_model("gpt3-175b")).as_published.has_value());
}

TEST_CASE("sliding windows bound the mean context", "[models]") {
  CHECK(mean_context(4096, 0, AttentionCount::causal) == 2048);
  CHECK(mean_context(4096, 0, AttentionCount::full) == 4096);
  CHECK(mean_context(4096, 8192, AttentionCount::causal) == 2048);
  CHECK(mean_context(4096, 128, AttentionCount::causal) == 126);
  CHECK(mean_context(4096, 128, AttentionCount::full) == 128);
}

TEST_CASE("attention that does not grow with the sequence", "[models]") {
  // Sparse attention reads index_top_k tokens; its indexer scores all of them.
  const Attention a = load_model("deepseek-v3.2").layers.front().attention;
  const double dense = 2.0 * 128 * (192 + 128), indexer = 2.0 * 64 * 128;
  const Model v32 = load_model("deepseek-v3.2");
  CHECK(layer_flops(v32, v32.layers.front(), 2048).scores == (dense + indexer) * 1024);
  CHECK(layer_flops(v32, v32.layers.front(), 8192).scores == dense * (2048 - 256) + indexer * 4096);
  CHECK(a.index_top_k == 2048);
  CHECK(kv_bytes_per_token(v32) == 61 * 2 * (512 + 64 + 128));
  // Linear attention: the same state at any length.
  const Model next = load_model("qwen3-next-80b-a3b");
  CHECK(layer_flops(next, next.layers.front(), 4096).scores == layer_flops(next, next.layers.front(), 65536).scores);
  CHECK(kv_bytes_per_token(next) == 12 * 2 * 2 * 2 * 256);
  CHECK(kv_cache_bytes(next, 2048) - kv_cache_bytes(next, 1024) == 1024 * kv_bytes_per_token(next));
}

TEST_CASE("a model's FLOPs are two per weight that multiplies", "[models]") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const Model m = load_model(name);
    const ParameterCounts p = count_parameters(m);
    // Vectors (norms, biases, sinks) do not multiply; everything else does, and a tied matrix does once, as the head.
    double vectors = 0;
    for (const Layer& layer : m.layers) {
      for (const Tensor& t : layer_tensors(m, layer)) {
        if (!t.trained || t.in > 1 || t.name == "shared_expert_gate") continue;
        const double visited =
            t.component == Component::routed_experts ? d(layer.moe->top_k) / d(layer.moe->experts) : 1;
        vectors += visited * d(t.count());
      }
    }
    vectors += d(trained_parameters(head_tensors(m))) - (m.tied_embeddings ? 0 : d(m.vocab * m.hidden)) +
               d(m.learned_positions * m.hidden);
    CHECK(forward_flops(m, 4096).matmul() ==
          Approx(2 * (d(p.active_without_input_embedding) - vectors)).epsilon(1e-12));
  }
}

TEST_CASE("upcycling copies the feed-forward network", "[models]") {
  const Model dense = load_model("mistral-7b"), sparse = upcycle(dense, 8, 2, "test");
  const LayerParameters before = layer_parameters(dense, dense.layers.front()),
                        after = layer_parameters(sparse, sparse.layers.front());
  CHECK(after.experts == 8 * before.mlp);
  CHECK(after.attention == before.attention);
  CHECK(after.router == 4096 * 8);
  // Mistral 7B upcycled to 8 experts has Mixtral 8x7B's shape.
  CHECK(count_parameters(sparse).total == count_parameters(load_model("mixtral-8x7b")).total);
  CHECK(combinations(8, 2) == 28);
}
