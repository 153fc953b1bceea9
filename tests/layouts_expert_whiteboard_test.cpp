// Derivations that an expert writes on a whiteboard about routing, balance, exchange and decoding (DeepSeek-V3),
// through the program's own functions. Where the written figure hides an assumption, the comment names it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "base/quantity_text.hpp"
#include "hardware/cluster.hpp"
#include "hardware/flows.hpp"
#include "layouts/expert_layer.hpp"
#include "layouts/expert_placement.hpp"
#include "layouts/recipes.hpp"
#include "models/coverage.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"
#include "models/router.hpp"
#include "models/routing.hpp"
#include "models/transform.hpp"

using namespace shardplan;

namespace {

const Model& v3() {
  static const Model model = load_model("deepseek-v3");
  return model;
}
const Moe& moe() { return *first_moe(v3()); }
const Cluster& h100() {
  static const Cluster cluster = load_cluster("h100-sxm");
  return cluster;
}

/// EP64 with 8,192 tokens a GPU, at most 4 nodes a token, as the whiteboard counts it: nothing local, k copies over
/// NVLink.
ExpertLoadQuestion ep64() {
  ExpertLoadQuestion q;
  q.moe = &moe();
  q.hidden = v3().hidden;
  q.tokens_per_rank = 8192;
  q.ep = 64;
  q.nodes_per_token = 4;
  q.count_own_node = q.every_copy = true;
  return q;
}

MoeLayerTimes whiteboard_layer(double tokens = 8192, bool shared = true) {
  static const KernelModel kernels(h100().gpu, Rates::datasheet);
  static const ExpertExchangeModel network(h100(), Rates::datasheet, Fidelity::table);
  MoeLayerQuestion q;
  q.load = ep64();
  q.load.tokens_per_rank = tokens;
  q.cluster = &h100();
  q.kernels = &kernels;
  q.exchange = &network;
  q.rates = Rates::datasheet;
  q.shared = shared;
  return price_moe_layer(q);
}

std::vector<double> logits(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> z;
  for (std::int64_t i = 0; i < n; ++i) z.push_back(random.normal());
  return z;
}

}  // namespace

TEST_CASE("M2: affinities, gates and their gradients", "[whiteboard][experts]") {
  // M2.07: the logits are unstated. A winner at ln 3 has sigmoid 0.75; softmax gives it 5 % only if the other 255 have
  // a mean e^z of 0.2235 (a mean logit of about -2 at deviation 1), not for zero-mean logits.
  std::vector<double> z(256, std::log(0.2235));
  z[0] = std::log(3.0);
  CHECK(router_scores(RouterScore::softmax, z)[0] == Approx(0.05).epsilon(0.01));
  CHECK(router_scores(RouterScore::sigmoid, z)[0] == Approx(0.75).epsilon(1e-12));
  // M2.08
  REQUIRE(moe().routed_scaling == 2.5);
  const Selection chosen = select_experts(moe(), logits(256, 1));
  CHECK(std::accumulate(chosen.gates.begin(), chosen.gates.end(), 0.0) == Approx(2.5).epsilon(1e-12));
  // M2.09
  int silent = 0;
  const auto gradients = gate_gradients(moe(), logits(256, 1));
  for (std::size_t i = 0; i < 256; ++i) {
    silent += std::all_of(gradients.begin(), gradients.end(), [&](const auto& row) { return row[i] == 0; });
  }
  CHECK(silent == 248);
  // M2.14
  Moe top1 = moe();
  top1.top_k = top1.groups = top1.groups_per_token = 1;
  top1.routed_scaling = 1;
  CHECK(select_experts(top1, logits(256, 1)).gates[0] == 1);
  const auto none = gate_gradients(top1, logits(256, 1));
  for (const double g : none[0]) CHECK(g == 0);
}

