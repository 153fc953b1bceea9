#include "hardware/collectives.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "hardware/collective_datasheet.hpp"
#include "hardware/collective_tables.hpp"
#include "hardware/flows.hpp"

namespace shardplan {

namespace {

constexpr double kZ80 = 1.2816;          // half of the 80 % interval, in standard deviations
constexpr double kLargeBytes = 1 << 20;  // from here on an interval counts as one of large messages
constexpr double kOtherGpuDeviation =
    0.15;  // of log time, of constants borrowed from another GPU: siblings differ by so much

DomainConstants scaled(DomainConstants c, double rate) {
  for (auto& p : c.ring) p.bus_bytes_per_second *= rate;
  for (auto& p : c.pairwise) p.bus_bytes_per_second *= rate;
  if (c.nvls) c.nvls->bytes_per_second *= rate;
  return c;
}

std::shared_ptr<const CorrectionField> field_of(const std::shared_ptr<const CollectiveCalibration>& calibration) {
  if (calibration != collective_calibration())
    return std::make_shared<CorrectionField>(calibration->correction_field());
  static const auto built_in = std::make_shared<const CorrectionField>(collective_calibration()->correction_field());
  return built_in;
}

struct Spread {
  double half_width = 0;  // of log time
  Basis basis = Basis::extrapolated;
};

}  // namespace

struct NetworkModel::Impl {
  Impl(const Cluster& c, Rates r, Fidelity f, std::shared_ptr<const CollectiveCalibration> known)
      : cluster(c),
        rates(r),
        fidelity(f),
        calibration(std::move(known)),
        table(table_for(*calibration, c)),
        field(field_of(calibration)) {
    domain = scaled(table.table->domain, table.scale);
    if (cluster.node.fabric != IntraFabric::nvswitch) domain.nvls.reset();
    fabric = calibration->fabric;
    if (cluster.network.hop_seconds.value > 0) fabric.hop_seconds = cluster.network.hop_seconds.value;
    fabric.ll128 = keeps_write_order(cluster.network);
    for (const MeasuredCurve& m : table.table->curves) most_ranks = std::max(most_ranks, m.ranks);
  }

  double nic_rate(const GroupShape& shape) const {
    return shape.nics_per_domain * cluster.node.nic_bytes_per_second.value /
           std::max(1.0, cluster.network.oversubscription.value);
  }
  /// On a mesh of links a group of n reaches only its own links.
  DomainConstants domain_for(int ranks) const {
    if (cluster.node.fabric != IntraFabric::nvlink_mesh) return domain;
    DomainConstants direct = domain;  // no pair of GPUs shares buffers with another: the loss of two is the mesh's
    for (auto& p : direct.ring) p.pair_loss = 0;
    for (auto& p : direct.pairwise) p.pair_loss = 0;
    return scaled(direct, std::min(1.0, (ranks - 1.0) / std::max(1, cluster.node.nvlink_domain - 1)));
  }
  /// Curves belong to the fabric that they were measured on; another has only the constants.
  bool corrected() const { return table.known && fabric_name(cluster.node.fabric) == table.table->fabric; }

  const CurveCorrection& correction(Collective op, int ranks, TypeClass type) const {
    const std::lock_guard lock(mutex);
    const auto [at, fresh] = corrections.try_emplace({op, ranks, type});
    if (fresh)
      at->second = field->correction({table.table->gpu, table.table->family, table.table->generation, op, ranks, type});
    return at->second;
  }

  CollectivePrice priced(const NcclAnswer& a, Collective op, double bytes, int ranks, const Spread& spread) const {
    CollectivePrice out;
    const double factor = std::exp(spread.half_width);
    out.price = {a.seconds, a.seconds / factor, a.seconds * factor, spread.basis};
    out.algorithm = a.algorithm;
    out.protocol = a.protocol;
    out.bus_bytes_per_second = a.seconds > 0 ? bus_factor(op, ranks) * bytes / a.seconds : 0;
    return out;
  }

