// Laws of the kernel model over random shapes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/random.hpp"
#include "hardware/kernel_grid.hpp"
#include "hardware/kernel_price.hpp"
#include "hardware/kernels.hpp"

namespace shardplan {
namespace {

std::int64_t random_size(Random& random, double low, double high, std::int64_t multiple) {
  const double x = std::exp(std::log(low) + random.uniform() * std::log(high / low));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(x) / multiple) * multiple;
}

TEST_CASE("A larger product of the same alignment never takes less time", "[kernels][law]") {
  Random random(7);
  for (const char* name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "h800-sxm", "mi300x"}) {
    const KernelModel model(load_cluster(name).gpu, Rates::calibrated);
    for (const DataType type : {DataType::bf16, DataType::fp8, DataType::fp8_block}) {
      if (model.gpu().peak(DataType::fp8) <= 0 && type != DataType::bf16) continue;
      for (int i = 0; i < 1500; ++i) {
        Gemm g;
        g.type = type;
        g.m = random_size(random, 1, 65536, 1), g.n = random_size(random, 128, 131072, 128),
        g.k = random_size(random, 128, 65536, 128);
        Gemm larger = g;
        switch (random.below(3)) {
          case 0:
            larger.m += random_size(random, 1, 4096, 1);
            break;
          case 1:
            larger.n += random_size(random, 128, 8192, 128);
            break;
          default:
            larger.k += random_size(random, 128, 8192, 128);
            break;
        }
        INFO(name << " m " << g.m << " n " << g.n << " k " << g.k << " to " << larger.m << " " << larger.n << " "
                  << larger.k);
        CHECK(model.gemm(larger).seconds >= model.gemm(g).seconds * (1 - 1e-9));
      }
    }
  }
}

TEST_CASE("Longer sequences and more heads never take less time", "[kernels][law]") {
  Random random(11);
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  for (int i = 0; i < 2000; ++i) {
    AttentionShape a;
    a.batch = random_size(random, 1, 16, 1), a.q_len = a.kv_len = random_size(random, 128, 131072, 128);
    a.kv_heads = random_size(random, 1, 16, 1), a.heads = a.kv_heads * random_size(random, 1, 8, 1);
    a.head_dim = 64 * (1 + std::int64_t(random.below(2)));
    a.pass = random.below(2) == 0 ? AttentionPass::forward : AttentionPass::backward;
    AttentionShape longer = a;
    if (random.below(2) == 0) {
      longer.q_len = longer.kv_len = a.q_len + random_size(random, 128, 16384, 128);
    } else {
      longer.batch += 1;
    }
    INFO(a.batch << " x " << a.q_len << ", " << a.heads << "/" << a.kv_heads << " of " << a.head_dim);
    CHECK(model.attention(longer).seconds >= model.attention(a).seconds * (1 - 1e-9));
  }
}

TEST_CASE("No kernel is faster than its datasheet allows by more than L2 can explain", "[kernels][law]") {
  Random random(13);
  const Gpu gpu = load_cluster("h100-sxm").gpu;
  const KernelModel model(gpu, Rates::calibrated), datasheet(gpu, Rates::datasheet);
  for (int i = 0; i < 2000; ++i) {
    Gemm g;
    g.m = random_size(random, 512, 65536, 128), g.n = random_size(random, 512, 65536, 128),
    g.k = random_size(random, 512, 65536, 128);
    const Price price = model.gemm(g);
    CHECK(price.seconds > datasheet.gemm(g).seconds);
    CHECK(price.low <= price.seconds);
    CHECK(price.seconds <= price.high);
  }
}

TEST_CASE("The interval widens with the distance from the measured region", "[kernels][law]") {
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  double last = 0;
  for (const std::int64_t n : {16384, 32768, 65536, 131072}) {
    Gemm g;
    g.m = 8192, g.n = n, g.k = 8192;
    const Price price = model.gemm(g);
    CHECK(price.basis == (n > 16384 ? Basis::extrapolated : Basis::interpolated));
    CHECK(price.high / price.low > last);
    last = price.high / price.low;
  }
}

TEST_CASE("Half of the masked work: causal attention costs between half and all of full attention", "[kernels]") {
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  AttentionShape a;
  a.batch = 2, a.q_len = a.kv_len = 8192, a.heads = a.kv_heads = 16, a.head_dim = 128;
  const double causal = model.attention(a).seconds;
  a.causal = false;
  const double full = model.attention(a).seconds;
  CHECK(causal > 0.45 * full);
  CHECK(causal < 0.75 * full);
}

TEST_CASE("A window makes attention linear in length", "[kernels]") {
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  AttentionShape a;
  a.q_len = a.kv_len = 65536, a.heads = 32, a.kv_heads = 8, a.head_dim = 128, a.window = 4096;
  const double once = model.attention(a).seconds;
  a.q_len = a.kv_len = 131072;
  CHECK(model.attention(a).seconds == Approx(2 * once).epsilon(0.1));
}

TEST_CASE("Slices of a context-parallel sequence add up to the whole", "[kernels]") {
  // Ring attention over 4 ranks without load balancing: rank r attends its quarter to r + 1 quarters.
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  AttentionShape a;
  a.q_len = a.kv_len = 32768, a.heads = 32, a.kv_heads = 8, a.head_dim = 128;
  const double whole = model.attention(a).seconds;
  double sum = 0;
  for (int r = 0; r < 4; ++r) {
    a.q_len = 8192, a.kv_len = 8192 * (r + 1);
    sum += model.attention(a).seconds;
  }
  CHECK(sum == Approx(whole).epsilon(0.08));
}

