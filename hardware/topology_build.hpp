#pragma once
// Builds the graph of a cluster and routes on it by its structure, without a search. Private to hardware/topology*.cpp.
#include <cstdint>
#include <vector>

#include "hardware/topology.hpp"

namespace shardplan {

/// Where the ranks of a cluster sit. Rails: PCIe switches of a node; GPUs and NICs are dealt evenly over them.
struct ClusterShape {
  std::int64_t gpus = 0, nodes = 0, domains = 0, groups = 0, pods = 0;
  int node_gpus = 1, domain_gpus = 1, rails = 1, rail_gpus = 1, rail_nics = 0;
  std::int64_t group_nodes = 1, pod_nodes = 1;
  std::int64_t node_of(std::int64_t rank) const { return rank / node_gpus; }
  std::int64_t domain_of(std::int64_t rank) const { return rank / domain_gpus; }
  std::int64_t switch_of(std::int64_t rank) const { return node_of(rank) * rails + rail_of(rank); }
  int rail_of(std::int64_t rank) const { return static_cast<int>(rank % node_gpus) / rail_gpus; }
};
ClusterShape shape_of(const Cluster&, std::int64_t gpus);

struct TopologyParts {
  std::vector<TopologyVertex> vertices;
  std::vector<TopologyLink> links;

  /// Links of built clusters by place; -1 = there is none. Up = away from the GPU; the way back is the next link.
  ClusterShape shape;
  IntraFabric fabric = IntraFabric::nvswitch;
  Wiring wiring = Wiring::flat;
  std::vector<int> torus;
  std::vector<std::int32_t> gpu_switch;   // by rank: to the NVSwitch or memory
  std::vector<std::int32_t> mesh;         // by rank * domain_gpus + peer in the domain
  std::vector<std::int32_t> torus_step;   // by (rank * dimensions + d) * 2 + direction (0 = up)
  std::vector<std::int32_t> gpu_pcie;     // by rank
  std::vector<std::int32_t> pcie_host;    // by node * rails + rail
  std::vector<std::int32_t> pcie_nic;     // by node * rails + rail
  std::vector<std::int32_t> nic_leaf;     // by node * rails + rail; flat: to the core
  std::vector<std::int32_t> leaf_of_nic;  // by node * rails + rail: number of the leaf
  std::vector<std::int32_t> leaf_spine;   // by leaf
  std::vector<std::int32_t> spine_core;   // by pod

  void append_route(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const;

 private:
  void inside(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const;
  void over_pcie(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const;
  void across(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const;
  void along_torus(std::int64_t from, std::int64_t to, std::vector<std::int32_t>& out) const;
};

TopologyParts build_topology(const Cluster&, std::int64_t gpus);

}  // namespace shardplan
