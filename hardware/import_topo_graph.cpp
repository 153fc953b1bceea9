// An imported matrix as a graph and as text.
#include <algorithm>
#include <map>
#include <numeric>

#include "hardware/import_topo.hpp"

namespace shardplan {
namespace {

/// Number of the part that holds each device, where devices at most `farthest` apart are together.
std::vector<int> together(const TopoMatrix& m, PathKind farthest) {
  std::vector<int> part(static_cast<std::size_t>(m.size()));
  std::iota(part.begin(), part.end(), 0);
  // NVLink hides how far two GPUs are over PCIe: a GPU joins a switch through NICs and GPUs that show it.
  for (int a = 0; a < m.size(); ++a) {
    for (int b = 0; b < a; ++b) {
      const PathKind kind = m.at(a, b).kind;
      if (kind == PathKind::nvlink || kind > farthest) continue;
      const int from = part[a], to = part[b];
      for (int& p : part) p = p == from ? to : p;
    }
  }
  return part;
}

/// Sockets: by NUMA affinity, else CPU affinity; a NIC is where its nearest GPU is.
std::vector<int> sockets(const TopoMatrix& m) {
  std::vector<int> part = together(m, PathKind::node);
  std::map<std::string, int> seen;
  for (int g = 0; g < m.gpus; ++g) {
    const std::string& numa = m.numa_affinity[g];
    const std::string key = !numa.empty() && numa != "N/A" ? "n" + numa : "c" + m.cpu_affinity[g];
    const auto [at, fresh] = seen.emplace(key, part[g]);
    if (fresh) continue;
    const int from = part[g], to = at->second;
    for (int& p : part) p = p == from ? to : p;
  }
  return part;
}

class Graph {
 public:
  Graph(const TopoMatrix& m, const TopoRates& rates) : m_(m), rates_(rates), summary_(summary_of(m)) {}

  Topology build() {
    for (int g = 0; g < m_.gpus; ++g) vertices_.push_back({Place::gpu, 0, g, 1});
    for (int n = m_.gpus; n < m_.size(); ++n) vertices_.push_back({Place::nic, 0, n - m_.gpus, 1});
    add_nvlinks();
    add_pcie();
    return Topology::of_graph(std::move(vertices_), std::move(links_));
  }

 private:
  int vertex(Place place, int index) {
    vertices_.push_back({place, 0, index, 1});
    return static_cast<int>(vertices_.size()) - 1;
  }
  void wire(int a, int b, double rate, LinkKind kind) {
    links_.push_back({a, b, rate, kind});
    links_.push_back({b, a, rate, kind});
  }

  void add_nvlinks() {
    if (summary_.fabric == IntraFabric::nvswitch) {
      const int plane = vertex(Place::nvswitch, 0);
      for (int g = 0; g < m_.gpus; ++g) {
        int links = 0;
        for (int b = 0; b < m_.gpus; ++b) links = std::max(links, m_.at(g, b).links);
        if (links > 0) wire(g, plane, links * rates_.nvlink, LinkKind::nvlink);
      }
      return;
    }
    for (int a = 0; a < m_.gpus; ++a) {
      for (int b = a + 1; b < m_.gpus; ++b) {
        if (m_.at(a, b).kind == PathKind::nvlink) wire(a, b, m_.at(a, b).links * rates_.nvlink, LinkKind::nvlink);
      }
    }
  }

  void add_pcie() {
    const std::vector<int> near = together(m_, PathKind::pxb), socket = sockets(m_);
    std::map<int, int> switches, hosts;
    for (int d = 0; d < m_.size(); ++d) {
      const double rate = d < m_.gpus ? rates_.pcie : std::min(rates_.pcie, rates_.nic);
      if (switches.count(near[d]) == 0) {
        const int number = static_cast<int>(switches.size());
        switches[near[d]] = vertex(Place::pcie_switch, number);
        if (hosts.count(socket[d]) == 0) {
          const int host = static_cast<int>(hosts.size());
          hosts[socket[d]] = vertex(Place::host, host);
        }
        wire(switches[near[d]], hosts[socket[d]], rates_.pcie, LinkKind::pcie);
      }
      wire(d, switches[near[d]], rate, LinkKind::pcie);
    }
    for (auto a = hosts.begin(); a != hosts.end(); ++a) {
      for (auto b = std::next(a); b != hosts.end(); ++b) wire(a->second, b->second, rates_.pcie, LinkKind::pcie);
    }
  }

  const TopoMatrix& m_;
  const TopoRates rates_;
  const TopoSummary summary_;
  std::vector<TopologyVertex> vertices_;
  std::vector<TopologyLink> links_;
};

std::string names(const TopoMatrix& m, const std::vector<int>& devices) {
  std::string out;
  for (const int d : devices) out += (out.empty() ? "" : ", ") + m.devices[d];
  return out;
}

}  // namespace

Topology topology_of(const TopoMatrix& m, const TopoRates& rates) { return Graph(m, rates).build(); }

std::string topo_text(const TopoMatrix& m) {
  const TopoSummary s = summary_of(m);
  std::string out = std::to_string(m.gpus) + " GPUs, " + std::to_string(m.nics()) + " NICs\n";
  if (s.fabric == IntraFabric::nvswitch) {
    out += "NVSwitch: " + std::to_string(s.nvlinks_per_gpu) + " NVLinks a GPU, " + std::to_string(s.nvlink_domain) +
           " GPUs in a domain\n";
  } else if (s.fabric == IntraFabric::nvlink_mesh) {
    out += "NVLink between pairs: up to " + std::to_string(s.nvlinks_per_pair) + " a pair, " +
           std::to_string(s.nvlinks_per_gpu) + " a GPU, " + std::to_string(s.nvlink_domain) + " GPUs in a domain\n";
  } else {
    out += "no NVLink: GPUs reach one another over PCIe\n";
  }
  for (int g = 0; g < m.gpus; ++g) {
    out += m.devices[g] + ":";
    if (s.nearest_nics[g].empty()) {
      out += m.nics() > 0 ? " no NIC nearer than SYS: it shares another GPU's" : " no NIC known";
    } else {
      std::string how(kPathKindNames[static_cast<std::size_t>(m.at(g, s.nearest_nics[g][0]).kind)]);
      std::transform(how.begin(), how.end(), how.begin(), [](char c) { return static_cast<char>(c - 'a' + 'A'); });
      out += " " + names(m, s.nearest_nics[g]) + " (" + how + ")";
    }
    if (!m.numa_affinity[g].empty() && m.numa_affinity[g] != "N/A") out += ", NUMA " + m.numa_affinity[g];
    if (!m.cpu_affinity[g].empty()) out += ", CPUs " + m.cpu_affinity[g];
    out += "\n";
  }
  if (m.nics() > 0) out += std::to_string(s.rails) + " NICs for compute";
  if (!s.other_nics.empty()) out += "; near no GPU, taken for storage or management: " + names(m, s.other_nics);
  if (m.nics() > 0) out += "\n";
  for (const std::string& note : m.notes) out += "note: " + note + "\n";
  return out;
}

}  // namespace shardplan
