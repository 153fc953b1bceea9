#include <catch2/catch.hpp>
#include <cmath>

#include "models/coverage.hpp"
#include "models/popularity.hpp"
#include "tests/deepseek_experts.hpp"

using namespace shardplan;

TEST_CASE("a batch touches 8, 163 and 252 of 256 experts at 1, 32 and 128 tokens", "[coverage]") {
  CHECK(distinct_experts(256, 8, 1) == Approx(8).epsilon(1e-9));
  CHECK(distinct_experts(256, 8, 32) == Approx(163.31).epsilon(1e-4));
  CHECK(distinct_experts(256, 8, 128) == Approx(251.60).epsilon(1e-4));
}

TEST_CASE("drawing without replacement agrees with the closed form", "[coverage]") {
  for (const char* text : {"none", "zipf:1.0"}) {
    const auto weights = popularity(parse_skew(text, "--skew"), 256, 8, 0, 1);
    const auto loads = expected_loads(weights, 8);
    for (const std::int64_t batch : {1, 4, 32, 128}) {
      const SampledCoverage drawn = sample_coverage(weights, 8, batch, 2000, 5);
      INFO(text << " batch " << batch);
      CHECK(std::abs(drawn.mean - distinct_experts(loads, 8, static_cast<double>(batch))) <
            5 * drawn.standard_error + 0.006 * drawn.mean);
    }
  }
}

TEST_CASE("at 128 tokens the layer reads 11 GB for 101 GFLOP: 9 FLOP a byte against a dense 256", "[coverage]") {
  const Moe moe = deepseek_v3_experts();
  const DecodeLayer r = decode_layer({&moe, 7168, 128, 1.0, true, {}});
  CHECK(r.weight_bytes == Approx(11.1246e9).epsilon(1e-4));
  CHECK(r.flops == Approx(101.4686e9).epsilon(1e-5));
  CHECK(r.intensity == Approx(9.12).epsilon(1e-3));
  CHECK(r.dense_intensity == Approx(256).epsilon(1e-12));
  CHECK(decode_layer({&moe, 7168, 128, 1.0, false, {}}).flops == Approx(90.1943e9).epsilon(1e-5));
}

TEST_CASE("the gap to a dense model tends to 28.6 with the shared expert and 32 without", "[coverage]") {
  const Moe moe = deepseek_v3_experts();
  CHECK(intensity_gap(moe, true) == Approx(257.0 / 9).epsilon(1e-12));
  CHECK(intensity_gap(moe, false) == Approx(32).epsilon(1e-12));
  for (const bool shared : {true, false}) {
    const DecodeLayer r = decode_layer({&moe, 7168, 1e6, 1.0, shared, {}});
    CHECK(r.dense_intensity / r.intensity == Approx(intensity_gap(moe, shared)).epsilon(1e-6));
  }
}

TEST_CASE("the batch at the ridge is the smallest that reaches it", "[coverage]") {
  const Moe moe = deepseek_v3_experts();
  DecodeQuestion q{&moe, 7168, 1, 1.0, true, {}};
  const double ridge = 989.5e12 / 3.35e12;
  const std::int64_t batch = batch_at_ridge(q, ridge);
  q.batch = static_cast<double>(batch);
  CHECK(decode_layer(q).intensity >= ridge);
  q.batch -= 1;
  CHECK(decode_layer(q).intensity < ridge);
  CHECK(batch == Approx(ridge / 2 * 257 / 9).epsilon(0.01));
}

TEST_CASE("experts on the host: 0.35 GB a layer for one token, 11 GB for 128", "[coverage]") {
  const Moe moe = deepseek_v3_experts();
  CHECK(host_offload({&moe, 7168, 1, 1.0, true, {}}, 0, 55e9).bytes == Approx(0.3523e9).epsilon(1e-3));
  const HostOffload many = host_offload({&moe, 7168, 128, 1.0, true, {}}, 0, 55e9);
  CHECK(many.bytes == Approx(11.08e9).epsilon(1e-3));
  CHECK(many.seconds == Approx(0.2015).epsilon(1e-3));
  CHECK(host_offload({&moe, 7168, 128, 1.0, true, {}}, 256, 55e9).bytes == 0);
  // Keeping the popular half saves more than half when popularity is skewed.
  const auto loads = expected_loads(popularity(parse_skew("zipf:1.0", "--skew"), 256, 8, 0, 1), 8);
  const DecodeQuestion skewed{&moe, 7168, 8, 1.0, true, loads};
  CHECK(host_offload(skewed, 128, 55e9).bytes < 0.4 * host_offload(skewed, 0, 55e9).bytes);
}
