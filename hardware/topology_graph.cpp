// What asks the graph as a graph: shortest paths, maximum flow, connectedness (Boost.Graph).
#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/connected_components.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <cmath>
#include <limits>

#include "hardware/topology.hpp"

namespace shardplan {
namespace {

struct Wire {
  int length = 0;
  std::int32_t link = 0;
};
using WireGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Wire>;

int length_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::nvlink:
      return 1;
    case LinkKind::pcie:
      return 2;
    case LinkKind::network:
      return 4;
  }
  return 4;
}

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
struct Pipe {
  std::int64_t capacity = 0, residual = 0;
  Traits::edge_descriptor back;
};
using PipeGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Pipe>;

void add_pipe(PipeGraph& graph, std::size_t from, std::size_t to, std::int64_t capacity) {
  const auto there = add_edge(from, to, graph).first;
  const auto back = add_edge(to, from, graph).first;
  graph[there] = {capacity, 0, back};
  graph[back] = {0, 0, there};
}

}  // namespace

std::vector<std::int32_t> shortest_route(const Topology& topology, std::int64_t from, std::int64_t to,
                                         bool relay_gpus) {
  const auto source = static_cast<std::size_t>(topology.vertex_of(from)),
             target = static_cast<std::size_t>(topology.vertex_of(to));
  WireGraph graph(topology.vertices().size());
  for (std::size_t l = 0; l < topology.links().size(); ++l) {
    const TopologyLink& link = topology.links()[l];
    const bool leaves_gpu = topology.vertices()[link.from].place == Place::gpu;
    if (leaves_gpu && !relay_gpus && static_cast<std::size_t>(link.from) != source) continue;
    add_edge(link.from, link.to, {length_of(link.kind), static_cast<std::int32_t>(l)}, graph);
  }
  constexpr int kFar = std::numeric_limits<int>::max();
  std::vector<int> distance(num_vertices(graph), kFar);
  std::vector<std::size_t> before(num_vertices(graph));
  dijkstra_shortest_paths(graph, source,
                          boost::weight_map(get(&Wire::length, graph))
                              .distance_map(distance.data())
                              .predecessor_map(before.data())
                              .distance_inf(kFar));
  std::vector<std::int32_t> route;
  if (source == target || distance[target] == kFar) return route;
  for (std::size_t v = target; v != source; v = before[v]) route.push_back(graph[edge(before[v], v, graph).first].link);
  std::reverse(route.begin(), route.end());
  return route;
}

double most_bytes_per_second(const Topology& topology, const std::vector<std::int64_t>& from,
                             const std::vector<std::int64_t>& to) {
  const std::size_t vertices = topology.vertices().size();
  PipeGraph graph(vertices + 2);
  // The algorithm adds up what enters a vertex in whole numbers: all links together stay far below 2^63.
  constexpr double kMost = 1e18;
  double all = 0;
  for (const TopologyLink& link : topology.links()) all += link.bytes_per_second;
  const double scale = std::min(1.0, kMost / std::max(all, 1.0));
  std::vector<std::int64_t> out(vertices, 0), in(vertices, 0);
  for (const TopologyLink& link : topology.links()) {
    const auto capacity = static_cast<std::int64_t>(std::llround(scale * link.bytes_per_second));
    add_pipe(graph, link.from, link.to, capacity);
    out[static_cast<std::size_t>(link.from)] += capacity;
    in[static_cast<std::size_t>(link.to)] += capacity;
  }
  // A rank sends and takes no more than its own links carry.
  for (const std::int64_t rank : from) {
    const auto v = static_cast<std::size_t>(topology.vertex_of(rank));
    add_pipe(graph, vertices, v, out[v]);
  }
  for (const std::int64_t rank : to) {
    const auto v = static_cast<std::size_t>(topology.vertex_of(rank));
    add_pipe(graph, v, vertices + 1, in[v]);
  }
  return 1 / scale *
         static_cast<double>(push_relabel_max_flow(graph, vertices, vertices + 1,
                                                   boost::capacity_map(get(&Pipe::capacity, graph))
                                                       .residual_capacity_map(get(&Pipe::residual, graph))
                                                       .reverse_edge_map(get(&Pipe::back, graph))
                                                       .vertex_index_map(get(boost::vertex_index, graph))));
}

std::vector<std::vector<std::int32_t>> parts(const Topology& topology) {
  boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS> graph(topology.vertices().size());
  for (const TopologyLink& link : topology.links()) {
    if (link.from < link.to) add_edge(link.from, link.to, graph);
  }
  std::vector<std::size_t> part(num_vertices(graph));
  const std::size_t count = part.empty() ? 0 : connected_components(graph, part.data());
  std::vector<std::vector<std::int32_t>> out(count);
  for (std::size_t v = 0; v < part.size(); ++v) out[part[v]].push_back(static_cast<std::int32_t>(v));
  return out;
}

}  // namespace shardplan