  Spread spread_in_domain(Collective op, const CurveCorrection& c, double bytes, int ranks) const {
    const IntervalConstants& k = calibration->interval;
    const bool large = bytes >= kLargeBytes, pairwise = op == Collective::all_to_all || op == Collective::send_recv;
    const double factor = pairwise ? (large ? k.pairwise_large : k.pairwise_small) : large ? k.large : k.small;
    const double repeats = large ? table.table->spread_large : table.table->spread_small;
    const double last = kFirstCurveBytes * std::exp2(static_cast<double>(c.log_ratio.size()) - 1);
    Spread s;
    s.half_width = c.measured ? repeats : std::hypot(factor * c.standard_deviation, repeats);
    if (bytes > last) s.half_width = std::max(s.half_width, factor * std::sqrt(calibration->correlation.variance));
    const bool on_grid = std::exp2(std::round(std::log2(bytes))) == bytes;
    s.basis = bytes > last || ranks > most_ranks ? Basis::extrapolated
              : c.measured && on_grid            ? Basis::measured
                                                 : Basis::interpolated;
    if (!table.own) {
      s.half_width = std::hypot(s.half_width, kZ80 * kOtherGpuDeviation);
      s.basis = Basis::transferred;
    }
    return s;
  }

  /// The curve of messages between neighbours, where the table has one.
  const MeasuredCurve* message_curve() const {
    for (const MeasuredCurve& m : table.table->curves) {
      if (m.op == Collective::send_recv) return &m;
    }
    return nullptr;
  }

  CollectivePrice in_domain(Collective op, double bytes, const GroupShape& shape, DataType type,
                            const NcclSettings& settings) const {
    NcclAnswer a = nccl_in_domain(domain_for(shape.ranks), op, bytes, shape.ranks, type, settings);
    if (!corrected() || bytes == 0)
      return priced(a, op, bytes, shape.ranks, {kZ80 * 2 * kOtherGpuDeviation, Basis::transferred});
    // A message between two GPUs is half of their all-to-all of twice its size, where messages were not measured.
    const MeasuredCurve* own = op == Collective::send_recv ? message_curve() : nullptr;
    const bool message = op == Collective::send_recv && own == nullptr;
    const int ranks = own != nullptr ? own->ranks : message ? 2 : shape.ranks;
    const CurveCorrection& c = correction(message ? Collective::all_to_all : op, ranks, type_class(op, type));
    const double curve_bytes = message ? 2 * bytes : bytes;
    const bool as_measured = settings.nvls && settings.algorithm.empty();
    if (as_measured) a.seconds *= std::exp(c.at(curve_bytes, calibration->correlation.fade));
    return priced(a, op, bytes, shape.ranks, spread_in_domain(op, c, curve_bytes, shape.ranks));
  }

  CollectivePrice across(Collective op, double bytes, const GroupShape& shape, DataType type,
                         const NcclSettings& settings) const {
    const NcclAnswer a =
        nccl_across(domain_for(shape.ranks_per_domain), fabric, op, bytes, shape, type, nic_rate(shape), settings);
    return priced(a, op, bytes, shape.ranks,
                  {kZ80 * calibration->across_log_deviation, table.own ? Basis::extrapolated : Basis::transferred});
  }

  /// Whether a figure that this group's rate comes from is marked so.
  bool stands_on_assumed(const GroupShape& shape) const {
    const bool nics = cluster.node.nics.assumed || cluster.node.nic_bytes_per_second.assumed;
    const bool pcie = cluster.node.fabric == IntraFabric::pcie;
    const bool links = pcie ? cluster.node.pcie_bytes_per_second.assumed : cluster.gpu.nvlink_bytes_per_second.assumed;
    return (shape.crosses() && nics) || (shape.ranks_per_domain > 1 && links);
  }

  CollectivePrice datasheet_price(Collective op, double bytes, const GroupShape& shape) const {
    const bool pairwise = op == Collective::all_to_all || op == Collective::send_recv;
    return priced({datasheet_seconds(cluster, op, bytes, shape), pairwise ? "pairwise" : "ring", "simple"}, op, bytes,
                  shape.ranks, {0, stands_on_assumed(shape) ? Basis::assumed : Basis::datasheet});
  }

  /// Seconds a byte at line rate: of the group and its siblings as flows on the topology, of the busiest link there,
  /// and of the whiteboard's formula.
  struct Wires {
    double flows = 0, bound = 0, whiteboard = 0;
  };
  Wires wires(Collective op, const GroupShape& shape) const {
    // Beyond so many flows the pairs of an all-to-all are not laid out, and the formula stands for them.
    constexpr double kMostFlows = 4e6;
    constexpr double kBytes = 1e9;
    if (op == Collective::all_to_all && 1.0 * shape.ranks * shape.ranks > kMostFlows) return {};
    const std::lock_guard lock(mutex);
    const auto [at, fresh] = known_wires.try_emplace({op, shape.ranks, shape.ranks_per_domain});
    if (fresh) {
      const TrafficTime time = collective_time(cluster, Fidelity::flows, op, kBytes, shape);
      at->second.flows = time.seconds / kBytes;
      at->second.bound = time.bound_seconds / kBytes;
      at->second.whiteboard = datasheet_seconds(cluster, op, kBytes, shape) / kBytes;
    }
    return at->second;
  }

