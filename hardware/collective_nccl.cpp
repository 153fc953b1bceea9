#include "hardware/collective_nccl.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan {

namespace {

constexpr std::array<const char*, 3> kProtocolNames = {"ll", "ll128", "simple"};
/// Hop of a ring through the network over LL's tree hop: 2.7 / 4.0 / 14 us against 5 us (NCCL's hwLat table, ring row).
constexpr std::array<double, 3> kRingHopScale = {0.54, 0.8, 2.8};
/// Payload of the wire: LL carries 4 of 8 bytes, LL128 120 of 128.
constexpr std::array<double, 3> kPayload = {0.5, 120.0 / 128.0, 1.0};
/// LL writes flags with every 8 bytes from few threads: NCCL's own ceiling for several nodes (perChMaxRingLL, Volta
/// row), bytes/s.
constexpr double kLlAcrossCeiling = 20.4e9;

int steps_of(Collective op, int ranks) { return op == Collective::all_reduce ? 2 * (ranks - 1) : ranks - 1; }

void keep_quicker(NcclAnswer& best, double seconds, const char* algorithm, const char* protocol) {
  if (seconds < best.seconds) best = {seconds, algorithm, protocol};
}

NcclAnswer none_yet() { return {std::numeric_limits<double>::infinity(), "", ""}; }

/// Bytes/s of one protocol's ring among n GPUs of a domain.
double ring_rate(const ProtocolConstants& p, int ranks) {
  return p.bus_bytes_per_second * (1 - p.pair_loss / std::max(1, ranks - 1));
}

/// latency + transfer + filling of the pipeline, seconds.
double across_seconds(const FabricConstants& f, double latency, double transfer) {
  const double fill = std::min(f.fill_scale * std::sqrt(latency * transfer), f.fill_cap * latency);
  return latency + transfer + fill;
}

struct Across {
  const DomainConstants& domain;
  const FabricConstants& fabric;
  double bytes;
  int ranks, per_domain, domains;
  double wire;  // bytes/s that the group's members of one domain reach together

  double wire_rate(std::size_t p) const {
    const double rate = wire * kPayload[p];
    return p == 0 ? std::min(rate, kLlAcrossCeiling) : rate;
  }
  /// A ring that crosses: its slowest link.
  double ring_bandwidth(std::size_t p) const {
    const double inside =
        per_domain > 1 ? ring_rate(domain.ring[p], per_domain) : std::numeric_limits<double>::infinity();
    return std::min(inside, wire_rate(p));
  }
  double ring(Collective op, std::size_t p) const {
    const int rounds = op == Collective::all_reduce ? 2 : 1;
    const int between = rounds * (domains - 1);
    const double latency = domain.ring[p].base_seconds + (steps_of(op, ranks) - between) * domain.ring[p].hop_seconds +
                           between * kRingHopScale[p] * fabric.hop_seconds;
    return across_seconds(fabric, latency, bus_factor(op, ranks) * bytes / ring_bandwidth(p));
  }
  /// Two binary trees, each over half of the buffer: every domain sends 2 S (S where there are only two).
  double tree(std::size_t p) const {
    const double latency =
        domain.ring[p].base_seconds + 2 * ((per_domain - 1) * domain.ring[p].hop_seconds + tree_hops(p));
    const double between = (domains == 2 ? 1.0 : 2.0) * bytes / wire_rate(p);
    const double inside = per_domain > 1 ? 2.0 * bytes / ring_rate(domain.ring[p], per_domain) : 0;
    return across_seconds(fabric, latency, std::max(between, inside));
  }
  double tree_hops(std::size_t p) const {
    return std::floor(std::log2(static_cast<double>(domains))) * fabric.hop_seconds * fabric.hop_scale[p];
  }
  /// The switch adds inside each domain, trees join the domains.
  double nvls_tree() const {
    const double between = (domains == 2 ? 1.0 : 2.0) * bytes / wire_rate(2);
    const double inside = bytes / domain.nvls->bytes_per_second;
    return across_seconds(fabric, domain.nvls->base_seconds + 2 * tree_hops(2), std::max(between, inside));
  }
  /// PAT (one GPU a node): logarithmic hops and a part linear in ranks (2.8 us a rank), 0.75 of the wire.
  double pat(Collective op) const {
    const double latency = domain.ring[0].base_seconds +
                           std::log2(static_cast<double>(domains)) * 0.8 * fabric.hop_seconds + 2.8e-6 * ranks;
    return across_seconds(fabric, latency, bus_factor(op, ranks) * bytes / (0.75 * wire_rate(2)));
  }
  /// Every rank sends S / n to every other: S (n - k) / n of it through the NICs, S (k - 1) / n over NVLink, both at
  /// once.
  double all_to_all(std::size_t p) const {
    const double share = bytes / ranks;
    const double between = share * (ranks - per_domain) * per_domain / wire_rate(p == 0 ? 0 : 2);
    const double inside = per_domain > 1 ? share * (per_domain - 1) / ring_rate(domain.pairwise[p], per_domain) : 0;
    const double latency = domain.pairwise[p].base_seconds + (ranks - 1) * domain.pairwise[p].hop_seconds +
                           fabric.hop_seconds * fabric.hop_scale[p == 0 ? 0 : 2];
    return latency + std::max(between, inside);
  }
  double send_recv(std::size_t p) const {
    return domain.pairwise[p].base_seconds + fabric.hop_seconds * fabric.hop_scale[p == 0 ? 0 : 2] +
           bytes / wire_rate(p == 0 ? 0 : 2);
  }
};

}  // namespace

