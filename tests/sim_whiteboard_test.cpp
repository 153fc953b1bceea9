// Numbers that an expert derives on a whiteboard: pipeline schedules (claims P4).
#include <algorithm>
#include <catch2/catch.hpp>

#include "sim/in_flight.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

struct Run {
  Order order;
  Replay replay;
};

Run run_of(const char* schedule, int p, int m, int v, double f = 1, double i = 1, double w = 1, double pair = -1) {
  ScheduleQuestion q;
  q.ranks = p;
  q.microbatches = m;
  q.chunks = v;
  Run run{find_schedule(schedule).order(q), {}};
  PassTimes t;
  t.forward.assign(run.order.stages(), f);
  t.input_grad.assign(run.order.stages(), i);
  t.weight_grad.assign(run.order.stages(), w);
  if (pair >= 0) t.overlapped.assign(run.order.stages(), pair);
  ReplayOptions options;
  options.keep_pass_times = true;
  run.replay = replay(run.order, t, options);
  return run;
}

/// Messages that a rank sends in a step.
std::ptrdiff_t sent_by(const Replay& r, int rank) {
  return std::count_if(r.messages.begin(), r.messages.end(),
                       [&](const ReplayMessage& m) { return m.from_rank == rank; });
}

}  // namespace

TEST_CASE("P4: bubbles of 1F1B, GPipe, interleaving and zero bubble at p = 4, m = 16", "[sim]") {
  const Replay one = run_of("1f1b", 4, 16, 1).replay;
  CHECK(one.over_ideal() == Approx(3.0 / 16).epsilon(1e-12));
  CHECK(one.over_total() == Approx(3.0 / 19).epsilon(1e-12));
  CHECK(run_of("gpipe", 4, 16, 1).replay.makespan == one.makespan);
  CHECK(run_of("interleaved-1f1b", 4, 16, 2).replay.over_ideal() == Approx(3.0 / 32).epsilon(1e-12));
  const Replay h1 = run_of("zb-h1", 4, 16, 1).replay;
  CHECK(h1.over_ideal() == Approx(0.0625).epsilon(1e-12));
  CHECK((h1.makespan - 48) / (one.makespan - 48) == Approx(1.0 / 3).epsilon(1e-12));
  CHECK(run_of("zb-h2", 4, 16, 1).replay.window() == 0);
}

TEST_CASE("P4: 30 micro-batches for a bubble of 10 % at four stages, 8 with four-way interleaving", "[sim]") {
  CHECK(run_of("1f1b", 4, 30, 1).replay.over_ideal() == Approx(0.1).epsilon(1e-12));
  CHECK(run_of("1f1b", 4, 29, 1).replay.over_ideal() > 0.1);
  CHECK(run_of("interleaved-1f1b", 4, 8, 4).replay.over_ideal() <= 0.1);
}

TEST_CASE("P4: interleaving places chunks 0 and 8 on rank 0, sends v times as much, holds 1.375 times as much",
          "[sim]") {
  const Order order = run_of("interleaved-1f1b", 8, 16, 2).order;
  std::vector<int> slots;
  for (int s = 0; s < order.stages(); ++s) {
    if (order.rank_of_stage[s] == 0) slots.push_back(order.layer_slot[s]);
  }
  CHECK(slots == std::vector<int>{0, 8});
  for (const int v : {2, 3, 4}) {
    CHECK(sent_by(run_of("interleaved-1f1b", 4, 16, v).replay, 1) == v * sent_by(run_of("1f1b", 4, 16, 1).replay, 1));
  }
  CHECK(run_of("interleaved-1f1b", 4, 16, 2).replay.ranks[0].peak_chunks_until_input_grad ==
        Approx(1.375 * 4 * 2).epsilon(1e-12));
}

TEST_CASE("P4: in flight, p - i micro-batches in 1F1B and ZB-H1, 2p - 1 on the first stage of ZB-H2", "[sim]") {
  const Replay one = run_of("1f1b", 4, 16, 1).replay, h1 = run_of("zb-h1", 4, 16, 1).replay;
  for (int i = 0; i < 4; ++i) {
    CHECK(one.ranks[i].peak_chunks_until_input_grad == 4 - i);
    CHECK(h1.ranks[i].peak_chunks_until_input_grad == 4 - i);
  }
  CHECK(run_of("zb-h2", 4, 16, 1).replay.ranks[0].peak_chunks_until_input_grad == 7);
}

TEST_CASE("P4: DualPipe idles (p/2 - 1)(F&B + B - 3W), B the full backward, with two copies of the parameters",
          "[sim]") {
  // F = 1, B = 2 (input and weight gradient 1 each), F&B = 2.5, p = 16: 7 (2.5 + 2 - 3) = 10.5 on the middle ranks.
  const Run run = run_of("dualpipe", 16, 40, 2, 1, 1, 1, 2.5);
  CHECK(run.order.parameter_copies == 2);
  CHECK(run.replay.ranks[7].idle == Approx(10.5).epsilon(1e-12));
  CHECK(run.replay.ranks[8].idle == Approx(10.5).epsilon(1e-12));
}
