#include "hardware/topology_build.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/errors.hpp"

namespace shardplan {
namespace {

constexpr std::int64_t kMostGpus = 1 << 20;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class Builder {
 public:
  Builder(const Cluster& cluster, std::int64_t gpus) : cluster_(cluster), s_(shape_of(cluster, gpus)) {
    parts_.shape = s_;
    parts_.fabric = cluster.node.fabric;
    parts_.wiring = cluster.network.wiring;
    parts_.torus = cluster.node.torus;
  }

  TopologyParts build() {
    for (std::int64_t r = 0; r < s_.gpus; ++r) vertex(Place::gpu, 0, r);
    add_scale_up();
    add_pcie();
    if (needs_network()) add_network();
    return std::move(parts_);
  }

 private:
  bool needs_network() const { return s_.gpus > std::max(s_.node_gpus, s_.domain_gpus); }

  std::int32_t vertex(Place place, std::int64_t owner, std::int64_t index, int count = 1) {
    parts_.vertices.push_back({place, static_cast<std::int32_t>(owner), static_cast<std::int32_t>(index), count});
    return static_cast<std::int32_t>(parts_.vertices.size() - 1);
  }

  /// Both directions of a wire; the first link is up (a to b), the next is back.
  std::int32_t wire(std::int64_t a, std::int64_t b, double rate, LinkKind kind) {
    const auto link = static_cast<std::int32_t>(parts_.links.size());
    parts_.links.push_back({static_cast<std::int32_t>(a), static_cast<std::int32_t>(b), rate, kind});
    parts_.links.push_back({static_cast<std::int32_t>(b), static_cast<std::int32_t>(a), rate, kind});
    return link;
  }

  void add_scale_up() {
    switch (cluster_.node.fabric) {
      case IntraFabric::nvswitch:
        return add_switches(Place::nvswitch, LinkKind::nvlink);
      case IntraFabric::shared_memory:
        return add_switches(Place::memory, LinkKind::nvlink);
      case IntraFabric::nvlink_mesh:
        return add_mesh();
      case IntraFabric::torus:
        return add_torus();
      case IntraFabric::pcie:
        return;
    }
  }

  void add_switches(Place place, LinkKind kind) {
    const int planes = std::max(1, static_cast<int>(cluster_.node.nvswitches.value));
    std::vector<std::int32_t> of_domain;
    for (std::int64_t d = 0; d < s_.domains; ++d) of_domain.push_back(vertex(place, d, 0, planes));
    for (std::int64_t r = 0; r < s_.gpus; ++r) {
      parts_.gpu_switch.push_back(
          wire(r, of_domain[s_.domain_of(r)], cluster_.gpu.nvlink_bytes_per_second.value, kind));
    }
  }

  void add_mesh() {
    constexpr int kLargestMesh = 256;
    if (s_.domain_gpus > kLargestMesh) throw InputError("cluster", "a mesh of more than 256 GPUs");
    parts_.mesh.assign(static_cast<std::size_t>(s_.gpus * s_.domain_gpus), -1);
    for (std::int64_t a = 0; a < s_.gpus; ++a) {
      for (std::int64_t b = a + 1; b < std::min(s_.gpus, (s_.domain_of(a) + 1) * s_.domain_gpus); ++b) {
        const std::int32_t link = wire(a, b, cluster_.pair_bytes_per_second(), LinkKind::nvlink);
        parts_.mesh[a * s_.domain_gpus + b % s_.domain_gpus] = link;
        parts_.mesh[b * s_.domain_gpus + a % s_.domain_gpus] = link + 1;
      }
    }
  }

  /// GPU x along a dimension of n is wired to x + 1 (mod n). Two GPUs along a dimension have one wire, one GPU none.
  void add_torus() {
    const auto dimensions = parts_.torus.size();
    if (s_.gpus % s_.domain_gpus != 0) {
      throw InputError("--gpus", "a torus is used whole: not a multiple of " + std::to_string(s_.domain_gpus));
    }
    parts_.torus_step.assign(static_cast<std::size_t>(s_.gpus) * dimensions * 2, -1);
    std::int64_t stride = 1;
    for (std::size_t d = 0; d < dimensions; ++d) {
      const int n = parts_.torus[d];
      for (std::int64_t r = 0; r < s_.gpus && n > 1; ++r) {
        const std::int64_t x = r / stride % n;
        if (n == 2 && x == 1) continue;
        const std::int64_t next = r + ((x + 1) % n - x) * stride;
        const std::int32_t link = wire(r, next, cluster_.pair_bytes_per_second(), LinkKind::nvlink);
        parts_.torus_step[(r * dimensions + d) * 2] = link;
        parts_.torus_step[(next * dimensions + d) * 2 + 1] = link + 1;
        if (n == 2) {
          parts_.torus_step[(r * dimensions + d) * 2 + 1] = link;
          parts_.torus_step[(next * dimensions + d) * 2] = link + 1;
        }
      }
      stride *= n;
    }
  }

  /// A NIC faster than the GPU's PCIe port has its own way to the GPU (ConnectX-8 carries the switch): the path is as
  /// fast as the faster of both.
  void add_pcie() {
    const bool only_way = cluster_.node.fabric == IntraFabric::pcie || s_.domain_gpus < s_.node_gpus;
    const bool to_nics = s_.rail_nics > 0 && needs_network();
    if (!only_way && !to_nics) return;
    const double nics = s_.rail_nics * cluster_.node.nic_bytes_per_second.value;
    const double port = std::max(cluster_.node.pcie_bytes_per_second.value, nics / s_.rail_gpus);
    std::vector<std::int32_t> switches;
    for (std::int64_t n = 0; n < s_.nodes; ++n) {
      for (int rail = 0; rail < s_.rails; ++rail) switches.push_back(vertex(Place::pcie_switch, n, rail));
    }
    for (std::int64_t r = 0; r < s_.gpus; ++r) {
      parts_.gpu_pcie.push_back(wire(r, switches[s_.switch_of(r)], port, LinkKind::pcie));
    }
    if (only_way && s_.rails > 1) {
      for (std::int64_t n = 0; n < s_.nodes; ++n) {
        const std::int32_t host = vertex(Place::host, n, 0);
        for (int rail = 0; rail < s_.rails; ++rail) {
          parts_.pcie_host.push_back(
              wire(switches[n * s_.rails + rail], host, cluster_.node.pcie_bytes_per_second.value, LinkKind::pcie));
        }
      }
    }
    if (!to_nics) return;
    for (std::int64_t n = 0; n < s_.nodes; ++n) {
      for (int rail = 0; rail < s_.rails; ++rail) {
        nics_.push_back(vertex(Place::nic, n, rail, s_.rail_nics));
        parts_.pcie_nic.push_back(wire(switches[n * s_.rails + rail], nics_.back(), nics, LinkKind::network));
      }
    }
  }

  void add_network() {
    const double rail_rate = s_.rail_nics * cluster_.node.nic_bytes_per_second.value;
    if (!(rail_rate > 0)) throw InputError("cluster", "--gpus needs more than one node, and the nodes have no NICs");
    if (parts_.wiring == Wiring::flat) {
      const std::int32_t core = vertex(Place::core, 0, 0);
      for (const std::int32_t nic : nics_) parts_.nic_leaf.push_back(wire(nic, core, rail_rate, LinkKind::network));
      parts_.leaf_of_nic.assign(nics_.size(), 0);
      return;
    }
    const int leaves_per_group = parts_.wiring == Wiring::rails ? s_.rails : 1;
    std::vector<std::int32_t> leaves;
    for (std::int64_t g = 0; g < s_.groups; ++g) {
      for (int rail = 0; rail < leaves_per_group; ++rail) leaves.push_back(vertex(Place::leaf, g, rail));
    }
    for (std::int64_t n = 0; n < s_.nodes; ++n) {
      for (int rail = 0; rail < s_.rails; ++rail) {
        const std::int64_t leaf = n / s_.group_nodes * leaves_per_group + rail % leaves_per_group;
        parts_.leaf_of_nic.push_back(static_cast<std::int32_t>(leaf));
        parts_.nic_leaf.push_back(wire(nics_[n * s_.rails + rail], leaves[leaf], rail_rate, LinkKind::network));
      }
    }
    if (leaves.size() == 1) return;
    // Capacity below a leaf: the NICs of all its nodes, whether this job has them or not.
    const double below_leaf = rail_rate * static_cast<double>(s_.group_nodes) * s_.rails / leaves_per_group;
    const double below_pod = rail_rate * s_.rails * static_cast<double>(s_.pod_nodes);
    std::vector<std::int32_t> spines;
    for (std::int64_t p = 0; p < s_.pods; ++p) spines.push_back(vertex(Place::spine, p, 0));
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      const std::int64_t pod = static_cast<std::int64_t>(leaf) / leaves_per_group * s_.group_nodes / s_.pod_nodes;
      const double up = below_leaf / cluster_.network.oversubscription.value;
      parts_.leaf_spine.push_back(wire(leaves[leaf], spines[pod], up, LinkKind::network));
    }
    if (s_.pods == 1) return;
    const std::int32_t core = vertex(Place::core, 0, 0);
    for (const std::int32_t spine : spines) {
      parts_.spine_core.push_back(
          wire(spine, core, below_pod / cluster_.network.pod_oversubscription.value, LinkKind::network));
    }
  }

