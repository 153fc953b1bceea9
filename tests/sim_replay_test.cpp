#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

Order order_of(const char* name, int p, int m, int v = 1, int group = 0) {
  ScheduleQuestion q;
  q.ranks = p;
  q.microbatches = m;
  q.chunks = v;
  q.group = group;
  return find_schedule(name).order(q);
}

PassTimes even_times(const Order& order, double f, double i, double w, double hop = 0) {
  PassTimes t;
  t.forward.assign(order.stages(), f);
  t.input_grad.assign(order.stages(), i);
  t.weight_grad.assign(order.stages(), w);
  t.hop_forward.assign(order.stages(), hop);
  t.hop_backward.assign(order.stages(), hop);
  return t;
}

double makespan(const char* name, int p, int m, int v, double f, double i, double w, double hop, ReplayOptions o = {}) {
  const Order order = order_of(name, p, m, v);
  return replay(order, even_times(order, f, i, w, hop), o).makespan;
}

}  // namespace

TEST_CASE("1F1B at four stages and sixteen micro-batches has the three bubbles of the whiteboard", "[sim]") {
  const Order order = order_of("1f1b", 4, 16);
  const Replay r = replay(order, even_times(order, 1, 1, 1));
  CHECK(r.makespan == 57);
  CHECK(r.over_ideal() == Approx(0.1875).epsilon(1e-12));
  CHECK(r.over_total() == Approx(3.0 / 19).epsilon(1e-12));
  for (int rank = 0; rank < 4; ++rank) CHECK(r.ranks[rank].peak_chunks_until_input_grad == 4 - rank);
}

TEST_CASE("1F1B pays latency once every p micro-batches", "[sim]") {
  CHECK(makespan("1f1b", 8, 24, 1, 10, 10, 10, 1) == 31 * 30 + 54);
  CHECK(makespan("1f1b", 8, 64, 1, 20, 21, 9, 2) == 3798);
}

TEST_CASE("blocking messages on one in-order stream serialise an interleaved schedule", "[sim]") {
  ReplayOptions blocking;
  blocking.p2p = P2pMode::rendezvous;
  blocking.stream_per_peer = false;
  CHECK(makespan("interleaved-1f1b", 8, 16, 2, 1, 1, 1, 0) == 117);
  CHECK(makespan("interleaved-1f1b", 8, 16, 2, 1, 1, 1, 0, blocking) == 168);
  CHECK(makespan("interleaved-1f1b", 4, 8, 2, 1, 1, 1, 0) == 57);
  CHECK(makespan("interleaved-1f1b", 4, 8, 2, 1, 1, 1, 0, blocking) == 67);
  blocking.stream_per_peer = true;
  CHECK(makespan("interleaved-1f1b", 8, 16, 2, 1, 1, 1, 0, blocking) == 117);
}

TEST_CASE("groups smaller than the pipeline deadlock and the waiting cycle is named", "[sim]") {
  const Order order = order_of("interleaved-1f1b", 4, 6, 2, 2);
  CHECK_THROWS_WITH(
      replay(order, even_times(order, 1, 1, 1)),
      "deadlock, the waiting cycle is: 3F3 (rank 3), which stands behind 3B0 (rank 3), which waits for 4B0 "
      "(rank 0), which stands behind 4F3 (rank 0), which waits for 3F3 (rank 3)");
}

TEST_CASE("an order that is no training step is refused", "[sim]") {
  Order order = order_of("1f1b", 2, 2);
  const PassTimes times = even_times(order, 1, 1, 1);
  Order missing = order;
  missing.passes[0].pop_back();
  CHECK_THROWS_WITH(replay(missing, times), "the backward pass of stage 0, micro-batch 1 is missing");
  Order twice = order;
  twice.passes[0].push_back(twice.passes[0].back());
  CHECK_THROWS_WITH(replay(twice, times), "0B1 stands twice");
  Order swapped = order;
  std::swap(swapped.passes[1][0], swapped.passes[1][1]);
  CHECK_THROWS_WITH(replay(swapped, times), "1B0 stands before its forward pass");
}

TEST_CASE("a replayer gives the same answer run after run, and its critical path adds up", "[sim]") {
  const Order order = order_of("interleaved-1f1b", 4, 8, 2);
  Replayer replayer(order);
  const double first = replayer.run(even_times(order, 3, 4, 2, 0.5)).makespan;
  replayer.run(even_times(order, 1, 1, 1));
  CHECK(replayer.run(even_times(order, 3, 4, 2, 0.5)).makespan == first);
  double sum = 0;
  for (const CriticalPass& pass : replayer.critical_path()) sum += pass.end - pass.start + pass.waited;
  CHECK(sum == Approx(first).epsilon(1e-12));
}

TEST_CASE("document masks: a slow micro-batch slows the pipeline, not the latency", "[sim]") {
  const Order order = order_of("gpipe", 2, 2);
  PassTimes times = even_times(order, 1, 1, 1);
  times.per_microbatch_scale = {1, 3};
  // F: rank 0 ends at 4, rank 1 at 7; B0 9, B1 15 on rank 1; rank 0 B0 11, B1 21.
  CHECK(replay(order, times).makespan == 21);
}
