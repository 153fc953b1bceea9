// One kernel's seconds: shapes, bases, transfers, errors.
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "hardware/kernels.hpp"

namespace shardplan {
namespace {

KernelModel model_of(const char* gpu, Rates rates = Rates::calibrated) {
  return KernelModel(load_cluster(gpu).gpu, rates);
}

Gemm gemm(std::int64_t m, std::int64_t n, std::int64_t k, DataType type = DataType::bf16) {
  Gemm g;
  g.m = m, g.n = n, g.k = k, g.type = type;
  return g;
}

TEST_CASE("Datasheet rates are the larger of FLOPs over peak and bytes over bandwidth, nothing else", "[kernels]") {
  const KernelModel model = model_of("h100-sxm", Rates::datasheet);
  const Price large = model.gemm(gemm(8192, 8192, 8192));
  CHECK(large.seconds == Approx(2.0 * 8192 * 8192 * 8192 / 989e12).epsilon(1e-9));
  CHECK(large.basis == Basis::datasheet);
  CHECK(model.memory_bound(MemoryKernel::copy, 3.35e9).seconds == Approx(1e-3).epsilon(1e-9));
  CHECK(model.launch_floor() == 0);
  CHECK(model.sustained_fraction(DataType::bf16) == 1);
}

TEST_CASE("Every built-in GPU prices every kernel class, and says what it stands on", "[kernels]") {
  for (const std::string& name : gpu_names()) {
    if (name == "host-cpu") continue;
    INFO(name);
    const KernelModel model(load_cluster(name).gpu, Rates::calibrated);
    const Price product = model.gemm(gemm(4096, 4096, 4096));
    CHECK(product.low < product.seconds);
    CHECK(product.seconds < product.high);
    CHECK(product.basis != Basis::measured);
    AttentionShape a;
    a.batch = 1, a.q_len = a.kv_len = 4096, a.heads = 32, a.kv_heads = 8, a.head_dim = 128;
    const double forward = model.attention(a).seconds;
    a.pass = AttentionPass::backward;
    CHECK(model.attention(a).seconds > 1.5 * forward);
    CHECK(model.memory_bound(MemoryKernel::norm, 1e8).seconds > 0);
    const std::vector<std::int64_t> tokens(8, 1024);
    GroupedGemm g;
    g.tokens = tokens, g.n = 4096, g.k = 4096;
    CHECK(model.grouped_gemm(g).seconds > 0);
  }
}

TEST_CASE("A GPU with only a datasheet works and is marked", "[kernels]") {
  const Price price = model_of("mi300x").gemm(gemm(4096, 4096, 4096));
  CHECK(price.basis == Basis::datasheet);
  CHECK(price.high / price.low > 1.5);
}

TEST_CASE("A sibling's times are transferred with a wider interval", "[kernels]") {
  const Price own = model_of("h100-sxm").gemm(gemm(4096, 4096, 4096));
  const Price sibling = model_of("h800-sxm").gemm(gemm(4096, 4096, 4096));
  CHECK(own.basis == Basis::interpolated);
  CHECK(sibling.basis == Basis::transferred);
  CHECK(sibling.high / sibling.low > own.high / own.low);
}

TEST_CASE("Arithmetic that a GPU lacks is an error that names both", "[kernels]") {
  const KernelModel model = model_of("a100-sxm-80gb");
  CHECK_THROWS_WITH(model.gemm(gemm(1024, 1024, 1024, DataType::fp8)), Catch::Contains("fp8"));
  CHECK_THROWS_AS(model.gemm(gemm(-1, 1024, 1024)), InputError);
}

TEST_CASE("Nothing to compute takes no time", "[kernels]") {
  const KernelModel model = model_of("h100-sxm");
  CHECK(model.gemm(gemm(0, 1024, 1024)).seconds == 0);
  CHECK(model.memory_bound(MemoryKernel::add, 0).seconds == 0);
  CHECK(model.grouped_gemm({}).seconds == 0);
}

}  // namespace
}  // namespace shardplan
