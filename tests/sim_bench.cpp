#include <benchmark/benchmark.h>

#include "sim/operations.hpp"
#include "sim/schedules.hpp"
#include "sim/zb_auto.hpp"

using namespace shardplan;

namespace {

Order one_f_one_b(int ranks, int microbatches) {
  ScheduleQuestion q;
  q.ranks = ranks;
  q.microbatches = microbatches;
  return find_schedule("1f1b").order(q);
}

/// Forward passes run the first list, backward passes the second.
void assign_lists(OperationTable& table, const Order& order) {
  for (const auto& list : order.passes) {
    table.list_of_pass.emplace_back();
    for (const Pass& pass : list) table.list_of_pass.back().push_back(pass.kind == PassKind::forward ? 0 : 1);
  }
}

/// 20 operations a pass, every fifth of them communication on a second stream that the next compute waits for.
OperationTable step_table(const Order& order) {
  OperationTable table;
  table.streams = 2;
  table.begin = {0, 20, 40};
  for (int i = 0; i < 40; ++i) {
    const double seconds = 1e-4 * (1 + i % 7);
    if (i % 5 == 4) {
      table.operations.push_back(communication_op(seconds, 0.15, 0.2));
      table.operations.back().after = i % 20 - 1;
    } else {
      table.operations.push_back(compute_op(seconds, 0.4));
    }
  }
  assign_lists(table, order);
  return table;
}

void replay_1f1b(benchmark::State& state) {
  const Order order = one_f_one_b(1024, 64);
  OperationTable table;
  table.begin = {0, 10, 20};
  for (int i = 0; i < 20; ++i) table.operations.push_back(compute_op(1e-4 * (1 + i % 7)));
  assign_lists(table, order);
  const std::vector<double> hops(1024, 1e-5);
  OperationReplayer replayer(order);
  for (auto _ : state) benchmark::DoNotOptimize(replayer.run(table, hops, hops, false).makespan);
  state.SetItemsProcessed(state.iterations() * 1024 * 64 * 20);
  state.counters["bytes"] = static_cast<double>(replayer.bytes());
}
BENCHMARK(replay_1f1b)->Name("replay/1f1b_1024x64x20")->Unit(benchmark::kMillisecond);

void replay_step(benchmark::State& state, bool contention) {
  const Order order = one_f_one_b(16, 32);
  const OperationTable table = step_table(order);
  const std::vector<double> hops(16, 1e-5);
  OperationReplayer replayer(order);
  for (auto _ : state) benchmark::DoNotOptimize(replayer.run(table, hops, hops, contention).makespan);
  state.SetItemsProcessed(state.iterations() * 16 * 32 * 40);
}
BENCHMARK_CAPTURE(replay_step, free, false)->Name("replay/step_16x32")->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(replay_step, contended, true)->Name("replay/step_16x32_contention")->Unit(benchmark::kMicrosecond);

/// Re-timing a compiled order: what a search pays for one more layout with the same schedule.
void replay_passes(benchmark::State& state) {
  const Order order = one_f_one_b(16, 32);
  PassTimes times;
  times.forward.assign(16, 1);
  times.input_grad.assign(16, 1);
  times.weight_grad.assign(16, 1);
  Replayer replayer(order);
  for (auto _ : state) benchmark::DoNotOptimize(replayer.makespan(times));
  state.SetItemsProcessed(state.iterations() * 16 * 32 * 2);
}
BENCHMARK(replay_passes)->Name("replay/passes_16x32")->Unit(benchmark::kMicrosecond);

/// A question whose bound is not met, so that the search spends all of its tries.
void zb_auto_search(benchmark::State& state) {
  ScheduleQuestion q;
  q.ranks = 16;
  q.microbatches = 64;
  q.forward = 10;
  q.input_grad = 12;
  q.weight_grad = 6;
  q.p2p = 0.5;
  q.memory_limit = 20;
  q.weight_grad_memory = 0.5;
  for (auto _ : state) benchmark::DoNotOptimize(zb_auto(zb_question(q)).makespan);
}
BENCHMARK(zb_auto_search)->Name("zb_auto/p16_m64")->Unit(benchmark::kMillisecond);

}  // namespace
