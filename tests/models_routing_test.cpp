#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "models/popularity.hpp"
#include "models/routing.hpp"
#include "models/routing_demonstrations.hpp"
#include "tests/deepseek_experts.hpp"
#include "tests/scratch.hpp"

using namespace shardplan;

namespace {

/// DeepSeek-V3's router: 256 experts in 8 groups, 4 groups and 8 experts a token, sigmoid, gates sum to 2.5.
Moe deepseek_v3() {
  Moe moe = deepseek_v3_experts();
  moe.score = RouterScore::sigmoid;
  moe.routed_scaling = 2.5;
  moe.selection_bias = true;
  moe.groups = 8;
  moe.groups_per_token = 4;
  return moe;
}

std::vector<double> random_logits(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> z;
  for (std::int64_t i = 0; i < n; ++i) z.push_back(random.normal());
  return z;
}

std::vector<double> sampled_loads(TokenSampler& sampler, std::int64_t experts, int tokens, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> loads(static_cast<std::size_t>(experts), 0.0);
  double pairs = 0;
  for (int t = 0; t < tokens; ++t) {
    for (const std::int32_t e : sampler.draw(random)) loads[static_cast<std::size_t>(e)] += 1, pairs += 1;
  }
  for (double& l : loads) l /= pairs;
  return loads;
}

}  // namespace

TEST_CASE("the three affinities of one logit", "[routing]") {
  const std::vector<double> z{std::log(3.0), 0, -1};
  CHECK(router_scores(RouterScore::sigmoid, z)[0] == Approx(0.75).epsilon(1e-12));
  CHECK(router_scores(RouterScore::sqrt_softplus, z)[1] == Approx(std::sqrt(std::log(2.0))).epsilon(1e-12));
  const auto soft = router_scores(RouterScore::softmax, z);
  CHECK(soft[0] + soft[1] + soft[2] == Approx(1).epsilon(1e-12));
  CHECK(soft[0] / soft[1] == Approx(3).epsilon(1e-12));
}

TEST_CASE("renormalised and scaled gates sum to 2.5", "[routing]") {
  const Selection s = select_experts(deepseek_v3(), random_logits(256, 3));
  REQUIRE(s.experts.size() == 8);
  CHECK(std::accumulate(s.gates.begin(), s.gates.end(), 0.0) == Approx(2.5).epsilon(1e-12));
}

TEST_CASE("softmax renormalised over the chosen is softmax of the chosen alone", "[routing]") {
  Moe moe;
  moe.experts = 8;
  moe.top_k = 2;
  const auto z = random_logits(8, 5);
  const Selection s = select_experts(moe, z);
  const double a = z[static_cast<std::size_t>(s.experts[0])], b = z[static_cast<std::size_t>(s.experts[1])];
  CHECK(s.gates[0] == Approx(1 / (1 + std::exp(b - a))).epsilon(1e-12));
}

TEST_CASE("a selection bias moves the choice and not the gates", "[routing]") {
  Moe moe = deepseek_v3();
  moe.groups = moe.groups_per_token = 1;
  const auto z = random_logits(256, 9);
  std::vector<double> bias(256, 0.0);
  const auto worst = static_cast<std::size_t>(std::min_element(z.begin(), z.end()) - z.begin());
  bias[worst] = 10;
  const Selection s = select_experts(moe, z, bias);
  REQUIRE(s.experts[0] == static_cast<std::int64_t>(worst));
  CHECK(s.gates == gates_of(moe, z, s.experts));
  CHECK(s.gates[0] == *std::min_element(s.gates.begin(), s.gates.end()));
}

TEST_CASE("node-limited selection stays in four groups and takes the best of them", "[routing]") {
  const Moe moe = deepseek_v3();
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Selection s = select_experts(moe, random_logits(256, seed));
    std::vector<int> used(8, 0);
    for (const auto e : s.experts) used[static_cast<std::size_t>(e / 32)] = 1;
    CHECK(std::accumulate(used.begin(), used.end(), 0) <= 4);
  }
}

TEST_CASE("a group is scored by its best two with a bias, by its best one without", "[routing]") {
  Moe moe;
  moe.experts = 8;
  moe.top_k = 2;
  moe.groups = 4;
  moe.groups_per_token = 1;
  moe.score = RouterScore::sigmoid;
  const std::vector<double> z{3, -9, 2, 2, -9, -9, -9, -9};  // group 0 has the best, group 1 the best pair
  CHECK(select_experts(moe, z).experts == std::vector<std::int64_t>{0, 1});
  moe.selection_bias = true;
  CHECK(select_experts(moe, z).experts == std::vector<std::int64_t>{2, 3});
}

