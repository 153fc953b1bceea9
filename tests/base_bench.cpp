#include <benchmark/benchmark.h>

#include "base/random.hpp"

static void random_uniform(benchmark::State& state) {
  shardplan::Random random(1);
  for (auto _ : state) benchmark::DoNotOptimize(random.uniform());
}
BENCHMARK(random_uniform)->Name("base/random_uniform");
