#include "hardware/collectives.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.hpp"
#include "hardware/collective_datasheet.hpp"
#include "hardware/collective_nccl.hpp"
#include "hardware/collective_tables.hpp"

namespace shardplan {

namespace {

constexpr double kZ80 = 1.2816;  // half of the 80 % interval, in standard deviations

DomainConstants scaled(DomainConstants c, double rate) {
  for (auto& p : c.ring) p.bus_bytes_per_second *= rate;
  for (auto& p : c.pairwise) p.bus_bytes_per_second *= rate;
  if (c.nvls) c.nvls->bytes_per_second *= rate;
  return c;
}

}  // namespace

struct NetworkModel::Impl {
  Impl(const Cluster& c, Rates r, Fidelity f) : cluster(c), rates(r), fidelity(f), table(table_for(c)) {
    domain = scaled(table.table->domain, table.scale);
    if (cluster.node.fabric != IntraFabric::nvswitch) domain.nvls.reset();
    if (cluster.network.hop_seconds.value > 0) fabric.hop_seconds = cluster.network.hop_seconds.value;
  }

  double nic_rate(const GroupShape& shape) const {
    return shape.nics_per_domain * cluster.node.nic_bytes_per_second.value /
           std::max(1.0, cluster.network.oversubscription.value);
  }
  /// On a mesh of links a group of n reaches only its own links.
  DomainConstants domain_for(int ranks) const {
    if (cluster.node.fabric != IntraFabric::nvlink_mesh) return domain;
    return scaled(domain, std::min(1.0, (ranks - 1.0) / std::max(1, cluster.node.nvlink_domain - 1)));
  }
  CollectivePrice priced(const NcclAnswer& a, Collective op, double bytes, int ranks, Basis basis,
                         double log_sd) const {
    CollectivePrice out;
    const double spread = std::exp(kZ80 * log_sd);
    out.price = {a.seconds, a.seconds / spread, a.seconds * spread, basis};
    out.algorithm = a.algorithm;
    out.protocol = a.protocol;
    out.bus_bytes_per_second = a.seconds > 0 ? bus_factor(op, ranks) * bytes / a.seconds : 0;
    return out;
  }
  CollectivePrice table_price(Collective op, double bytes, const GroupShape& shape, DataType type) const {
    if (!shape.crosses()) {
      const Basis basis = !table.own         ? Basis::transferred
                          : shape.ranks <= 8 ? Basis::interpolated
                                             : Basis::extrapolated;
      const double sd = !table.own ? 0.2 : shape.ranks <= 8 ? 0.07 : 0.15;
      return priced(nccl_in_domain(domain_for(shape.ranks), op, bytes, shape.ranks, type), op, bytes, shape.ranks,
                    basis, sd);
    }
    const NcclAnswer a =
        nccl_across(domain_for(shape.ranks_per_domain), fabric, op, bytes, shape, type, nic_rate(shape));
    return priced(a, op, bytes, shape.ranks, table.own ? Basis::extrapolated : Basis::transferred, 0.2);
  }
  CollectivePrice datasheet_price(Collective op, double bytes, const GroupShape& shape) const {
    const bool pairwise = op == Collective::all_to_all || op == Collective::send_recv;
    const NcclAnswer a{datasheet_seconds(cluster, op, bytes, shape), pairwise ? "pairwise" : "ring", "simple"};
    return priced(a, op, bytes, shape.ranks, Basis::datasheet, 0);
  }

  Cluster cluster;
  Rates rates;
  Fidelity fidelity;
  TableChoice table;
  DomainConstants domain;
  FabricConstants fabric;
};

NetworkModel::NetworkModel(const Cluster& cluster, Rates rates, Fidelity fidelity)
    : impl_(std::make_unique<Impl>(cluster, rates, fidelity)) {}
NetworkModel::~NetworkModel() = default;
NetworkModel::NetworkModel(NetworkModel&&) noexcept = default;
NetworkModel& NetworkModel::operator=(NetworkModel&&) noexcept = default;

const Cluster& NetworkModel::cluster() const { return impl_->cluster; }

CollectivePrice NetworkModel::collective(Collective op, double bytes, const GroupShape& shape, DataType type) const {
  if (!(bytes >= 0) || !std::isfinite(bytes)) throw InputError("--bytes", "must be a finite number >= 0");
  if (shape.ranks <= 1) return {};
  if (shape.crosses() && !(impl_->nic_rate(shape) > 0)) {
    throw InputError(impl_->cluster.name, "a group of " + std::to_string(shape.ranks) +
                                              " ranks crosses NVLink domains, but the cluster has no NICs");
  }
  if (impl_->rates == Rates::datasheet || impl_->fidelity == Fidelity::bound)
    return impl_->datasheet_price(op, bytes, shape);
  return impl_->table_price(op, bytes, shape, type);
}

double NetworkModel::sms_held(Collective op, const GroupShape& shape) const {
  if (shape.ranks <= 1 || impl_->rates == Rates::datasheet) return 0;
  // One thread block a channel. NCCL: NVLS 16 (Hopper) or 24 (Blackwell, one domain); rings 16-32 channels at large
  // messages; point-to-point 16 (facts: nccl 2.30.7 src/transport/nvls.cc, issues #1041, #1453, #1649).
  const bool blackwell = impl_->domain.nvls && impl_->table.table->link_bytes_per_second > 800e9;
  if (op == Collective::all_reduce && impl_->domain.nvls && shape.ranks_per_domain >= impl_->domain.nvls->least_ranks) {
    return blackwell ? 24 : 16;
  }
  return op == Collective::send_recv ? 4 : 16;
}

GroupShape group_shape(const Cluster& cluster, int ranks, int ranks_per_node) {
  const int domain = std::max(1, cluster.node.nvlink_domain);
  const int per_node = ranks_per_node > 0 ? ranks_per_node : std::max(1, cluster.node.gpus);
  // A domain of several boards (NVL72) holds as many members as its boards do.
  const int boards = std::max(1, domain / std::max(1, cluster.node.gpus));
  const int per_domain = std::min({ranks, per_node * boards, domain});
  const double nics_per_gpu = cluster.node.gpus > 0 ? cluster.node.nics.value / cluster.node.gpus : 0;
  return {ranks, per_domain, per_domain * nics_per_gpu};
}

}  // namespace shardplan