TEST_CASE("only the chosen k carry a gate gradient, and a renormalised top-1 gate none", "[routing]") {
  Moe moe = deepseek_v3();
  const auto z = random_logits(256, 11);
  const auto gradients = gate_gradients(moe, z);
  int silent = 0;
  for (std::size_t i = 0; i < 256; ++i) {
    double size = 0;
    for (const auto& row : gradients) size += std::abs(row[i]);
    silent += size == 0;
  }
  CHECK(silent == 248);

  moe.top_k = 1;
  for (const auto& row : gate_gradients(moe, z)) {
    for (const double g : row) CHECK(g == 0);
  }
  moe.renormalise = false;  // Switch keeps the probability as the gate: the gradient is back
  double size = 0;
  for (const auto& row : gate_gradients(moe, z)) {
    for (const double g : row) size += std::abs(g);
  }
  CHECK(size > 0.1);
}

TEST_CASE("capacity drops the overflow, pads the rest, and dropless does neither", "[routing]") {
  std::vector<std::vector<std::int64_t>> tokens;
  for (int t = 0; t < 8192; ++t) tokens.push_back({t % 64});
  const CapacityOutcome even = apply_capacity(tokens, 64, 1.25);
  CHECK(even.capacity == 160);
  CHECK(even.dropped == 0);
  CHECK(even.padded == 64 * 32);
  for (auto& token : tokens) token[0] = 0;
  const CapacityOutcome hot = apply_capacity(tokens, 64, 1.25);
  CHECK(hot.dropped == 8192 - 160);
  const CapacityOutcome dropless = apply_capacity(tokens, 64, 0);
  CHECK(dropless.dropped == 0);
  CHECK(dropless.padded == 0);
  CHECK(dropless.load[0] == 8192);
}

TEST_CASE("under a capacity a prompt's drops depend on its batch mates, dropless they cannot", "[routing]") {
  TokenSampler sampler(std::vector<double>(8, 1.0), 2);
  auto batch = [&](std::uint64_t seed, int tokens) {
    Random random(seed);
    std::vector<std::vector<std::int64_t>> out;
    for (int t = 0; t < tokens; ++t) {
      const auto chosen = sampler.draw(random);
      out.emplace_back(chosen.begin(), chosen.end());
    }
    return out;
  };
  const auto prompt = batch(1, 64);
  std::vector<std::vector<std::vector<bool>>> seen;
  for (const std::uint64_t mates : {2, 3}) {
    auto all = batch(mates, 64);  // the mates come first, the same prompt follows
    all.insert(all.end(), prompt.begin(), prompt.end());
    const CapacityOutcome capped = apply_capacity(all, 8, 1.0);
    seen.emplace_back(capped.kept.begin() + 64, capped.kept.end());
    const CapacityOutcome dropless = apply_capacity(all, 8, 0);
    for (const auto& kept : dropless.kept) CHECK(kept == std::vector<bool>{true, true});
  }
  CHECK(seen[0] != seen[1]);
}

TEST_CASE("expected shares of drops and padding", "[routing]") {
  const std::vector<double> even(4, 0.25);
  CHECK(capacity_shares(even, 1.0).dropped == Approx(0).margin(1e-12));
  CHECK(capacity_shares(even, 1.25).padding == Approx(0.2).epsilon(1e-12));
  const std::vector<double> hot{0.7, 0.1, 0.1, 0.1};
  CHECK(capacity_shares(hot, 1.0).dropped == Approx(0.45).epsilon(1e-12));
  CHECK(capacity_shares(hot, 0).dropped == 0);
}

TEST_CASE("drawn loads follow the expected loads of every popularity", "[routing]") {
  for (const char* text : {"none", "zipf:1.0", "zipf:2", "dirichlet:0.3", "power-law:1.2"}) {
    const auto weights = popularity(parse_skew(text, "--skew"), 256, 8, 65536, 3);
    const auto expected = expected_loads(weights, 8);
    TokenSampler sampler(weights, 8);
    const auto drawn = sampled_loads(sampler, 256, 200000, 17);
    INFO(text);
    double worst = 0;
    for (std::size_t i = 0; i < 256; ++i) {
      const double sigma = std::sqrt(expected[i] / (200000.0 * 8));
      worst = std::max(worst, (std::abs(drawn[i] - expected[i]) - 4 * sigma) / std::max(expected[i], 1.0 / 256));
      CHECK(drawn[i] <= 1.0 / 8 + 1e-9);
    }
    CHECK(worst < 0.012);
  }
}

TEST_CASE("weights made from loads give those loads back", "[routing]") {
  Random random(5);
  const auto loads = power_law_loads(128, 1.2, 4096, random);
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  const auto back = expected_loads(weights_of_loads(loads, 2), 2);
  for (std::size_t i = 0; i < loads.size(); ++i) CHECK(back[i] == Approx(loads[i] / sum).epsilon(0.03).margin(2e-4));
}