  const Cluster& cluster_;
  const ClusterShape s_;
  TopologyParts parts_;
  std::vector<std::int32_t> nics_;
};

}  // namespace

ClusterShape shape_of(const Cluster& cluster, std::int64_t gpus) {
  if (gpus < 1 || gpus > kMostGpus)
    throw InputError("--gpus", "expected 1 to " + std::to_string(kMostGpus) + " GPUs, got " + std::to_string(gpus));
  ClusterShape s;
  s.gpus = gpus;
  s.node_gpus = cluster.node.gpus;
  s.domain_gpus = cluster.node.nvlink_domain;
  const int nics = static_cast<int>(cluster.node.nics.value);
  s.rails = std::gcd(s.node_gpus, std::max(1, nics));
  s.rail_gpus = s.node_gpus / s.rails;
  s.rail_nics = nics / s.rails;
  s.nodes = ceil_div(gpus, s.node_gpus);
  s.domains = ceil_div(gpus, s.domain_gpus);
  s.group_nodes = cluster.network.nodes_per_leaf_group > 0 ? cluster.network.nodes_per_leaf_group : s.nodes;
  s.pod_nodes = cluster.network.nodes_per_pod > 0 ? cluster.network.nodes_per_pod : std::max(s.nodes, s.group_nodes);
  s.groups = ceil_div(s.nodes, s.group_nodes);
  s.pods = ceil_div(s.nodes, s.pod_nodes);
  return s;
}

