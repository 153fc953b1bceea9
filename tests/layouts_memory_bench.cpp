#include <benchmark/benchmark.h>

#include "hardware/cluster.hpp"
#include "layouts/memory.hpp"
#include "models/load_model.hpp"

namespace {

using namespace shardplan;

void ask(benchmark::State& state, const char* model, const char* text, std::int64_t batch) {
  const Model m = load_model(model);
  const Cluster c = load_cluster("h100-sxm");
  const Layout l = parse_layout(text, 0, "--layout");
  const Workload w{8192, batch, DataType::bf16};
  MemoryOptions o;
  o.traits = memory_traits("megatron-core");
  const auto slices = split_stages(l, m);
  const InFlight flight = in_flight(l, microbatches(l, w));
  for (auto _ : state) benchmark::DoNotOptimize(memory_of(m, c, l, w, o, slices, flight));
}

void split(benchmark::State& state, const char* model, const char* text) {
  const Model m = load_model(model);
  const Layout l = parse_layout(text, 0, "--layout");
  for (auto _ : state) benchmark::DoNotOptimize(split_stages(l, m));
}

BENCHMARK_CAPTURE(ask, llama_405b, "llama-3.1-405b", "tp8 pp16 vpp8 dp128", 2048)->Name("memory/llama_405b_pp16_vpp8");
BENCHMARK_CAPTURE(ask, llama_70b, "llama-3.1-70b", "tp8 pp4 dp16", 512)->Name("memory/llama_70b_pp4");
BENCHMARK_CAPTURE(ask, deepseek, "deepseek-v3", "tp2 pp16 dp64 ep64", 2048)->Name("memory/deepseek_v3_pp16");
BENCHMARK_CAPTURE(split, llama_405b, "llama-3.1-405b", "tp8 pp16 vpp8 dp128")->Name("split_stages/llama_405b_128");
BENCHMARK_CAPTURE(split, deepseek, "deepseek-v3", "pp16 dp128 ep64")->Name("split_stages/deepseek_v3_16");

}  // namespace