TEST_CASE("Unfused attention moves the scores through memory: several times the fused time at 2k, dropout more",
          "[kernels]") {
  const KernelModel model(load_cluster("a100-sxm-80gb").gpu, Rates::calibrated);
  AttentionShape a;
  a.batch = 4, a.q_len = a.kv_len = 2048, a.heads = a.kv_heads = 12, a.head_dim = 128, a.type = DataType::fp16;
  const double fused = model.attention(a).seconds;
  a.library = AttentionLibrary::unfused;
  const double unfused = model.attention(a).seconds;
  a.dropout = true;
  const double dropout = model.attention(a).seconds;
  CHECK(unfused > 2 * fused);
  CHECK(dropout > 1.2 * unfused);
}

TEST_CASE("The library is an input: FA2 on Hopper is slower than FA3 by its published ratio", "[kernels]") {
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  AttentionShape a;
  a.q_len = a.kv_len = 16384, a.heads = a.kv_heads = 16, a.head_dim = 128, a.library = AttentionLibrary::fa3;
  const double fa3 = model.attention(a).seconds;
  a.library = AttentionLibrary::fa2;
  CHECK(model.attention(a).seconds / fa3 == Approx(1.75).epsilon(1e-6));
  CHECK(model.attention(a).basis == Basis::transferred);
  // Its narrow heads lose less: 1.5 at 64, between in between.
  const auto ratio = [&](std::int64_t head_dim) {
    a.head_dim = head_dim;
    a.library = AttentionLibrary::fa3;
    const double of_fa3 = model.attention(a).seconds;
    a.library = AttentionLibrary::fa2;
    return model.attention(a).seconds / of_fa3;
  };
  CHECK(ratio(64) == Approx(1.5).epsilon(1e-6));
  CHECK(ratio(32) == Approx(1.5).epsilon(1e-6));
  CHECK(ratio(256) == Approx(1.75).epsilon(1e-6));
  CHECK(ratio(96) > 1.5);
  CHECK(ratio(96) < 1.75);
}

TEST_CASE("Odd widths pay their alignment class on A100", "[kernels]") {
  const KernelModel model(load_cluster("a100-sxm-80gb").gpu, Rates::calibrated);
  const auto time = [&](std::int64_t n) {
    Gemm g;
    g.m = 8192, g.n = n, g.k = 4096;
    return model.gemm(g).seconds;
  };
  CHECK(time(4096 + 8) > 1.2 * time(4096));
  CHECK(time(4096 + 1) > 1.5 * time(4096 + 8));
  // Tokens are contiguous in no operand: their number does not matter, in any pass.
  for (const GemmPass pass : {GemmPass::forward, GemmPass::input_grad, GemmPass::weight_grad}) {
    Gemm even, odd;
    even.m = 8192, even.n = even.k = 4096, even.pass = pass;
    odd = even;
    odd.m = 8191;
    CHECK(model.gemm(odd).seconds < 1.02 * model.gemm(even).seconds);
  }
}

TEST_CASE("Unfused attention on A100 pays for heads that are no multiple of 16 bytes", "[kernels]") {
  const KernelModel model(load_cluster("a100-sxm-80gb").gpu, Rates::calibrated);
  const auto time = [&](std::int64_t head_dim) {
    AttentionShape a;
    a.batch = 4, a.heads = 16, a.kv_heads = 16, a.q_len = a.kv_len = 2048, a.head_dim = head_dim;
    a.library = AttentionLibrary::unfused;
    a.type = DataType::fp16;
    return model.attention(a).seconds;
  };
  CHECK(time(108) > 1.5 * time(112));
  CHECK(time(112) < 1.2 * time(96));
}

TEST_CASE("Grouped products: skew costs, more groups of the same rows cost", "[kernels]") {
  const KernelModel model(load_cluster("h100-sxm").gpu, Rates::calibrated);
  const auto time = [&](const std::vector<std::int64_t>& tokens) {
    GroupedGemm g;
    g.tokens = tokens, g.n = 3072, g.k = 4096;
    return model.grouped_gemm(g).seconds;
  };
  const double even = time(std::vector<std::int64_t>(8, 2048));
  CHECK(time(std::vector<std::int64_t>(64, 256)) > even);
  // The same rows on a rank that got twice its share.
  CHECK(time(std::vector<std::int64_t>(8, 4096)) > 1.5 * even);
}

TEST_CASE("A grid interpolates between nodes, clamps outside, and can be made monotone", "[kernels]") {
  LogGrid grid({{"a", {1, 10, 100}}, {"b", {1, 4}}}, {0, 1, 2, 1, 4, 5});
  LogGrid::Logs logs{std::log(10.0), std::log(2.0)};
  CHECK(grid.value(logs) == Approx(1.5).epsilon(1e-12));
  logs = {std::log(1e4), std::log(1.0)};
  CHECK(grid.clamp(logs) == Approx(std::log(100.0)).epsilon(1e-12));
  CHECK(grid.value(logs) == Approx(4).epsilon(1e-12));
  CHECK(make_monotone(grid, {true, true}) == Approx(0.5).epsilon(1e-12));
  CHECK(grid.values() == std::vector<double>{0, 1, 1.5, 1.5, 4, 5});
}

}  // namespace
}  // namespace shardplan
