#include <benchmark/benchmark.h>

#include <numeric>

#include "base/random.hpp"
#include "hardware/flows.hpp"

namespace {

/// A skewed all-to-all among GPUs of a cluster, routes and all.
void cluster_all_to_all(benchmark::State& state, const char* name, std::int64_t gpus, double tolerance) {
  const shardplan::Topology topology = shardplan::Topology::of(shardplan::load_cluster(name), gpus);
  shardplan::TrafficMatrix traffic(gpus);
  shardplan::Random random(1);
  for (double& bytes : traffic.bytes) bytes = (1.0 + 0.5 * random.uniform()) * 1e6;
  std::vector<std::int64_t> placement(static_cast<std::size_t>(gpus));
  std::iota(placement.begin(), placement.end(), 0);
  shardplan::TrafficTime time;
  for (auto _ : state) time = shardplan::flows_time(topology, traffic, placement, {}, tolerance);
  state.counters["end_ms"] = time.seconds * 1e3;
  state.counters["over_bound"] = time.seconds / time.bound_seconds;
  state.counters["steps"] = static_cast<double>(time.steps);
}

void dgx_256(benchmark::State& state) { cluster_all_to_all(state, "dgx-h100", 256, 1e-3); }
void llama3_1024(benchmark::State& state) { cluster_all_to_all(state, "llama3-roce", 1024, 1e-2); }
void gb200_288(benchmark::State& state) { cluster_all_to_all(state, "gb200-nvl72", 288, 1e-3); }

}  // namespace

BENCHMARK(dgx_256)->Name("flows/dgx_h100_256_gpus_1e-3")->Unit(benchmark::kMillisecond);
BENCHMARK(llama3_1024)->Name("flows/llama3_roce_1024_gpus_1e-2")->Unit(benchmark::kMillisecond);
BENCHMARK(gb200_288)->Name("flows/gb200_288_gpus_1e-3")->Unit(benchmark::kMillisecond);