double bus_factor(Collective op, int ranks) {
  if (ranks <= 1) return 0;
  const double n = ranks;
  switch (op) {
    case Collective::all_reduce:
      return 2 * (n - 1) / n;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return (n - 1) / n;
    default:
      return 1;
  }
}

bool switch_can_add(DataType type) {
  return type == DataType::bf16 || type == DataType::fp16 || type == DataType::fp32 || type == DataType::tf32;
}

NcclAnswer nccl_in_domain(const DomainConstants& c, Collective op, double bytes, int ranks, DataType type) {
  NcclAnswer best = none_yet();
  if (op == Collective::all_to_all || op == Collective::send_recv) {
    // A message between two GPUs is half of a two-rank all-to-all of twice its size.
    const int n = op == Collective::send_recv ? 2 : ranks;
    const double wire = op == Collective::send_recv ? bytes : bus_factor(op, n) * bytes;
    for (std::size_t p = 0; p < c.pairwise.size(); ++p) {
      const ProtocolConstants& k = c.pairwise[p];
      keep_quicker(best, k.base_seconds + k.hop_seconds * (n - 1) + wire / ring_rate(k, n), "pairwise",
                   kProtocolNames[2 * p]);
    }
    return best;
  }
  for (std::size_t p = 0; p < c.ring.size(); ++p) {
    const ProtocolConstants& k = c.ring[p];
    const double transfer = bus_factor(op, ranks) * bytes / ring_rate(k, ranks);
    keep_quicker(best, k.base_seconds + k.hop_seconds * steps_of(op, ranks) + transfer, "ring", kProtocolNames[p]);
  }
  if (c.nvls && op == Collective::all_reduce && ranks >= c.nvls->least_ranks && switch_can_add(type)) {
    keep_quicker(best, c.nvls->base_seconds + bytes / c.nvls->bytes_per_second, "nvls", "simple");
  }
  return best;
}

NcclAnswer nccl_across(const DomainConstants& c, const FabricConstants& fabric, Collective op, double bytes,
                       const GroupShape& shape, DataType type, double nic_bytes_per_second) {
  const int per_domain = std::max(1, std::min(shape.ranks_per_domain, shape.ranks));
  const Across a{c,
                 fabric,
                 bytes,
                 shape.ranks,
                 per_domain,
                 (shape.ranks + per_domain - 1) / per_domain,
                 nic_bytes_per_second * fabric.line_efficiency};
  NcclAnswer best = none_yet();
  if (op == Collective::all_to_all || op == Collective::send_recv) {
    for (std::size_t p = 0; p < 2; ++p) {
      keep_quicker(best, op == Collective::all_to_all ? a.all_to_all(p) : a.send_recv(p), "pairwise",
                   kProtocolNames[2 * p]);
    }
    return best;
  }
  for (std::size_t p = 0; p < 3; ++p) {
    keep_quicker(best, a.ring(op, p), "ring", kProtocolNames[p]);
    if (op == Collective::all_reduce) keep_quicker(best, a.tree(p), "tree", kProtocolNames[p]);
  }
  if (op == Collective::all_reduce && c.nvls && per_domain >= c.nvls->least_ranks && switch_can_add(type)) {
    keep_quicker(best, a.nvls_tree(), "nvls-tree", "simple");
  }
  if ((op == Collective::all_gather || op == Collective::reduce_scatter) && per_domain == 1)
    keep_quicker(best, a.pat(op), "pat", "simple");
  return best;
}

}  // namespace shardplan
