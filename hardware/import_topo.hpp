#pragma once
// Reads what `nvidia-smi topo -m` prints: which GPU reaches which GPU and NIC by what kind of way.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/topology.hpp"

namespace shardplan {

/// From the nearest to the farthest. nvlink: `links` bonded NVLinks; pix: at most one PCIe bridge; pxb: several; phb:
/// over the host bridge; node: between host bridges of one NUMA node; sys: between NUMA nodes.
enum class PathKind : std::uint8_t { self, nvlink, pix, pxb, phb, node, sys };
inline constexpr std::array<std::string_view, 7> kPathKindNames = {"self", "nvlink", "pix", "pxb",
                                                                   "phb",  "node",   "sys"};

struct PathCell {
  PathKind kind = PathKind::self;
  int links = 0;
  bool operator==(const PathCell&) const = default;
};

struct TopoMatrix {
  std::vector<std::string> devices;  // GPUs first, in their order, then NICs as the matrix names them
  int gpus = 0;
  std::vector<PathCell> cells;                           // devices x devices
  std::vector<std::string> cpu_affinity, numa_affinity;  // by GPU; "" where the matrix has none
  std::vector<std::string> notes;                        // what was unusual, and how it was read

  int size() const { return static_cast<int>(devices.size()); }
  int nics() const { return size() - gpus; }
  const PathCell& at(int row, int column) const {
    return cells[static_cast<std::size_t>(row) * devices.size() + static_cast<std::size_t>(column)];
  }
};

/// Takes a matrix out of a text that may hold a prompt, escape codes, a legend and other lines. Without a header row
/// the columns are named by their number; NIC rows that are not there are filled by symmetry. InputError where the text
/// holds no matrix, a row has too few or too many cells, or two cells contradict each other.
TopoMatrix parse_topo(std::string_view text, const std::string& file);
TopoMatrix read_topo(const std::string& path);

/// What the matrix says about a node.
struct TopoSummary {
  IntraFabric fabric = IntraFabric::pcie;
  int nvlinks_per_gpu = 0;   // NVLinks of one GPU, 0 = none
  int nvlinks_per_pair = 0;  // of a pair that has any
  int nvlink_domain = 1;     // GPUs that reach one another over NVLink
  std::vector<std::vector<int>>
      nearest_nics;             // by GPU: device numbers of its nearest NICs (none where all are SYS away)
  int rails = 0;                // NICs that are nearest to some GPU
  std::vector<int> other_nics;  // nearest to no GPU: storage or management
  std::vector<int> far_gpus;    // GPUs without a NIC nearer than SYS
};
TopoSummary summary_of(const TopoMatrix&);

/// The matrix as a node of a cluster: its fabric, domain and compute NICs, with NVLinks of the generation of `gpu`
/// and the NIC rate given. InputError where the NVLinks do not fit the GPU.
Node node_of(const TopoMatrix&, const Gpu& gpu, double nic_bytes_per_second);

/// The matrix as a graph: GPUs, NVSwitch or NVLink pairs, a PCIe switch for each set of devices that are PIX or PXB
/// near, a host bridge for each NUMA node, a way between the hosts. Rates: one NVLink, one PCIe port, one NIC.
struct TopoRates {
  double nvlink = 25e9, pcie = 31e9, nic = 25e9;
};
Topology topology_of(const TopoMatrix&, const TopoRates& = {});

/// For people.
std::string topo_text(const TopoMatrix&);

}  // namespace shardplan