TEST_CASE("M2: permutation and capacity", "[whiteboard][experts]") {
  // M2.15: "a few gigabytes" by reading and writing every routed row in both permutations. M2.16: no arithmetic.
  const MoeLayerTimes t = whiteboard_layer();
  CHECK(t.permute_bytes == Approx(3758096384.0).epsilon(1e-12));
  CHECK(t.permute.seconds == Approx(1.12e-3).epsilon(0.01));
  CHECK(t.flops == Approx(6493990551552.0).epsilon(1e-12));
  // M2.17
  std::vector<std::vector<std::int64_t>> tokens(8192, {0});
  CHECK(apply_capacity(tokens, 64, 1.25).capacity == 160);
}

TEST_CASE("M3: balance loss, collapse, noise", "[whiteboard][experts]") {
  RouterQuestion q;  // 16 experts, mean-field, gain 0.8, noise 0.01: the two constants that the whiteboard leaves out
  q.steps = 400;
  const RouterSeries r = simulate_router(q);
  CHECK(r.steps.front().aux_loss == Approx(1).epsilon(1e-3));  // M3.01
  CHECK(r.final.aux_loss == Approx(16).epsilon(1e-6));         // M3.02
  CHECK(r.final.max_violation == Approx(15).epsilon(1e-6));    // M3.07
  // M3.03: 1 is the least only while f and P are ordered alike; with f = (1, 0) and P = (0, 1) N f.P is 0.
  const std::vector<double> f{1, 0}, p{0, 1};
  CHECK(2 * std::inner_product(f.begin(), f.end(), p.begin(), 0.0) == 0);
  // M3.05: a quarter of the experts idle.
  double experts = 0;
  for (const Layer& layer : v3().layers) experts += static_cast<double>(layer_parameters(v3(), layer).experts);
  CHECK(0.25 * experts == Approx(163.477e9).epsilon(1e-5));
  // M3.13, M3.14: an all-reduce of N floats a layer; an FP32 router is 0.9 % of the permuted payload.
  CHECK(4 * moe().experts == 1024);
  CHECK(8192.0 * 256 * 4 / (8192.0 * 8 * 7168 * 2) == Approx(0.0089).epsilon(0.01));
}

TEST_CASE("M3.04: the loss pushes over-used experts down and under-used ones up, in logit space",
          "[whiteboard][experts]") {
  // With respect to P itself the gradient alpha N f_i is never negative; the sign change comes from the softmax
  // Jacobian. One step of the auxiliary loss alone must therefore bring the loads together.
  RouterQuestion q;
  q.balance = Balance::aux_loss;
  q.tokens = 0;
  q.gain = 0;
  q.noise = 1;
  q.alpha = 0.5;
  q.steps = 30;
  const RouterSeries r = simulate_router(q);
  for (std::size_t s = 1; s < r.steps.size(); ++s) CHECK(r.steps[s].max_violation < r.steps[s - 1].max_violation);
}

TEST_CASE("M3.11: the z-loss does not see which expert wins", "[whiteboard][experts]") {
  // logsumexp is symmetric: exchanging two logits leaves loss and gradient norm alone. Shown through the scores that it
  // shares its sum with.
  const std::vector<double> z{2, 1, 0}, swapped{0, 1, 2};
  const auto a = router_scores(RouterScore::softmax, z), b = router_scores(RouterScore::softmax, swapped);
  CHECK(z[0] - std::log(a[0]) == Approx(swapped[2] - std::log(b[2])).epsilon(1e-12));
}

