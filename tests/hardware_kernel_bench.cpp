// How fast a product is priced: a shape never asked before, and one asked again.
#include <benchmark/benchmark.h>

#include "hardware/kernels.hpp"

namespace shardplan {
namespace {

const KernelModel& model() {
  static const KernelModel made(load_cluster("h100-sxm").gpu, Rates::calibrated);
  return made;
}

void price_new(benchmark::State& state) {
  Gemm g;
  std::int64_t i = 0;
  for (auto _ : state) {
    g.m = 1000 + i % 15000, g.n = 1024 + 8 * (i / 15000 % 1900), g.k = 4096 + 8 * (i % 1000);
    ++i;
    benchmark::DoNotOptimize(model().gemm(g));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(price_new)->Name("price_gemm/new");

void price_seen(benchmark::State& state) {
  Gemm g;
  std::int64_t i = 0;
  for (auto _ : state) {
    g.m = 4096 + 128 * (i++ % 64), g.n = 4096, g.k = 8192;
    benchmark::DoNotOptimize(model().gemm(g));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(price_seen)->Name("price_gemm/seen");

}  // namespace
}  // namespace shardplan
