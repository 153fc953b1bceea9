#pragma once
// The wires of a cluster as a graph: GPUs, NVSwitches, PCIe switches, NICs, leaf, spine and core switches. Links are
// directed; every wire is two of them. Capacities are line rates, bytes/s per direction.
//
// What is drawn together, because traffic is spread over it evenly: the NVSwitch planes of a domain are one vertex
// (`count` planes), the NICs behind one PCIe switch are one NIC (`count` NICs), the spines of a pod one spine. A lost
// plane or NIC is a smaller capacity.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hardware/cluster.hpp"

namespace shardplan {

enum class Place : std::uint8_t { gpu, nvswitch, memory, pcie_switch, host, nic, leaf, spine, core };
enum class LinkKind : std::uint8_t { nvlink, pcie, network };

struct TopologyVertex {
  Place place = Place::gpu;
  std::int32_t owner =
      0;  // gpu: 0; nvswitch, memory: domain; pcie_switch, host, nic: node; leaf: leaf group; spine: pod
  std::int32_t index = 0;  // gpu: its rank; pcie_switch, nic, leaf: its rail
  std::int32_t count = 1;  // planes, NICs
};

struct TopologyLink {
  std::int32_t from = 0, to = 0;  // vertices
  double bytes_per_second = 0;
  LinkKind kind = LinkKind::nvlink;
};

class Topology {
 public:
  /// The first `gpus` ranks of a cluster, packed node by node. InputError where they cannot reach one another.
  static Topology of(const Cluster&, std::int64_t gpus);
  /// Any graph; routes are shortest paths (see shortest_route). Vertices with Place::gpu are ranks in their order.
  static Topology of_graph(std::vector<TopologyVertex>, std::vector<TopologyLink>);

  Topology(Topology&&) noexcept;
  Topology& operator=(Topology&&) noexcept;
  ~Topology();

  std::int64_t gpus() const;
  std::span<const TopologyVertex> vertices() const;
  std::span<const TopologyLink> links() const;
  std::int32_t vertex_of(std::int64_t rank) const;
  std::string name_of(std::int32_t vertex) const;  // "gpu 3", "node 0 nic 2", "leaf 0.5"
  std::string link_name(std::int32_t link) const;  // "gpu 3 -> nvswitch 0"

  /// Links from one rank to another, in order; none for a rank to itself. NVLink inside a domain (mesh: the pair's own
  /// link; torus: along the dimensions in order, the short way round). Across: the NIC beside the sender, or, on rails
  /// behind NVLink, the NIC of the receiver's rail reached through the GPU beside it (NCCL's PXN), then up only as far
  /// as needed.
  std::vector<std::int32_t> route(std::int64_t from, std::int64_t to) const;
  void append_route(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& links) const;

  /// The link that stands for `link` among links in series (a vertex with two neighbours passes on all it gets): the
  /// one with the least capacity. Flows need name only that one.
  std::int32_t series(std::int32_t link) const;

  /// Whether the link can never be the bottleneck: it leaves a switch whose other neighbours together send no more than
  /// its capacity, or enters one whose other neighbours together take no more (a leaf's way up in a network that never
  /// blocks).
  bool implied(std::int32_t link) const;

  /// Links that any two of these ranks use towards one another, ascending.
  std::vector<std::int32_t> links_of_group(const std::vector<std::int64_t>& ranks) const;

 private:
  struct Impl;
  explicit Topology(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

/// Fewest wires from rank to rank; a wire counts 1 (NVLink), 2 (PCIe) or 4 (network). GPUs are passed through only
/// where relay_gpus. Ties go to the lower vertex. Empty where there is no way.
std::vector<std::int32_t> shortest_route(const Topology&, std::int64_t from, std::int64_t to, bool relay_gpus);

/// Most bytes/s that `from` ranks can send to `to` ranks at once over any routes (maximum flow).
double most_bytes_per_second(const Topology&, const std::vector<std::int64_t>& from,
                             const std::vector<std::int64_t>& to);

/// Parts of the graph that are not connected with one another, by lowest vertex; one part is what is wanted.
std::vector<std::vector<std::int32_t>> parts(const Topology&);

/// The graph as a drawing for people: one node in full, and the switches above it.
std::string topology_text(const Cluster&, std::int64_t gpus);

}  // namespace shardplan
