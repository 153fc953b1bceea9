#include <benchmark/benchmark.h>

#include "layouts/search/search.hpp"
#include "models/load_model.hpp"

using namespace shardplan;

namespace {

/// A whole plan, prices cold: what a user waits for beyond starting the program.
void plan(benchmark::State& state, const char* name, const char* cluster, std::int64_t gpus, std::int64_t seq,
          std::int64_t batch, const char* recipe) {
  for (auto _ : state) {
    const Model model = load_model(name);
    const Pricer pricer(load_cluster(cluster), Rates::calibrated, Fidelity::table);
    PlanQuestion q;
    q.model = &model;
    q.pricer = &pricer;
    q.space.gpus = gpus;
    q.workload.seq_len = seq;
    q.workload.global_batch = batch;
    q.stack = load_stack("megatron-core", "--stack");
    q.memory.traits = memory_traits("megatron-core");
    q.memory.recipe = recipe;
    benchmark::DoNotOptimize(search_plans(q).plans.size());
  }
}

}  // namespace

BENCHMARK_CAPTURE(plan, gpt3_175b_512, "gpt3-175b", "a100-sxm-80gb", 512, 2048, 1536, "megatron")
    ->Name("plan/gpt3_175b_512")
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(plan, deepseek_v3_2048, "deepseek-v3", "h800-sxm", 2048, 4096, 15360, "deepseek-v3")
    ->Name("plan/deepseek_v3_2048")
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(plan, llama_405b_16384, "llama-3.1-405b", "h100-sxm", 16384, 8192, 2048, "megatron")
    ->Name("plan/llama_405b_16384")
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
