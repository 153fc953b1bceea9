#include <benchmark/benchmark.h>

#include "layouts/expert_load.hpp"
#include "layouts/expert_placement.hpp"
#include "models/popularity.hpp"

using namespace shardplan;

static void eplb_deepseek_v3(benchmark::State& state) {
  const auto loads = expected_loads(popularity(parse_skew("zipf:1.0", "--skew"), 256, 8, 0, 1), 8);
  for (auto _ : state) benchmark::DoNotOptimize(place_balanced(loads, 144, 32));
}
BENCHMARK(eplb_deepseek_v3)->Name("eplb/deepseek_v3_144");

static void expert_load_of(benchmark::State& state, const char* skew) {
  Moe moe;
  moe.experts = 256;
  moe.top_k = 8;
  moe.width = 2048;
  const ExpertPopularity p = make_popularity(parse_skew(skew, "--skew"), 256, 8, 0, 1);
  ExpertLoadQuestion q;
  q.moe = &moe;
  q.hidden = 7168;
  q.tokens_per_rank = 8192;
  q.ep = 64;
  q.nodes_per_token = 4;
  q.popularity = &p;
  for (auto _ : state) benchmark::DoNotOptimize(expert_load(q));
}
BENCHMARK_CAPTURE(expert_load_of, uniform, "none")->Name("expert_load/uniform");
BENCHMARK_CAPTURE(expert_load_of, skewed, "zipf:0.8")->Name("expert_load/skewed");