TEST_CASE("M4: the exchange of EP64", "[whiteboard][experts]") {
  const MoeLayerTimes t = whiteboard_layer();
  CHECK(t.load.pairs_per_rank == 65536);                                                 // M4.08
  CHECK(t.flops == Approx(6493990551552.0).epsilon(1e-12));                              // M4.09 with the shared expert
  CHECK(whiteboard_layer(8192, false).flops == Approx(5772436045824.0).epsilon(1e-12));  // and without
  CHECK(t.compute() == Approx(6.566e-3).epsilon(0.001));                                 // M4.10
  CHECK(t.load.dispatch_network + t.load.combine_network == Approx(704643072).epsilon(1e-12));  // M4.11
  CHECK(t.network() == Approx(14.09e-3).epsilon(0.002));                                        // M4.12
  CHECK(t.load.dispatch_nvlink + t.load.combine_nvlink == Approx(1409286144).epsilon(1e-12));   // M4.13
  CHECK(t.nvlink() == Approx(3.13e-3).epsilon(0.002));                                          // M4.14
  CHECK(t.comm_over_compute() == Approx(2.623).epsilon(0.002));  // M4.15, one after the other
  CHECK(whiteboard_layer(1024).comm_over_compute() == Approx(t.comm_over_compute()).epsilon(1e-9));  // M4.15b
  CHECK(t.load.combine_network / t.load.dispatch_network == Approx(2).epsilon(1e-12));               // M4.04
  CHECK(t.load.dispatch_nvlink / 8192 == Approx(57344).epsilon(1e-12));                              // M4.03a
  CHECK(t.load.combine_nvlink / 8192 == Approx(114688).epsilon(1e-12));                              // M4.03b
  CHECK(t.load.network_copies == 4);                                                                 // M4.07
  CHECK(distinct_groups(256, 8, 8) == Approx(5.2947).epsilon(1e-4));                                 // M4.28
  // M4.11 counts all four nodes as remote: with a token's own node left out, 616.6 MB.
  ExpertLoadQuestion remote = ep64();
  remote.count_own_node = false;
  const ExpertLoad r = expert_load(remote);
  CHECK(r.dispatch_network + r.combine_network == Approx(616562688).epsilon(1e-9));
}

TEST_CASE("M4.02: 257 experts do not divide over 64 GPUs: the shared one is replicated, four routed each",
          "[whiteboard][experts]") {
  for (const auto& gpu : place_contiguous(256, 64).on_gpu) CHECK(gpu.size() == 4);
}

TEST_CASE("M4.05: 232 all-to-alls are of one micro-batch, not of a step", "[whiteboard][experts]") {
  int moe_layers = 0;
  for (const Layer& layer : v3().layers) moe_layers += layer.moe.has_value();
  CHECK(moe_layers * 2 * 2 == 232);  // dispatch and combine, forward and backward
}

TEST_CASE("M4: decoding", "[whiteboard][experts]") {
  CHECK(distinct_experts(256, 8, 1) == Approx(8).epsilon(1e-9));        // M4.16a, M4.26
  CHECK(distinct_experts(256, 8, 32) == Approx(163.3).epsilon(1e-3));   // M4.16b
  CHECK(distinct_experts(256, 8, 128) == Approx(251.6).epsilon(1e-3));  // M4.16c
  DecodeQuestion q{&moe(), v3().hidden, 128, 1.0, true, {}};
  const DecodeLayer fp8 = decode_layer(q);
  CHECK(fp8.weight_bytes == Approx(11.12e9).epsilon(1e-3));  // M4.17a: one byte a weight
  CHECK(fp8.flops == Approx(101.5e9).epsilon(1e-3));         // M4.17b: with the shared expert
  CHECK(fp8.intensity == Approx(9.12).epsilon(1e-3));        // M4.17c
  // M4.18: 295 is the BF16 peak over bandwidth, set against FP8 bytes; the FP8 peak gives 591.
  const Gpu& gpu = h100().gpu;
  CHECK(gpu.peak(DataType::bf16) / gpu.hbm_bytes_per_second.value == Approx(295).epsilon(0.003));
  CHECK(gpu.peak(DataType::fp8) / gpu.hbm_bytes_per_second.value == Approx(591).epsilon(0.003));
  CHECK(fp8.dense_intensity == 256);                                 // M4.19
  CHECK(intensity_gap(moe(), false) == 32);                          // M4.20: exact for routed experts alone
  CHECK(intensity_gap(moe(), true) == Approx(28.56).epsilon(1e-3));  // as its worked example counts
}

TEST_CASE("M4.21: each GB/s hides 6.1 TFLOP/s at an expert width of 3,072", "[whiteboard][experts]") {
  Moe wide = moe();
  CHECK(balance_flops_per_byte(wide, 1, 2) == Approx(4096).epsilon(1e-12));
  wide.width = 3072;  // unstated there: DeepSeek-V4-Pro's
  CHECK(balance_flops_per_byte(wide, 1, 2) == Approx(6144).epsilon(1e-12));
}

