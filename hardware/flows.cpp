#include "hardware/flows.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/errors.hpp"

namespace shardplan {
namespace {

constexpr double kTolerance = 1e-3;  // of collective_time: the flows of a collective are equal, or nearly so

double rate_of(LinkKind kind, const WireRates& rates) {
  switch (kind) {
    case LinkKind::nvlink:
      return rates.nvlink;
    case LinkKind::pcie:
      return rates.pcie;
    case LinkKind::network:
      return rates.network;
  }
  return 1;
}

void check(const TrafficMatrix& traffic, const std::vector<std::int64_t>& placement) {
  if (static_cast<std::int64_t>(placement.size()) != traffic.ranks) {
    throw InputError("traffic", "the matrix has " + std::to_string(traffic.ranks) + " ranks, the group " +
                                    std::to_string(placement.size()));
  }
}

struct Traffic {
  FlowSet set;
  bool crosses = false;
};

/// Capacities at these rates; a link that stands for others in series has the least of them.
std::vector<double> capacities(const Topology& topology, const WireRates& rates) {
  std::vector<double> capacity;
  capacity.reserve(topology.links().size());
  for (const TopologyLink& link : topology.links())
    capacity.push_back(link.bytes_per_second * rate_of(link.kind, rates));
  for (std::size_t l = 0; l < capacity.size(); ++l) {
    double& least = capacity[topology.series(static_cast<std::int32_t>(l))];
    least = std::min(least, capacity[l]);
  }
  return capacity;
}

void add_flow(const Topology& topology, std::int64_t from, std::int64_t to, double bytes,
              std::vector<std::int32_t>& route, Traffic& traffic) {
  if (from == to || bytes == 0) return;
  FlowSet& set = traffic.set;
  route.clear();
  topology.append_route(from, to, route);
  const auto start = static_cast<std::ptrdiff_t>(set.link.size());
  for (std::int32_t link : route) {
    traffic.crosses |= topology.links()[link].kind == LinkKind::network;
    if (topology.implied(link)) continue;
    link = topology.series(link);
    if (std::find(set.link.begin() + start, set.link.end(), link) == set.link.end()) set.link.push_back(link);
  }
  set.first.push_back(static_cast<std::int64_t>(set.link.size()));
  set.bytes.push_back(bytes);
}

TrafficTime bound_of(const Traffic& traffic) {
  const BusiestLink busiest = busiest_link(traffic.set);
  TrafficTime time;
  time.seconds = time.bound_seconds = busiest.seconds;
  time.busiest = busiest.link;
  time.flows = traffic.set.flows();
  time.crosses = traffic.crosses;
  return time;
}

TrafficTime flows_of(const Traffic& traffic, double tolerance) {
  TrafficTime time = bound_of(traffic);
  const FlowTimes flows = complete_flows(traffic.set, {tolerance, true});
  time.seconds = flows.end;
  time.steps = flows.steps;
  return time;
}

Traffic traffic_on(const Topology& topology, const TrafficMatrix& matrix, const std::vector<std::int64_t>& placement,
                   const WireRates& rates) {
  Traffic traffic;
  traffic.set.capacity = capacities(topology, rates);
  check(matrix, placement);
  std::vector<std::int32_t> route;
  for (std::int64_t i = 0; i < matrix.ranks; ++i) {
    for (std::int64_t j = 0; j < matrix.ranks; ++j) {
      if (i != j) add_flow(topology, placement[i], placement[j], matrix.at(i, j), route, traffic);
    }
  }
  return traffic;
}

/// Ranks of a group by the domain that holds them, domains in the order in which the group names them.
std::vector<std::vector<std::int64_t>> by_domain(const Cluster& cluster, const std::vector<std::int64_t>& placement) {
  std::vector<std::vector<std::int64_t>> domains;
  std::map<std::int64_t, std::size_t> number;
  for (std::size_t i = 0; i < placement.size(); ++i) {
    const auto [at, fresh] = number.emplace(placement[i] / std::max(1, cluster.node.nvlink_domain), domains.size());
    if (fresh) domains.emplace_back();
    domains[at->second].push_back(static_cast<std::int64_t>(i));
  }
  return domains;
}

/// Rank `from` of a group sends bytes to its rank `to`.
using Send = std::function<void(std::int64_t from, std::int64_t to, double bytes)>;

/// 4,096 ranks each with each: tens of seconds and gigabytes. Beyond it the tables answer.
constexpr std::size_t kMostFlows = std::size_t{1} << 24;
void check_flows(std::size_t flows) {
  if (flows > kMostFlows)
    throw InputError("--network flows", std::to_string(flows) + " flows are too many (at most " +
                                            std::to_string(kMostFlows) + "): ask a smaller group, or --network table");
}

void send_rings(const Cluster& cluster, const std::vector<std::int64_t>& placement, double bytes_per_edge, bool closed,
                const Send& send) {
  const auto domains = by_domain(cluster, placement);
  std::size_t rings = placement.size();
  for (const auto& members : domains) rings = std::min(rings, members.size());
  if (domains.size() == 1) rings = 1;
  check_flows(rings * placement.size());
  for (std::size_t ring = 0; ring < rings; ++ring) {
    std::vector<std::int64_t> order;
    for (const auto& members : domains) {
      for (std::size_t i = 0; i < members.size(); ++i) order.push_back(members[(ring + i) % members.size()]);
    }
    const std::size_t edges = closed ? order.size() : order.size() - 1;
    for (std::size_t i = 0; i < edges; ++i) {
      send(order[i], order[(i + 1) % order.size()], bytes_per_edge / static_cast<double>(rings));
    }
  }
}

void send_all(const Cluster& cluster, Collective op, double bytes, const std::vector<std::int64_t>& placement,
              const Send& send) {
  const auto n = static_cast<std::int64_t>(placement.size());
  if (n < 2) return;
  const double share = static_cast<double>(n - 1) / static_cast<double>(n);
  switch (op) {
    case Collective::all_to_all:
      check_flows(placement.size() * placement.size());
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < n; ++j) send(i, j, bytes / static_cast<double>(n));
      }
      return;
    case Collective::send_recv:
      return send(0, n - 1, bytes);
    case Collective::broadcast:
      return send_rings(cluster, placement, bytes, false, send);
    case Collective::all_reduce:
      return send_rings(cluster, placement, 2 * share * bytes, true, send);
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return send_rings(cluster, placement, share * bytes, true, send);
  }
}

