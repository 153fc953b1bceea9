#include "hardware/collective_nccl.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan {

namespace {

constexpr std::array<const char*, 3> kProtocolNames = {"ll", "ll128", "simple"};
/// Hop of a ring through the network over that of a tree, as NCCL believes when it chooses (2.7 / 4.0 / 14 us against 5
/// / 8.5 / 14 us in its hwLat table), and as small all-reduces of 2 x 2 and 2 x 4 H100 show it (17.5 and 22 us: about 4
/// us a hop).
constexpr std::array<double, 3> kBelievedRingHop = {0.54, 0.47, 1.0};
constexpr std::array<double, 3> kRealRingHop = {0.8, 0.8, 1.0};
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

/// Bytes/s of one protocol's ring among n GPUs of a domain; `loss` is the share of its pair loss that the collective
/// has.
double ring_rate(const ProtocolConstants& p, int ranks, double loss = 1) {
  return p.bus_bytes_per_second * (1 - loss * p.pair_loss / std::max(1, ranks - 1));
}
double loss_of(const DomainConstants& c, Collective op) { return op == Collective::all_reduce ? c.all_reduce_loss : 1; }

constexpr double kReferenceHop = 5e-6;  // the hop that NCCL's table assumes when it chooses

struct Across {
  const DomainConstants& domain;
  const FabricConstants& fabric;
  double bytes;
  int ranks, per_domain, domains;
  double wire;  // line rate that the group's members of one domain reach together, bytes/s
  double hop;   // seconds
  std::array<double, 3> ring_hop;

  double hop_of(std::size_t p) const { return fabric.hop_scale[p] * hop + fabric.hop_extra[p]; }
  double wire_rate(std::size_t p, double efficiency) const {
    const double rate = wire * efficiency * kPayload[p];
    return p == 0 ? std::min(rate, kLlAcrossCeiling) : rate;
  }
  double seconds(std::size_t p, double latency, double transfer, double bandwidth) const {
    if (p != 2 || !(transfer > 0)) return latency + transfer;
    return latency + transfer + 1 / (1 / (fabric.fill_scale * transfer) + bandwidth / fabric.fill_bytes);
  }
  /// A ring that crosses: its slowest link.
  double ring(Collective op, std::size_t p) const {
    const int rounds = op == Collective::all_reduce ? 2 : 1;
    const int between = rounds * (domains - 1);
    const double latency = domain.ring[p].base_seconds + (steps_of(op, ranks) - between) * domain.ring[p].hop_seconds +
                           between * ring_hop[p] * hop_of(p);
    const double inside = per_domain > 1 ? ring_rate(domain.ring[p], per_domain, loss_of(domain, op))
                                         : std::numeric_limits<double>::infinity();
    const double bandwidth = std::min(inside, wire_rate(p, fabric.ring_efficiency));
    return seconds(p, latency, bus_factor(op, ranks) * bytes / bandwidth, bandwidth);
  }
  /// Every domain of two binary trees, each over half of the buffer, sends 2 S (S where there are only two domains).
  double tree_bytes() const { return (domains == 2 ? 1.0 : 2.0) * bytes; }
  double tree_hops(std::size_t p) const { return 2 * std::floor(std::log2(static_cast<double>(domains))) * hop_of(p); }
  double tree(std::size_t p) const {
    const double latency =
        domain.ring[p].base_seconds + 2 * (per_domain - 1) * domain.ring[p].hop_seconds + tree_hops(p);
    const double bandwidth = wire_rate(p, fabric.tree_efficiency);
    const double inside =
        per_domain > 1 ? 2.0 * bytes / ring_rate(domain.ring[p], per_domain, domain.all_reduce_loss) : 0;
    return seconds(p, latency, std::max(tree_bytes() / bandwidth, inside), bandwidth);
  }
  /// The switch adds inside each domain, trees join the domains.
  double nvls_tree() const {
    const double bandwidth = wire_rate(2, fabric.tree_efficiency);
    const double inside = bytes / (domain.nvls->bytes_per_second * fabric.nvls_tree_efficiency);
    return seconds(2, domain.nvls->base_seconds + tree_hops(2), std::max(tree_bytes() / bandwidth, inside), bandwidth);
  }
  /// PAT (one GPU a node): logarithmic hops and a part linear in ranks (2.8 us a rank), 0.75 of the wire.
  double pat(Collective op) const {
    const double latency =
        8e-6 + std::floor(std::log2(static_cast<double>(domains))) * hop_of(2) / 3.5 + 2.8e-6 * ranks;
    const double bandwidth = 0.75 * wire_rate(2, 1);
    return seconds(2, latency, bus_factor(op, ranks) * bytes / bandwidth, bandwidth);
  }
  /// Every rank sends S / n to every other: S (n - k) / n of it through the NICs, S (k - 1) / n over NVLink, both at
  /// once.
  double all_to_all(std::size_t pairwise) const {
    const std::size_t p = 2 * pairwise;
    const double share = bytes / ranks;
    const double between = share * (ranks - per_domain) * per_domain / wire_rate(p, fabric.ring_efficiency);
    const double inside =
        per_domain > 1 ? share * (per_domain - 1) / ring_rate(domain.pairwise[pairwise], per_domain) : 0;
    return domain.pairwise[pairwise].base_seconds + (ranks - 1) * domain.pairwise[pairwise].hop_seconds + hop_of(p) +
           std::max(between, inside);
  }
  double send_recv(std::size_t pairwise) const {
    const std::size_t p = 2 * pairwise;
    return domain.pairwise[pairwise].base_seconds + hop_of(p) + bytes / wire_rate(p, fabric.ring_efficiency);
  }
};

}  // namespace