TEST_CASE("M4.22-24: prefill on 32 GPUs and decode on 144 with 32 redundant experts", "[whiteboard][experts]") {
  const std::vector<double> even(256, 1.0);
  ExpertLoadQuestion q = ep64();
  q.nodes_per_token = 0;
  q.redundant = 32;
  q.ep = 32;
  CHECK(expert_load(q).nodes == 4);
  CHECK(expert_load(q).hottest.size() == 9);
  q.ep = 144;
  CHECK(expert_load(q).nodes == 18);
  CHECK(expert_load(q).hottest.size() == 2);
}

TEST_CASE("M4.27: the slowest rank sets the exchange's time", "[whiteboard][experts]") {
  static const KernelModel kernels(h100().gpu, Rates::datasheet);
  static const ExpertExchangeModel network(h100(), Rates::datasheet, Fidelity::table);
  const ExpertPopularity p = make_popularity(parse_skew("zipf:1", "--skew"), 256, 8, 0, 1);
  MoeLayerQuestion q;
  q.load = ep64();
  q.load.popularity = &p;
  q.cluster = &h100();
  q.kernels = &kernels;
  q.exchange = &network;
  q.rates = Rates::datasheet;
  const MoeLayerTimes skewed = price_moe_layer(q), even = whiteboard_layer();
  CHECK(skewed.load.dispatch_network == Approx(even.load.dispatch_network).epsilon(1e-9));
  CHECK(skewed.network() == Approx(even.network() * skewed.load.busiest_network).epsilon(1e-9));
  CHECK(skewed.load.busiest_network > 1.05);
  CHECK(skewed.routed.seconds > 1.5 * even.routed.seconds);
}

TEST_CASE("M5: models by name", "[whiteboard][experts]") {
  const auto mixtral = count_parameters(load_model("mixtral-8x7b"));
  CHECK(mixtral.total == Approx(47e9).epsilon(0.01));  // M5.01
  CHECK(static_cast<double>(mixtral.total) / static_cast<double>(mixtral.active) ==
        Approx(3.6).epsilon(0.01));                  // M5.02
  const Model qwen = load_model("qwen3-235b-a22b");  // M5.04
  CHECK(first_moe(qwen)->experts == 128);
  CHECK(first_moe(qwen)->top_k == 8);
  CHECK(first_moe(qwen)->shared_width == 0);
  CHECK(qwen.layer_count() == 94);
  CHECK(first_moe(load_model("kimi-k2"))->experts == 384);  // M5.05
  CHECK(first_moe(load_model("glm-4.5"))->experts == 160);  // M5.06
  const Model oss = load_model("gpt-oss-120b");             // M5.07
  CHECK(first_moe(oss)->experts == 128);
  CHECK(first_moe(oss)->top_k == 4);
  // M5.11 says that frontier models have 13-50 B active parameters; gpt-oss-120b, named beside it, has 5.1 B.
  CHECK(count_parameters(oss).active_without_input_embedding == Approx(5.13e9).epsilon(0.01));
}

TEST_CASE("routing replay of an 8,192-token sequence costs 7.6 MB", "[whiteboard][experts]") {
  CHECK(replay_bytes(8192, moe().top_k, 58) == Approx(7.6e6).epsilon(0.01));
}

TEST_CASE("M1.12, M4.23, M4.24, M5.03: what sparse models store and where", "[whiteboard]") {
  // 16 bytes a parameter of 671 B: 10.7 TB of mixed-precision Adam.
  CHECK(find_recipe("whiteboard").total() * static_cast<double>(count_parameters(v3()).total) ==
        Approx(10.7e12).epsilon(0.005));
  // Decoding on 144 GPUs: eighteen nodes; with 32 redundant experts two routed ones a GPU, in prefill on 32 GPUs nine.
  CHECK(144 / h100().node.gpus == 18);
  const std::vector<double> loads(256, 1.0);
  for (const auto& [gpus, each] : {std::pair{144, 2}, std::pair{32, 9}}) {
    const ExpertPlacement placed = place_balanced(loads, gpus, 32);
    CHECK(placed.physical() == 288);
    for (const auto& held : placed.on_gpu) CHECK(static_cast<int>(held.size()) == each);
  }
  // Llama 4 Maverick without its vision tower: 400 B stored, 17 B used, 128 experts in every second layer.
  const Model maverick = load_model("llama-4-maverick-17b-128e");
  CHECK(static_cast<double>(count_parameters(maverick).total) == Approx(400e9).epsilon(0.003));
  CHECK(first_moe(maverick)->experts == 128);
  CHECK(std::count_if(maverick.layers.begin(), maverick.layers.end(),
                      [](const Layer& l) { return l.moe.has_value(); }) == 24);
}

