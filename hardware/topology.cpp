#include "hardware/topology.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "hardware/topology_build.hpp"

namespace shardplan {

struct Topology::Impl {
  TopologyParts parts;
  std::vector<std::int32_t> gpu_vertex;
  std::vector<std::int32_t> series;               // by link
  std::vector<char> implied;                      // by link
  std::vector<std::vector<std::int32_t>> routes;  // of_graph only: by from * gpus + to
};

namespace {

/// Two links are in series where the vertex between them is no GPU and has no other neighbour.
std::vector<std::int32_t> series_of(const TopologyParts& parts) {
  const std::size_t vertices = parts.vertices.size();
  std::vector<std::int32_t> first_in(vertices, -1), neighbours(vertices, 0);
  std::vector<std::vector<std::int32_t>> in(vertices), out(vertices);
  for (std::size_t l = 0; l < parts.links.size(); ++l) {
    out[parts.links[l].from].push_back(static_cast<std::int32_t>(l));
    in[parts.links[l].to].push_back(static_cast<std::int32_t>(l));
  }
  std::vector<std::int32_t> least(parts.links.size());
  std::iota(least.begin(), least.end(), 0);
  const auto root = [&](std::int32_t l) {
    while (least[l] != l) l = least[l] = least[least[l]];
    return l;
  };
  const auto join = [&](std::int32_t a, std::int32_t b) {
    a = root(a), b = root(b);
    if (a == b) return;
    const double ca = parts.links[a].bytes_per_second, cb = parts.links[b].bytes_per_second;
    // Of equals the network's: what is bound by the NIC is the NIC's.
    const bool na = parts.links[a].kind == LinkKind::network, nb = parts.links[b].kind == LinkKind::network;
    if (ca < cb || (ca == cb && (na > nb || (na == nb && a < b)))) {
      least[b] = a;
    } else {
      least[a] = b;
    }
  };
  for (std::size_t v = 0; v < vertices; ++v) {
    if (parts.vertices[v].place == Place::gpu || out[v].size() != 2 || in[v].size() != 2) continue;
    for (const std::int32_t i : in[v]) {
      for (const std::int32_t o : out[v]) {
        if (parts.links[i].from != parts.links[o].to) join(i, o);
      }
    }
  }
  for (std::size_t l = 0; l < least.size(); ++l) least[l] = root(static_cast<std::int32_t>(l));
  return least;
}

/// See Topology::implied. With two other neighbours or more, what implies a link is strictly smaller, so that nothing
/// is implied in a circle; with one other neighbour links are in series.
std::vector<char> implied_links(const TopologyParts& parts) {
  const std::size_t vertices = parts.vertices.size();
  std::vector<double> in(vertices, 0.0), out(vertices, 0.0);
  std::vector<int> neighbours(vertices, 0);
  for (const TopologyLink& link : parts.links) {
    out[link.from] += link.bytes_per_second;
    in[link.to] += link.bytes_per_second;
    ++neighbours[link.from];
  }
  std::vector<char> implied;
  constexpr double kRounding = 1e-9;
  for (const TopologyLink& link : parts.links) {
    // Every wire has the same capacity both ways: the way back is as much of the sum as the link itself.
    const auto by = [&](std::int32_t v, const std::vector<double>& sum) {
      return parts.vertices[v].place != Place::gpu && neighbours[v] > 2 &&
             link.bytes_per_second >= (sum[v] - link.bytes_per_second) * (1 - kRounding);
    };
    implied.push_back(static_cast<char>(by(link.from, in) || by(link.to, out)));
  }
  return implied;
}

std::vector<std::int32_t> gpu_vertices(const TopologyParts& parts) {
  std::vector<std::int32_t> out;
  for (std::size_t v = 0; v < parts.vertices.size(); ++v) {
    if (parts.vertices[v].place == Place::gpu) out.push_back(static_cast<std::int32_t>(v));
  }
  return out;
}

}  // namespace

Topology::Topology(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;
Topology::~Topology() = default;

Topology Topology::of(const Cluster& cluster, std::int64_t gpus) {
  auto impl = std::make_unique<Impl>();
  impl->parts = build_topology(cluster, gpus);
  impl->gpu_vertex = gpu_vertices(impl->parts);
  impl->series = series_of(impl->parts);
  impl->implied = implied_links(impl->parts);
  return Topology(std::move(impl));
}

Topology Topology::of_graph(std::vector<TopologyVertex> vertices, std::vector<TopologyLink> links) {
  auto impl = std::make_unique<Impl>();
  impl->parts.vertices = std::move(vertices);
  impl->parts.links = std::move(links);
  impl->gpu_vertex = gpu_vertices(impl->parts);
  impl->series = series_of(impl->parts);
  impl->implied = implied_links(impl->parts);
  Topology topology(std::move(impl));
  const std::int64_t n = topology.gpus();
  std::vector<std::vector<std::int32_t>> routes(static_cast<std::size_t>(n * n));
  for (std::int64_t a = 0; a < n; ++a) {
    for (std::int64_t b = 0; b < n; ++b) {
      if (a == b) continue;
      auto& route = routes[static_cast<std::size_t>(a * n + b)];
      route = shortest_route(topology, a, b, false);
      if (route.empty()) {
        throw InputError("topology", "no way from " + topology.name_of(topology.vertex_of(a)) + " to " +
                                         topology.name_of(topology.vertex_of(b)));
      }
    }
  }
  topology.impl_->routes = std::move(routes);
  return topology;
}

std::int64_t Topology::gpus() const { return static_cast<std::int64_t>(impl_->gpu_vertex.size()); }
std::span<const TopologyVertex> Topology::vertices() const { return impl_->parts.vertices; }
std::span<const TopologyLink> Topology::links() const { return impl_->parts.links; }
std::int32_t Topology::vertex_of(std::int64_t rank) const {
  return impl_->gpu_vertex.at(static_cast<std::size_t>(rank));
}
std::int32_t Topology::series(std::int32_t link) const { return impl_->series.at(static_cast<std::size_t>(link)); }
bool Topology::implied(std::int32_t link) const { return impl_->implied.at(static_cast<std::size_t>(link)) != 0; }

std::string Topology::name_of(std::int32_t vertex) const {
  const TopologyVertex& v = impl_->parts.vertices.at(static_cast<std::size_t>(vertex));
  const std::string owner = std::to_string(v.owner), index = std::to_string(v.index);
  switch (v.place) {
    case Place::gpu:
      return "gpu " + index;
    case Place::nvswitch:
      return "nvswitch " + owner;
    case Place::memory:
      return "memory " + owner;
    case Place::pcie_switch:
      return "node " + owner + " pcie " + index;
    case Place::host:
      return "node " + owner + " host " + index;
    case Place::nic:
      return "node " + owner + " nic " + index;
    case Place::leaf:
      return "leaf " + owner + "." + index;
    case Place::spine:
      return "spine " + owner;
    case Place::core:
      return "core";
  }
  return "";
}

std::string Topology::link_name(std::int32_t link) const {
  const TopologyLink& l = impl_->parts.links.at(static_cast<std::size_t>(link));
  return name_of(l.from) + " -> " + name_of(l.to);
}

void Topology::append_route(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& links) const {
  if (from < 0 || to < 0 || from >= gpus() || to >= gpus()) {
    throw InputError("ranks", "rank " + std::to_string(from < 0 || from >= gpus() ? from : to) + " is not among the " +
                                  std::to_string(gpus()) + " GPUs of the topology");
  }
  if (from == to) return;
  if (impl_->routes.empty()) {
    impl_->parts.append_route(from, to, links);
  } else {
    const auto& route = impl_->routes[static_cast<std::size_t>(from * gpus() + to)];
    links.insert(links.end(), route.begin(), route.end());
  }
}

std::vector<std::int32_t> Topology::route(std::int64_t from, std::int64_t to) const {
  std::vector<std::int32_t> links;
  append_route(from, to, links);
  return links;
}

std::vector<std::int32_t> Topology::links_of_group(const std::vector<std::int64_t>& ranks) const {
  std::vector<bool> used(impl_->parts.links.size(), false);
  std::vector<std::int32_t> route;
  for (const std::int64_t a : ranks) {
    for (const std::int64_t b : ranks) {
      route.clear();
      append_route(a, b, route);
      for (const std::int32_t l : route) used[static_cast<std::size_t>(l)] = true;
    }
  }
  std::vector<std::int32_t> links;
  for (std::size_t l = 0; l < used.size(); ++l) {
    if (used[l]) links.push_back(static_cast<std::int32_t>(l));
  }
  return links;
}

}  // namespace shardplan