DomainConstants nccl_prior(double link) {
  // Base and hop latencies of rings over NVLink; LL reaches NCCL's ceiling for one node (141 GB/s at 450 GB/s of links)
  // only over many channels, LL128 0.92 of the ring, the ring 0.82 of the links; point-to-point as the ring.
  DomainConstants c;
  c.ring = {{{6.6e-6, 0.6e-6, 0.04 * link, 0.3}, {8e-6, 1.1e-6, 0.45 * link, 0.3}, {15e-6, 3.4e-6, 0.82 * link, 0.3}}};
  c.pairwise = {{{8e-6, 0.4e-6, 0.03 * link, 0.3}, {14e-6, 0.2e-6, 0.7 * link, 0.2}}};
  return c;
}

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

bool keeps_write_order(const Network& n) { return n.kind != "efa" && n.kind != "tcpx" && n.kind != "tcpxo"; }

bool switch_can_add(DataType type) {
  return type == DataType::bf16 || type == DataType::fp16 || type == DataType::fp32 || type == DataType::tf32;
}

NcclAnswer nccl_in_domain(const DomainConstants& c, Collective op, double bytes, int ranks, DataType type,
                          const NcclSettings& settings) {
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
  // In one domain a forced tree runs as the ring does: the ring stands for both.
  for (std::size_t p = 0; p < c.ring.size(); ++p) {
    const ProtocolConstants& k = c.ring[p];
    const double transfer = bus_factor(op, ranks) * bytes / ring_rate(k, ranks, loss_of(c, op));
    keep_quicker(best, k.base_seconds + k.hop_seconds * steps_of(op, ranks) + transfer, "ring", kProtocolNames[p]);
  }
  if (settings.nvls && settings.algorithm != "ring" && c.nvls && op == Collective::all_reduce &&
      ranks >= c.nvls->least_ranks && switch_can_add(type)) {
    keep_quicker(best, c.nvls->base_seconds + bytes / c.nvls->bytes_per_second, "nvls", "simple");
  }
  return best;
}

NcclAnswer nccl_across(const DomainConstants& c, const FabricConstants& fabric, Collective op, double bytes,
                       const GroupShape& shape, DataType type, double nic_bytes_per_second,
                       const NcclSettings& settings) {
  const int per_domain = std::max(1, std::min(shape.ranks_per_domain, shape.ranks));
  const Across real{c,
                    fabric,
                    bytes,
                    shape.ranks,
                    per_domain,
                    (shape.ranks + per_domain - 1) / per_domain,
                    nic_bytes_per_second,
                    fabric.hop_seconds,
                    kRealRingHop};
  // NCCL chooses by the hop of its own table, whatever the fabric's is.
  Across believed = real;
  believed.hop = std::min(kReferenceHop, fabric.hop_seconds);
  believed.ring_hop = kBelievedRingHop;
  NcclAnswer best = none_yet();
  double least = best.seconds;
  const auto offer = [&](auto&& seconds, const char* algorithm, std::size_t p) {
    if (p == 1 && !fabric.ll128) return;
    if (const double t = seconds(believed); t < least) {
      least = t;
      best = {seconds(real), algorithm, kProtocolNames[p]};
    }
  };
  const bool reduces_all = op == Collective::all_reduce;
  if (op == Collective::all_to_all || op == Collective::send_recv) {
    for (const std::size_t p : {0, 1}) {
      offer([&](const Across& a) { return op == Collective::all_to_all ? a.all_to_all(p) : a.send_recv(p); },
            "pairwise", 2 * p);
    }
    return best;
  }
  for (const std::size_t p : {0, 1, 2}) {
    if (!reduces_all || settings.allow("ring")) offer([&](const Across& a) { return a.ring(op, p); }, "ring", p);
    if (reduces_all && settings.allow("tree")) offer([&](const Across& a) { return a.tree(p); }, "tree", p);
  }
  const bool nvls = settings.nvls && settings.allow("nvls-tree") && c.nvls && per_domain >= c.nvls->least_ranks;
  if (reduces_all && nvls && switch_can_add(type)) offer([](const Across& a) { return a.nvls_tree(); }, "nvls-tree", 2);
  if (!reduces_all && op != Collective::broadcast && per_domain == 1)
    offer([&](const Across& a) { return a.pat(op); }, "pat", 2);
  // What was asked for cannot run here (NVLS-tree without NVLS): NCCL falls back to its own choice.
  if (best.algorithm[0] == '\0')
    return nccl_across(c, fabric, op, bytes, shape, type, nic_bytes_per_second, {settings.nvls, {}});
  return best;
}

}  // namespace shardplan