TEST_CASE("a file of counts gives the loads that were counted", "[routing]") {
  const Scratch scratch;
  const auto loads_of = [&](const std::string& text, std::int64_t experts, std::int64_t k) {
    const Skew skew = parse_skew("file:" + scratch.write("counts.json", text), "--skew");
    return expected_loads(popularity(skew, experts, k, 1024, 1), k);
  };
  const auto counted = loads_of("[10, 20, 30, 40]", 4, 2);
  for (std::size_t i = 0; i < 4; ++i) CHECK(counted[i] == Approx(0.1 * static_cast<double>(i + 1)).epsilon(1e-4));
  // Rows (source ranks) are added up.
  CHECK(loads_of("[[10, 0, 30, 20], [0, 20, 0, 20]]", 4, 2) == counted);
  // What no top-2 router can count: one expert with 70 %; one expert alone. The others share what is left.
  const auto cut = loads_of("[70, 10, 10, 10]", 4, 2), alone = loads_of("[9, 0, 0, 0]", 4, 2);
  for (const auto& loads : {cut, alone}) {
    CHECK(loads[0] == Approx(0.5).epsilon(1e-4));
    CHECK(loads[3] == Approx(0.5 / 3).epsilon(1e-4));
  }
  const Skew skew = parse_skew("file:" + scratch.file("counts.json"), "--skew");
  CHECK(counts_note(skew, 4, 2).find("expert 0 has 100 % of the counts") != std::string::npos);
  scratch.write("counts.json", "[1, 1, 1, 1]");
  CHECK(counts_note(skew, 4, 2).empty());
}

TEST_CASE("a malformed file of counts is refused by its place", "[routing]") {
  const Scratch scratch;
  const std::pair<const char*, const char*> rows[] = {
      {"[1, 2, 3]", "has 3 counts for 4 experts"},
      {"[[1, 2, 3, 4], [1, 2, 3]]", "/1: has 3 counts"},
      {"[[1, 2, 3, 4], 5]", "/1: expected an array of counts"},
      {"[1, 2, [3], 4]", "/2: expected a number"},
      {"[1, -2, 3, 4]", "/1: a count cannot be negative"},
      {"[1, 2e15, 3, 4]", "/1: out of range"},
      {"[1, 1e999, 3, 4]", "number out of range"},
      {"[1, NaN, 3, 4]", "not JSON"},
      {"[1, null, 3, 4]", "/1: expected a number"},
      {"[0, 0, 0, 0]", "all counts are zero"},
      {"{\"counts\": [1, 2, 3, 4]}", "expected an array of counts"},
      {"[]", "has 0 counts"},
      {"[[]]", "/0: has 0 counts"},
      {"", "not JSON"},
  };
  for (const auto& [text, expected] : rows) {
    const Skew skew = parse_skew("file:" + scratch.write("counts.json", text), "--skew");
    std::string said;
    try {
      popularity(skew, 4, 2, 1024, 1);
    } catch (const InputError& e) {
      said = e.where() + ": " + e.what();
    }
    INFO(text << " " << said);
    CHECK(said.find(expected) != std::string::npos);
  }
}

TEST_CASE("equal weights are left untouched as the hypergeometric law says", "[routing]") {
  const std::vector<double> weights(256, 1.0 / 256);
  const MeanDraws draws = mean_draws(weights, 8);
  double exact = 1;  // C(224, 8) / C(256, 8)
  for (int j = 0; j < 8; ++j) exact *= (224.0 - j) / (256.0 - j);
  CHECK(probability_untouched(std::span(weights).first(32), draws) == Approx(exact).epsilon(1e-6));
  CHECK(8 * (1 - exact) == Approx(5.2947).epsilon(1e-4));
}

TEST_CASE("no expert takes more than 1/k of the selections", "[routing]") {
  for (const char* text : {"zipf:8", "dirichlet:0.001", "power-law:2"}) {
    const auto loads = expected_loads(popularity(parse_skew(text, "--skew"), 256, 8, 65536, 1), 8);
    CHECK(*std::max_element(loads.begin(), loads.end()) <= 0.125 + 1e-12);
    CHECK(std::accumulate(loads.begin(), loads.end(), 0.0) == Approx(1).epsilon(1e-9));
  }
}

TEST_CASE("a sampler limited to four of eight nodes uses at most four", "[routing]") {
  TokenSampler sampler(std::vector<double>(256, 1.0), 8, 8, 4);
  Random random(2);
  double nodes = 0;
  for (int t = 0; t < 4000; ++t) {
    std::vector<int> used(8, 0);
    for (const auto e : sampler.draw(random)) used[static_cast<std::size_t>(e / 32)] = 1;
    const int n = std::accumulate(used.begin(), used.end(), 0);
    REQUIRE(n <= 4);
    nodes += n / 4000.0;
  }
  CHECK(nodes > 3.8);
}