/// The group and its siblings: placement of each, all of one shape.
std::vector<std::vector<std::int64_t>> sibling_groups(const Cluster& cluster, const GroupShape& shape,
                                                      bool neighbours) {
  const int domain = std::max(1, cluster.node.nvlink_domain);
  const int k = std::clamp(shape.ranks_per_domain, 1, std::min(domain, shape.ranks));
  const int siblings = shape.ranks > k ? domain / k : 1;
  std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(siblings));
  for (int g = 0; g < siblings; ++g) {
    for (int r = 0; r < shape.ranks; ++r) {
      const int local = neighbours ? g * k + r % k : g + (r % k) * siblings;
      groups[g].push_back(static_cast<std::int64_t>(r / k) * domain + local);
    }
  }
  return groups;
}

}  // namespace

FlowSet flow_set(const Topology& topology, const TrafficMatrix& traffic, const std::vector<std::int64_t>& placement,
                 const WireRates& rates) {
  return traffic_on(topology, traffic, placement, rates).set;
}

TrafficTime bound_time(const Topology& topology, const TrafficMatrix& traffic,
                       const std::vector<std::int64_t>& placement, const WireRates& rates) {
  return bound_of(traffic_on(topology, traffic, placement, rates));
}

TrafficTime flows_time(const Topology& topology, const TrafficMatrix& traffic,
                       const std::vector<std::int64_t>& placement, const WireRates& rates, double tolerance) {
  return flows_of(traffic_on(topology, traffic, placement, rates), tolerance);
}

GroupShape shape_of_ranks(const Cluster& cluster, const std::vector<std::int64_t>& ranks) {
  int most = 0;
  for (const DomainShare& share : domains_of(cluster, ranks)) most = std::max(most, share.members);
  const double nics_per_gpu = cluster.node.gpus > 0 ? cluster.node.nics.value / cluster.node.gpus : 0;
  return {static_cast<int>(ranks.size()), std::max(1, most), std::max(1, most) * nics_per_gpu};
}

TrafficMatrix all_to_all_traffic(std::int64_t ranks, double bytes) {
  TrafficMatrix traffic(ranks);
  std::fill(traffic.bytes.begin(), traffic.bytes.end(), bytes / static_cast<double>(std::max<std::int64_t>(1, ranks)));
  return traffic;
}

TrafficMatrix collective_traffic(const Cluster& cluster, Collective op, double bytes,
                                 const std::vector<std::int64_t>& placement) {
  TrafficMatrix traffic(static_cast<std::int64_t>(placement.size()));
  send_all(cluster, op, bytes, placement,
           [&](std::int64_t from, std::int64_t to, double sent) { traffic.at(from, to) += sent; });
  return traffic;
}

TrafficTime collective_time(const Cluster& cluster, Fidelity fidelity, Collective op, double bytes,
                            const GroupShape& shape, const WireRates& rates, bool neighbours) {
  if (shape.ranks < 2 || bytes == 0) return {};
  const auto groups = sibling_groups(cluster, shape, neighbours);
  std::int64_t gpus = 0;
  for (const auto& group : groups) gpus = std::max(gpus, 1 + *std::max_element(group.begin(), group.end()));
  const std::int64_t node = cluster.node.gpus;
  const Topology topology = Topology::of(cluster, (gpus + node - 1) / node * node);
  Traffic all;
  all.set.capacity = capacities(topology, rates);
  std::vector<std::int32_t> route;
  for (const auto& group : groups) {
    send_all(cluster, op, bytes, group, [&](std::int64_t from, std::int64_t to, double sent) {
      add_flow(topology, group[from], group[to], sent, route, all);
    });
  }
  return fidelity == Fidelity::flows ? flows_of(all, kTolerance) : bound_of(all);
}

}  // namespace shardplan
