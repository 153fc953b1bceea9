// A second engine for the replay: the task graph in Boost.Graph, ends as longest paths, deadlocks as cycles.
#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>
#include <boost/graph/topological_sort.hpp>
#include <catch2/catch.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "sim/pass_text.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                    boost::property<boost::edge_weight_t, double>>;

/// One vertex a pass; an edge's weight is the latency between the end of its source and the start of its target.
struct Oracle {
  Graph graph;
  std::vector<double> duration;
  std::vector<int> rank;

  Oracle(const Order& order, const PassTimes& t) {
    std::map<std::tuple<bool, int, int>, int> computes;  // (forward?, stage, micro-batch) -> vertex
    for (int r = 0; r < order.ranks; ++r) {
      for (const Pass& pass : order.passes[r]) {
        const int v = static_cast<int>(rank.size());
        rank.push_back(r);
        duration.push_back(duration_of(pass, t));
        if (pass.kind == PassKind::forward || pass.kind == PassKind::overlapped) {
          computes[{true, pass.stage, pass.microbatch}] = v;
        }
        if (pass.kind == PassKind::backward || pass.kind == PassKind::input_grad) {
          computes[{false, pass.stage, pass.microbatch}] = v;
        }
        if (pass.kind == PassKind::overlapped) computes[{false, pass.stage2, pass.microbatch2}] = v;
      }
    }
    for (std::size_t v = 0; v < rank.size(); ++v) boost::add_vertex(graph);
    for (std::size_t v = 1; v < rank.size(); ++v) {
      if (rank[v] == rank[v - 1]) boost::add_edge(v - 1, v, 0.0, graph);
    }
    for (const auto& [key, v] : computes) {
      const auto& [forward, stage, k] = key;
      const int from = forward ? order.previous[stage] : order.next[stage];
      if (from >= 0) {
        const int source = computes.at({forward, from, k});
        const double hop = forward ? t.hop_forward[from] : t.hop_backward[from];
        boost::add_edge(source, v, rank[source] == rank[v] ? 0 : hop, graph);
      } else if (!forward) {
        boost::add_edge(computes.at({true, stage, k}), v, 0.0, graph);
      }
    }
  }

  static double duration_of(const Pass& pass, const PassTimes& t) {
    const auto whole = [&](int s) { return t.input_grad[s] + t.weight_grad[s]; };
    switch (pass.kind) {
      case PassKind::forward:
        return t.forward[pass.stage];
      case PassKind::backward:
        return whole(pass.stage);
      case PassKind::input_grad:
        return t.input_grad[pass.stage];
      case PassKind::weight_grad:
        return t.weight_grad[pass.stage];
      case PassKind::overlapped:
        return t.overlapped.empty() ? t.forward[pass.stage] + whole(pass.stage2) : t.overlapped[pass.stage];
    }
    return 0;
  }

  bool deadlocks() const {
    std::vector<int> component(rank.size());
    return boost::strong_components(graph, component.data()) < static_cast<int>(rank.size());
  }

  double makespan() const {
    std::vector<Graph::vertex_descriptor> sorted;
    boost::topological_sort(graph, std::back_inserter(sorted));
    std::reverse(sorted.begin(), sorted.end());
    std::vector<double> end(rank.size(), 0.0);
    double last = 0;
    for (const auto v : sorted) {
      end[v] += duration[v];  // until now the latest arrival
      last = std::max(last, end[v]);
      for (auto [e, stop] = boost::out_edges(v, graph); e != stop; ++e) {
        double& arrival = end[boost::target(*e, graph)];
        arrival = std::max(arrival, end[v] + boost::get(boost::edge_weight, graph, *e));
      }
    }
    return last;
  }
};

PassTimes random_times(Random& random, int stages) {
  PassTimes t;
  for (auto* list : {&t.forward, &t.input_grad, &t.weight_grad, &t.hop_forward, &t.hop_backward, &t.overlapped}) {
    for (int s = 0; s < stages; ++s) list->push_back(static_cast<double>(random.below(64)) / 8);
  }
  if (random.below(2) == 0) t.overlapped.clear();
  return t;
}

}  // namespace

TEST_CASE("uneven stages and asymmetric hops: the replay equals the longest path of the task graph", "[sim]") {
  Random random(3);
  for (const ScheduleRow& row : schedules()) {
    for (int i = 0; i < 25; ++i) {
      ScheduleQuestion q;
      q.ranks = 1 + static_cast<int>(random.below(8));
      q.microbatches = 1 + static_cast<int>(random.below(24));
      q.chunks = row.fixed_chunks ? row.default_chunks : 1 + static_cast<int>(random.below(3));
      q.group = random.below(2) == 0 ? 0 : 1 + static_cast<int>(random.below(8));
      q.search = false;
      if (row.refuse(q)) continue;
      const Order order = row.order(q);
      const PassTimes times = random_times(random, order.stages());
      const Oracle oracle(order, times);
      INFO(row.name << " p=" << q.ranks << " m=" << q.microbatches << " v=" << q.chunks << " g=" << q.group);
      if (oracle.deadlocks()) {
        CHECK(row.name == "interleaved-1f1b");
        CHECK_THROWS_WITH(replay(order, times), Catch::Contains("the waiting cycle is"));
        continue;
      }
      CHECK(replay(order, times).makespan == Approx(oracle.makespan()).epsilon(1e-12));
      double path = 0;
      for (const CriticalPass& pass : critical_path(order, times)) path += pass.end - pass.start + pass.waited;
      CHECK(path == Approx(oracle.makespan()).epsilon(1e-12));
    }
  }
}

TEST_CASE("two neighbours swapped at random: the same deadlocks, the same times", "[sim]") {
  Random random(4);
  int deadlocks = 0, runs = 0;
  for (int i = 0; i < 400; ++i) {
    ScheduleQuestion q;
    q.ranks = 3;
    q.microbatches = 6;
    Order order = find_schedule("1f1b").order(q);
    for (int swaps = 0; swaps < 8; ++swaps) {
      auto& list = order.passes[random.below(3)];
      const std::size_t at = random.below(list.size() - 1);
      const bool own =
          list[at].microbatch == list[at + 1].microbatch;  // a backward before its forward is refused elsewhere
      if (!own) std::swap(list[at], list[at + 1]);
    }
    const PassTimes times = random_times(random, 3);
    const Oracle oracle(order, times);
    if (oracle.deadlocks()) {
      CHECK_THROWS_AS(replay(order, times), InputError);
      ++deadlocks;
    } else {
      CHECK(replay(order, times).makespan == Approx(oracle.makespan()).epsilon(1e-12));
      ++runs;
    }
  }
  CHECK(deadlocks > 20);
  CHECK(runs > 20);
}
