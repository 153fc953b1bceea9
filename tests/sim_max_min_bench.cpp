#include <benchmark/benchmark.h>

#include "base/random.hpp"
#include "sim/max_min.hpp"

namespace {

/// Every host sends 1.0-1.5 MB to every other; 50 GB/s up and down a host, a core that never blocks.
shardplan::FlowSet skewed_all_to_all(int hosts) {
  shardplan::FlowSet set;
  set.capacity.assign(static_cast<std::size_t>(2 * hosts), 50e9);
  shardplan::Random random(1);
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if (from != to) set.add({from, hosts + to}, (1.0 + 0.5 * random.uniform()) * 1e6);
    }
  }
  return set;
}

void all_to_all(benchmark::State& state, int hosts, double tolerance) {
  const shardplan::FlowSet set = skewed_all_to_all(hosts);
  shardplan::FlowTimes times;
  for (auto _ : state) times = shardplan::complete_flows(set, {tolerance, true});
  state.counters["end_ms"] = times.end * 1e3;
  state.counters["over_bound"] = times.end / shardplan::busiest_link(set).seconds;
  state.counters["steps"] = static_cast<double>(times.steps);
  state.SetItemsProcessed(state.iterations() * set.flows());
}

void all_to_all_256(benchmark::State& state) { all_to_all(state, 256, 1e-3); }
void all_to_all_1024(benchmark::State& state) { all_to_all(state, 1024, 1e-2); }

}  // namespace

BENCHMARK(all_to_all_256)->Name("flows/all_to_all_256_skewed_1e-3")->Unit(benchmark::kMillisecond);
BENCHMARK(all_to_all_1024)->Name("flows/all_to_all_1024_skewed_1e-2")->Unit(benchmark::kMillisecond);
