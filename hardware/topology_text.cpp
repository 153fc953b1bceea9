// The graph as a drawing: what lies in a domain, in a node, above the nodes, and the bytes/s of every kind of wire.
#include <algorithm>
#include <string>

#include "base/number_text.hpp"
#include "hardware/topology.hpp"
#include "hardware/topology_build.hpp"

namespace shardplan {
namespace {

std::string rate(double bytes_per_second) { return text_of_bytes_per_second(bytes_per_second); }

std::string range(std::int64_t first, std::int64_t count) {
  return count == 1 ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(first + count - 1);
}

std::string plural(std::int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

std::string scale_up_text(const Cluster& c, const ClusterShape& s) {
  const std::int64_t domain = std::min<std::int64_t>(s.gpus, s.domain_gpus);
  std::string out = "domain 0: gpu " + range(0, domain) + ", one of " + std::to_string(s.domains) + "\n";
  const std::string each = rate(c.gpu.nvlink_bytes_per_second.value) + " a GPU and direction";
  const int planes = std::max(1, static_cast<int>(c.node.nvswitches.value));
  switch (c.node.fabric) {
    case IntraFabric::nvswitch:
      return out + "  [" + plural(planes, "NVSwitch plane") + "] === every GPU, " + each + "\n";
    case IntraFabric::shared_memory:
      return out + "  [shared memory] === every rank, " + each + "\n";
    case IntraFabric::nvlink_mesh:
      return out + "  mesh: one link of " + rate(c.pair_bytes_per_second()) + " a direction between every pair, " +
             each + " together\n";
    case IntraFabric::torus: {
      std::string dimensions;
      for (const int n : c.node.torus) dimensions += (dimensions.empty() ? "" : " x ") + std::to_string(n);
      return out + "  torus " + dimensions + ": " + rate(c.pair_bytes_per_second()) +
             " a direction to each neighbour\n";
    }
    case IntraFabric::pcie:
      return out + "  no NVLink: GPUs reach one another over PCIe\n";
  }
  return out;
}

std::string node_text(const Cluster& c, const ClusterShape& s) {
  std::string out = "node 0: gpu " + range(0, std::min<std::int64_t>(s.gpus, s.node_gpus)) + ", one of " +
                    std::to_string(s.nodes) + "\n";
  const bool rails = c.network.wiring == Wiring::rails;
  for (int rail = 0; rail < s.rails; ++rail) {
    const std::int64_t first = static_cast<std::int64_t>(rail) * s.rail_gpus;
    if (first >= s.gpus) break;
    out += "  gpu " + range(first, s.rail_gpus) + " --- pcie " + std::to_string(rail);
    if (c.node.pcie_bytes_per_second.value > 0) out += " (" + rate(c.node.pcie_bytes_per_second.value) + ")";
    if (s.rail_nics > 0) {
      out += " --- nic " + range(static_cast<std::int64_t>(rail) * s.rail_nics, s.rail_nics) + " (" +
             rate(c.node.nic_bytes_per_second.value) + (s.rail_nics > 1 ? " each)" : ")");
      out += rails ? " === rail " + std::to_string(rail) : c.network.wiring == Wiring::leaf ? " === leaf" : " === core";
    }
    out += "\n";
  }
  return out;
}

std::string switches_text(const Cluster& c, const ClusterShape& s) {
  const double rail_rate = s.rail_nics * c.node.nic_bytes_per_second.value;
  const std::string hop = text_of_seconds(c.network.hop_seconds.value) + " a hop";
  if (c.network.wiring == Wiring::flat) {
    return "core: one fabric without inner limits (" + c.network.kind + ", " + hop + "); its inside is not published\n";
  }
  const int leaves = c.network.wiring == Wiring::rails ? s.rails : 1;
  const double below = rail_rate * static_cast<double>(s.group_nodes) * s.rails / leaves;
  std::string out = "leaf 0." + range(0, leaves) + ": nodes " + range(0, s.group_nodes) + ", ";
  out += c.network.wiring == Wiring::rails ? "one leaf a rail" : "all NICs on one leaf";
  out += ", " + rate(below) + " below each (" + c.network.kind + ", " + hop + "), " + plural(s.groups, "group") + "\n";
  if (s.groups * leaves == 1) return out;
  const double over = c.network.oversubscription.value;
  out += "  | " + rate(below / over) + " up from each leaf (" + text_of_number(over, 3) + ":1)\n";
  out += "spine 0: nodes " + range(0, s.pod_nodes) + ", " + plural(s.pods, "pod") + "\n";
  if (s.pods == 1) return out;
  const double pod_over = c.network.pod_oversubscription.value;
  out += "  | " + rate(rail_rate * s.rails * static_cast<double>(s.pod_nodes) / pod_over) + " up from each pod (" +
         text_of_number(pod_over, 3) + ":1)\n";
  return out + "core\n";
}

}  // namespace

std::string topology_text(const Cluster& cluster, std::int64_t gpus) {
  const ClusterShape s = shape_of(cluster, gpus);
  const Topology topology = Topology::of(cluster, gpus);
  std::string out = "Topology of " + std::to_string(gpus) + " GPUs (rates are line rates per direction)\n";
  out += scale_up_text(cluster, s) + node_text(cluster, s);
  if (gpus > std::max(s.node_gpus, s.domain_gpus)) out += switches_text(cluster, s);
  if (gpus >= 2) {
    std::vector<std::int64_t> low, high;
    // Cut between whole domains where there are several.
    const std::int64_t cut = s.domains > 1 ? s.domains / 2 * s.domain_gpus : gpus / 2;
    for (std::int64_t r = 0; r < gpus; ++r) (r < cut ? low : high).push_back(r);
    const double most = most_bytes_per_second(topology, low, high);
    out += "gpu " + range(0, cut) + " can send at most " + rate(most) + " to gpu " + range(cut, gpus - cut) +
           " (maximum flow): " + rate(most / static_cast<double>(cut)) + " a GPU\n";
  }
  return out;
}

}  // namespace shardplan