  /// The price with what the wires add to the formula that knows no topology (oversubscribed leaves and pods, meshes);
  /// on a fabric that never blocks nothing.
  CollectivePrice over_wires(CollectivePrice p, Collective op, double bytes, const GroupShape& shape) const {
    const Wires w = wires(op, shape);
    const double before = p.price.seconds, wire = fidelity == Fidelity::bound ? w.bound : w.flows;
    if (!(before > 0) || std::abs(wire - w.whiteboard) <= 1e-9 * w.whiteboard) return p;
    const double after = std::max(before + (wire - w.whiteboard) * bytes, std::min(before, wire * bytes));
    for (double* seconds : {&p.price.seconds, &p.price.low, &p.price.high}) *seconds *= after / before;
    p.bus_bytes_per_second *= before / after;
    return p;
  }

  Cluster cluster;
  Rates rates;
  Fidelity fidelity;
  std::shared_ptr<const CollectiveCalibration> calibration;
  TableChoice table;
  std::shared_ptr<const CorrectionField> field;
  DomainConstants domain;
  FabricConstants fabric;
  int most_ranks = 0;

  struct Key {
    Collective op;
    int ranks;
    TypeClass type;
    auto operator<=>(const Key&) const = default;
  };
  mutable std::mutex mutex;  // guards corrections and known_wires; their entries stay where they are
  mutable std::map<std::tuple<Collective, int, int>, Wires> known_wires;
  mutable std::map<Key, CurveCorrection> corrections;
};

NetworkModel::NetworkModel(const Cluster& cluster, Rates rates, Fidelity fidelity)
    : NetworkModel(cluster, rates, fidelity, calibration_of(cluster)) {}
NetworkModel::NetworkModel(const Cluster& cluster, Rates rates, Fidelity fidelity,
                           std::shared_ptr<const CollectiveCalibration> calibration)
    : impl_(std::make_unique<Impl>(cluster, rates, fidelity, std::move(calibration))) {}
NetworkModel::~NetworkModel() = default;
NetworkModel::NetworkModel(NetworkModel&&) noexcept = default;
NetworkModel& NetworkModel::operator=(NetworkModel&&) noexcept = default;

const Cluster& NetworkModel::cluster() const { return impl_->cluster; }

CollectivePrice NetworkModel::collective(Collective op, double bytes, const GroupShape& shape, DataType type) const {
  return collective(op, bytes, shape, type, NcclSettings{});
}

CollectivePrice NetworkModel::collective(Collective op, double bytes, const GroupShape& shape, DataType type,
                                         const NcclSettings& settings) const {
  if (!(bytes >= 0) || !std::isfinite(bytes)) throw InputError("--bytes", "must be a finite number >= 0");
  if (shape.ranks <= 1) return {};
  if (shape.crosses() && !(impl_->nic_rate(shape) > 0)) {
    throw InputError(impl_->cluster.name, "a group of " + std::to_string(shape.ranks) +
                                              " ranks crosses NVLink domains, but the cluster has no NICs");
  }
  CollectivePrice price;
  if (impl_->rates == Rates::datasheet || impl_->fidelity == Fidelity::bound) {
    price = impl_->datasheet_price(op, bytes, shape);
  } else {
    price = shape.crosses() ? impl_->across(op, bytes, shape, type, settings)
                            : impl_->in_domain(op, bytes, shape, type, settings);
  }
  return impl_->fidelity == Fidelity::table ? price : impl_->over_wires(price, op, bytes, shape);
}

double NetworkModel::sms_held(Collective op, const GroupShape& shape) const {
  if (shape.ranks <= 1 || impl_->rates == Rates::datasheet) return 0;
  if (impl_->cluster.node.fabric == IntraFabric::shared_memory) return 0;  // ranks copy themselves
  // One thread block a channel. NCCL: NVLS 16 (Hopper) or 24 (Blackwell, one domain); rings 16-32 channels at large
  // messages; point-to-point 16 (facts: nccl 2.30.7 src/transport/nvls.cc, issues #1041, #1453, #1649).
  const bool blackwell = impl_->table.table->generation == "blackwell";
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