TopologyParts build_topology(const Cluster& cluster, std::int64_t gpus) { return Builder(cluster, gpus).build(); }

void TopologyParts::append_route(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const {
  if (shape.domain_of(from) == shape.domain_of(to)) return inside(from, to, out);
  if (shape.node_of(from) == shape.node_of(to)) return over_pcie(from, to, out);
  const bool relays = fabric == IntraFabric::nvswitch || fabric == IntraFabric::nvlink_mesh;
  if (wiring == Wiring::rails && relays && shape.rail_of(from) != shape.rail_of(to)) {
    // PXN: over NVLink to the GPU beside the NIC of the receiver's rail, neighbours spread over the GPUs of that rail.
    const std::int64_t relay = shape.node_of(from) * shape.node_gpus +
                               std::int64_t{shape.rail_of(to)} * shape.rail_gpus + from % shape.rail_gpus;
    if (relay < shape.gpus && shape.domain_of(relay) == shape.domain_of(from)) {
      inside(from, relay, out);
      from = relay;
    }
  }
  across(from, to, out);
}

void TopologyParts::inside(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const {
  switch (fabric) {
    case IntraFabric::nvswitch:
    case IntraFabric::shared_memory:
      out.push_back(gpu_switch[from]);
      out.push_back(gpu_switch[to] + 1);
      return;
    case IntraFabric::nvlink_mesh:
      out.push_back(mesh[from * shape.domain_gpus + to % shape.domain_gpus]);
      return;
    case IntraFabric::torus:
      along_torus(from, to, out);
      return;
    case IntraFabric::pcie:
      return over_pcie(from, to, out);
  }
}

void TopologyParts::over_pcie(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const {
  const auto a = shape.switch_of(from), b = shape.switch_of(to);
  out.push_back(gpu_pcie[from]);
  if (a != b) {
    out.push_back(pcie_host[a]);
    out.push_back(pcie_host[b] + 1);
  }
  out.push_back(gpu_pcie[to] + 1);
}

void TopologyParts::along_torus(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const {
  const auto dimensions = torus.size();
  std::int64_t stride = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const int n = torus[d];
    const std::int64_t x = from / stride % n, y = to / stride % n;
    const std::int64_t up = (y - x + n) % n;
    // Half way round both ways are as short: even places go up, odd ones down.
    const bool go_up = 2 * up < n || (2 * up == n && x % 2 == 0);
    for (std::int64_t step = go_up ? up : (n - up) % n; step > 0; --step) {
      out.push_back(torus_step[(from * dimensions + d) * 2 + (go_up ? 0 : 1)]);
      const std::int64_t here = from / stride % n;
      from += ((here + (go_up ? 1 : n - 1)) % n - here) * stride;
    }
    stride *= n;
  }
}

void TopologyParts::across(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const {
  const auto a = shape.switch_of(from), b = shape.switch_of(to);
  out.push_back(gpu_pcie[from]);
  out.push_back(pcie_nic[a]);
  out.push_back(nic_leaf[a]);
  if (const std::int32_t up = leaf_of_nic[a], down = leaf_of_nic[b]; up != down) {
    const auto pod_a = shape.node_of(from) / shape.pod_nodes, pod_b = shape.node_of(to) / shape.pod_nodes;
    out.push_back(leaf_spine[up]);
    if (pod_a != pod_b) {
      out.push_back(spine_core[pod_a]);
      out.push_back(spine_core[pod_b] + 1);
    }
    out.push_back(leaf_spine[down] + 1);
  }
  out.push_back(nic_leaf[b] + 1);
  out.push_back(pcie_nic[b] + 1);
  out.push_back(gpu_pcie[to] + 1);
}

}  // namespace shardplan