TEST_CASE("M1.15: a forward pass of an MoE layer is two all-to-alls, there and back", "[whiteboard][experts]") {
  const MoeLayerTimes t = whiteboard_layer();
  CHECK(t.exchange.dispatch.total.seconds > 0);
  CHECK(t.exchange.combine.total.seconds > 0);
  CHECK(t.overlap.none ==
        Approx(t.exchange.dispatch.total.seconds + t.exchange.combine.total.seconds + t.compute() + t.permute.seconds)
            .epsilon(1e-9));
}

TEST_CASE("M3.12: a second token repeats the first choice of the one before it one time in eight by chance",
          "[whiteboard][experts]") {
  const Model model = load_model("mixtral-8x7b");
  const Moe& mixtral = *first_moe(model);
  REQUIRE(mixtral.experts == 8);
  constexpr int kTokens = 40'000;
  int repeats = 0;
  std::int64_t before = -1;
  for (int token = 0; token < kTokens; ++token) {
    const std::int64_t first = select_experts(mixtral, logits(8, static_cast<std::uint64_t>(token))).experts.front();
    repeats += first == before ? 1 : 0;
    before = first;
  }
  const double deviation = std::sqrt(0.125 * 0.875 / kTokens);
  CHECK(std::abs(static_cast<double>(repeats) / kTokens - 0.125) < 4 * deviation);
}

TEST_CASE("M4.06: an all-to-all among 64 is 4,096 flows, 4,032 of which leave their rank", "[whiteboard][experts]") {
  const TrafficMatrix traffic = all_to_all_traffic(64, 1e9);
  CHECK(std::count_if(traffic.bytes.begin(), traffic.bytes.end(), [](double b) { return b > 0; }) == 4096);
  std::vector<std::int64_t> ranks(64);
  std::iota(ranks.begin(), ranks.end(), 0);
  CHECK(flows_time(Topology::of(h100(), 64), traffic, ranks).flows == 64 * 63);
}

TEST_CASE("M5.12: upcycling OLMoE paid up to a quarter of the dense model's training", "[whiteboard][experts]") {
  // Both budgets are counted in tokens there: 500B of continued training against 2T from scratch. In FLOPs the
  // upcycled model's tokens cost more than those of the dense model that it came from (all experts' width but one is
  // taken away), which the claim leaves out.
  const double share = parse_decimal_count("500B", "tokens") / parse_decimal_count("2T", "tokens");
  CHECK(share == 0.25);
  const Model olmoe = load_model("olmoe-1b-7b");
  Model dense = olmoe;
  for (Layer& layer : dense.layers) {
    layer.mlp = {};
    layer.mlp.width = layer.moe->width;
    layer.moe.reset();
  }
  const double in_flops = share * training_flops(olmoe, 4096) / training_flops(dense, 4096);
  CHECK(in_flops > 1.5 * share);
}

TEST_CASE("M5.17: one sixty-fourth of the experts runs for a token", "[whiteboard][experts]") {
  // Which model is unstated: 6 of 384 (DeepSeek-V4-Pro), shared experts left out.
  Moe moe384 = moe();
  moe384.experts = 384;
  moe384.top_k = 6;
  CHECK(distinct_experts(384, 6, 1) / 384 == Approx(1.0 / 64).epsilon(1e-12));
  CHECK(intensity_gap(moe384, false) == Approx(64).epsilon(1e-12));
}
