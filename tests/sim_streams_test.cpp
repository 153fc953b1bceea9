#include <catch2/catch.hpp>

#include "sim/operations.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"
#include "sim/streams.hpp"

using namespace shardplan;

namespace {

double pass_end(const std::vector<StreamOp>& ops, int streams, bool contention = true) {
  RankStreams rank(streams, contention);
  return rank.run(0, ops);
}

}  // namespace

TEST_CASE("communication that holds a share of the SMs slows compute by 1 / (1 - share)", "[sim]") {
  // 20 of 132 SMs held for all of it: 1 s of compute takes 132 / 112 s.
  CHECK(pass_end({compute_op(1), communication_op(10, 20.0 / 132, 0)}, 2) == Approx(10).epsilon(1e-12));
  StreamOp communication = communication_op(10, 20.0 / 132, 0);
  communication.background = true;
  CHECK(pass_end({compute_op(1), communication}, 2) == Approx(132.0 / 112).epsilon(1e-12));
}

TEST_CASE("slowing lasts only as long as the overlap, and works both ways", "[sim]") {
  // A quarter held for 0.6 s: compute has done 0.45 s by then, 0.55 s are left at full speed.
  CHECK(pass_end({compute_op(1), communication_op(0.6, 0.25, 0)}, 2) == Approx(1.15).epsilon(1e-12));
  // Memory: compute holds 0.8 of it, communication needs 0.4: it runs at (1 - 0.8) / 0.4 = 1/2 (its floor, too);
  // compute needs 0.8 and finds 0.6: 3/4. Compute ends at 4/3; communication has done 2/3 by then.
  std::vector<double> ends(2);
  RankStreams rank(2);
  const std::vector<StreamOp> ops = {compute_op(1, 0.8), communication_op(1, 0, 0.4)};
  CHECK(rank.run(0, ops, ends) == Approx(5.0 / 3).epsilon(1e-12));
  CHECK(ends[0] == Approx(4.0 / 3).epsilon(1e-12));
}

TEST_CASE("no operation falls below its fair share", "[sim]") {
  CHECK(pass_end({compute_op(1), communication_op(5, 1, 0)}, 2) == Approx(5).epsilon(1e-12));
  std::vector<double> ends(2);
  RankStreams rank(2);
  const std::vector<StreamOp> ops = {compute_op(1), communication_op(5, 1, 0)};
  rank.run(0, ops, ends);
  CHECK(ends[0] == Approx(2).epsilon(1e-12));
}

TEST_CASE("operations wait for their stream, for each other, and for what was issued on a stream before", "[sim]") {
  for (const bool contention : {false, true}) {
    RankStreams rank(2, contention);
    StreamOp gather = communication_op(2, 0, 0);
    gather.background = true;
    const std::vector<StreamOp> first = {compute_op(1), gather};
    CHECK(rank.run(0, first) == Approx(1).epsilon(1e-12));
    StreamOp waits = compute_op(1);
    waits.joins = 1;
    const std::vector<StreamOp> second = {waits};
    CHECK(rank.run(1, second) == Approx(3).epsilon(1e-12));
    StreamOp send = communication_op(1, 0, 0);
    send.after = 0;
    const std::vector<StreamOp> third = {compute_op(2), send};
    CHECK(rank.run(5, third) == Approx(8).epsilon(1e-12));
    CHECK(rank.drain() == Approx(8).epsilon(1e-12));
  }
}

TEST_CASE("operations on one stream replay as their sums", "[sim]") {
  ScheduleQuestion q;
  q.ranks = 4;
  q.microbatches = 8;
  const Order order = find_schedule("1f1b").order(q);
  OperationTable table;
  table.begin = {0, 3, 7};
  for (const double t : {0.5, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5}) table.operations.push_back(compute_op(t));
  for (const auto& list : order.passes) {
    table.list_of_pass.emplace_back();
    for (const Pass& pass : list) table.list_of_pass.back().push_back(pass.kind == PassKind::forward ? 0 : 1);
  }
  const std::vector<double> hops(4, 0.125);
  PassTimes times;
  times.forward.assign(4, 1);
  times.input_grad.assign(4, 1);
  times.weight_grad.assign(4, 1);
  times.hop_forward = times.hop_backward = hops;
  const double expected = replay(order, times).makespan;
  OperationReplayer replayer(order);
  CHECK(replayer.run(table, hops, hops, false).makespan == expected);
  table.streams = 2;
  CHECK(replayer.run(table, hops, hops, false).makespan == expected);
  CHECK(replayer.run(table, hops, hops, true).makespan == Approx(expected).epsilon(1e-12));
  CHECK(replayer.run(table, hops, hops, true).operation_end.size() == 4 * 8 * 7);
}

TEST_CASE("the steady state of a long overlap is the slow-down law", "[sim]") {
  RankStreams rank(2);
  StreamOp communication = communication_op(100, 0.2, 0);
  communication.background = true;
  double t = rank.run(0, std::vector<StreamOp>{communication});
  for (int i = 0; i < 10; ++i) t = rank.run(t, std::vector<StreamOp>{compute_op(1)});
  CHECK(t == Approx(12.5).epsilon(1e-12));
}
