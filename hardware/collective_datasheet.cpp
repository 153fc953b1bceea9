#include "hardware/collective_datasheet.hpp"

#include <algorithm>
#include <limits>

#include "hardware/collective_nccl.hpp"

namespace shardplan {

double domain_bytes_per_second(const Cluster& c, int ranks) {
  const double pcie = c.node.pcie_bytes_per_second.value, nvlink = c.gpu.nvlink_bytes_per_second.value;
  if (c.node.fabric == IntraFabric::pcie || nvlink <= 0) return pcie;
  if (c.node.fabric == IntraFabric::nvlink_mesh && c.node.nvlink_domain > 1) {
    return nvlink * std::min(1.0, (ranks - 1.0) / (c.node.nvlink_domain - 1.0));
  }
  return nvlink;
}

double datasheet_seconds(const Cluster& c, Collective op, double bytes, const GroupShape& shape) {
  if (shape.ranks <= 1) return 0;
  const int k = std::max(1, std::min(shape.ranks_per_domain, shape.ranks));
  const double inside = k > 1 ? domain_bytes_per_second(c, k) : std::numeric_limits<double>::infinity();
  if (!shape.crosses()) return bus_factor(op, shape.ranks) * bytes / inside;
  const double nics =
      shape.nics_per_domain * c.node.nic_bytes_per_second.value / std::max(1.0, c.network.oversubscription.value);
  if (op == Collective::all_to_all) {
    const double share = bytes / shape.ranks;
    return std::max(share * (shape.ranks - k) * k / nics, share * (k - 1) / inside);
  }
  return bus_factor(op, shape.ranks) * bytes / std::min(inside, nics);
}

}  // namespace shardplan