TEST_CASE("rounding scores to BF16 flips choices, FP32 summation order hardly any", "[routing]") {
  const Moe moe = deepseek_v3();
  const RoundingReport r = rounding_report(moe, 1024, 300, 1);
  CHECK(r.bf16_scores.choices > 0.002);
  CHECK(r.bf16_scores.choices < 0.1);
  CHECK(r.reversed_sum.choices < r.bf16_scores.choices / 20);
  // 8 of 256 normal logits: the gap at the boundary is about 1 / (256 density(1.86)) = 0.055; FP32 sums of 1,024
  // products differ by about sqrt(1,024) half units in the last place of their partial sums, 1e-6.
  CHECK(r.mean_gap == Approx(0.055).epsilon(0.2));
  CHECK(r.mean_error > 2e-7);
  CHECK(r.mean_error < 4e-6);
  CHECK(r.reversed_expected == Approx(r.mean_error / 2 / r.mean_gap / 8).epsilon(1e-12));
}

TEST_CASE("a capacity counted on one GPU's tokens drops even loads too", "[routing]") {
  const std::vector<double> even(256, 1.0 / 256);
  // 256 rows an expert on average, deviation sqrt(8192 p (1 - p)) = 15.75: 0.399 of it over.
  CHECK(counted_drops(even, 8, 8192, 1.0) == Approx(0.3989 * 15.75 / 256).epsilon(0.01));
  CHECK(counted_drops(even, 8, 8192, 1.25) < 1e-4);
  CHECK(counted_drops(even, 8, 1 << 28, 1.0) < 2e-4);  // the normal law, hardly any
  CHECK(counted_drops(even, 8, 8192, 0) == 0);
  const std::vector<double> hot{0.5, 0.25, 0.25};  // top-2: the first expert takes every token, C = 2 of 3
  CHECK(counted_drops(hot, 2, 3, 1.0) == Approx((1.0 + 2 * 0.125) / 6).epsilon(1e-12));
  // Far beyond the capacity only the means count.
  CHECK(counted_drops(std::vector<double>{0.05, 0.95}, 1, 8192, 1.0) == Approx(0.45).epsilon(1e-9));
  // Against drawn tokens.
  const auto weights = popularity(parse_skew("zipf:0.7", "--skew"), 64, 4, 512, 1);
  TokenSampler sampler(weights, 4);
  Random random(3);
  double dropped = 0;
  for (int batch = 0; batch < 200; ++batch) {
    std::vector<std::vector<std::int64_t>> tokens;
    for (int t = 0; t < 512; ++t) {
      const auto chosen = sampler.draw(random);
      tokens.emplace_back(chosen.begin(), chosen.end());
    }
    dropped += static_cast<double>(apply_capacity(tokens, 64, 1.0).dropped) / (200.0 * 512 * 4);
  }
  CHECK(counted_drops(expected_loads(weights, 4), 4, 512, 1.0) == Approx(dropped).epsilon(0.02));
}

TEST_CASE("the report of gate gradients tells sigmoid, renormalised and plain softmax apart", "[routing]") {
  Moe moe = deepseek_v3();
  const GateGradientReport sigmoid = gate_gradient_report(moe, 1);
  CHECK(sigmoid.carrying == 8);
  CHECK(sigmoid.silent == 248);
  CHECK(sigmoid.top1_renormalised == 0);
  moe.score = RouterScore::softmax;
  moe.renormalise = true;
  CHECK(gate_gradient_report(moe, 1).carrying == 8);
  moe.renormalise = false;
  CHECK(gate_gradient_report(moe, 1).carrying == 256);
}

TEST_CASE("BF16 rounds to nearest even", "[routing]") {
  CHECK(to_bf16(1.0f) == 1.0f);
  CHECK(to_bf16(1.00390625f) == 1.0f);       // halfway, even below
  CHECK(to_bf16(1.01171875f) == 1.015625f);  // halfway, even above
}

TEST_CASE("replaying the routes of an 8,192-token sequence costs 7.6 MB", "[routing]") {
  CHECK(replay_bytes(8192, 8, 58) == Approx(7602176).epsilon(1e-12));
}

TEST_CASE("a skew's text is read strictly and printed back", "[routing]") {
  for (const char* text : {"none", "zipf:1.2", "dirichlet:0.5", "power-law:1.01", "file:counts.json"}) {
    CHECK(skew_text(parse_skew(text, "--skew")) == text);
  }
  for (const char* text : {"zipf", "zipf:", "zipf:x", "zipf:-1", "zip:1", "file:", "dirichlet:0", ""}) {
    CHECK_THROWS_AS(parse_skew(text, "--skew"), InputError);
  }
}
