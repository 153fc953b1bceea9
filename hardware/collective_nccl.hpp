#pragma once
// Seconds of one collective by NCCL's own way of working: several algorithms and protocols, the quickest is taken.
//
// In one NVLink domain, for a group of n GPUs and S bytes (as nccl-tests counts them):
//   ring, protocol p in {LL, LL128, Simple}:  t = base_p + hop_p * steps + factor * S / (bus_p * (1 - pair_loss_p / (n
//   - 1)))
//     steps  = 2(n-1) for all-reduce, n-1 for all-gather, reduce-scatter and broadcast
//     factor = 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast
//     pair_loss: two GPUs share one pair of buffers and reach only part of the ring's rate; an all-reduce loses
//     all_reduce_loss of it
//   NVLS (the switch adds; all-reduce of types that the switch can add, from `least_ranks` GPUs on):  t = base + S /
//   rate pairwise (all-to-all, send-recv as grouped point-to-point):  as ring with steps = n - 1
// Forms after NCCL 2.30.7 src/graph/tuning.cc (@5067397c): t = latency + bytes / bandwidth, the least of all pairs;
// constants are fitted to measured curves per GPU (data/collectives/<gpu>.json), not NCCL's own, which are 20-45 % low
// outside Hopper. Left out: channels and chunk sizes one by one, copy engines, several collectives at once in one
// domain.
#include <array>
#include <optional>
#include <string_view>

#include "hardware/collectives.hpp"

namespace shardplan {

struct ProtocolConstants {
  double base_seconds = 0;
  double hop_seconds = 0;
  double bus_bytes_per_second = 0;
  double pair_loss = 0;
};

struct NvlsConstants {
  double base_seconds = 0;
  double bytes_per_second = 0;  // of the buffer
  int least_ranks = 5;
};

/// One GPU in one NVLink domain.
struct DomainConstants {
  std::array<ProtocolConstants, 3> ring;      // LL, LL128, Simple
  std::array<ProtocolConstants, 2> pairwise;  // LL, Simple
  std::optional<NvlsConstants> nvls;
  double all_reduce_loss = 0.45;  // of pair_loss, in an all-reduce: its two halves fill each other's gaps
};

/// Across nodes. The hop of the fabric is its own; the rest belongs to NCCL and is the same everywhere.
///   t = latency + T + fill,  T = S * factor / bandwidth;  fill = 1 / (1 / (fill_scale * T) + bandwidth / fill_bytes),
///   Simple only
/// latency: a hop takes hop_scale_p * hop + hop_extra_p. `fill`: chunks of Simple grow with the message up to NCCL's
/// largest, all channels together hold `fill_bytes`; until then the pipeline is never full. LL and LL128 send pieces
/// too small to matter.
struct FabricConstants {
  double hop_seconds = 5e-6;      // one LL message from GPU to GPU through two NICs
  bool ll128 = true;              // needs writes that stay in order: EFA and TCPX do not give it
  double ring_efficiency = 0.92;  // of NIC line rate
  double tree_efficiency = 0.82;
  double nvls_tree_efficiency = 0.93;                 // of NVLS in the domain, which forwards to the NICs meanwhile
  std::array<double, 3> hop_scale = {1.0, 1.2, 1.5};  // LL, LL128, Simple
  std::array<double, 3> hop_extra = {0.0, 2.5e-6, 6.5e-6};  // seconds: 5 / 8.5 / 14 us in NCCL's table for InfiniBand
  double fill_scale = 1.0;
  double fill_bytes = 32e6;
};

/// What NCCL_NVLS_ENABLE and NCCL_ALGO allow.
struct NcclSettings {
  bool nvls = true;
  std::string_view algorithm;  // "" = the quickest

  bool allow(std::string_view name) const { return algorithm.empty() || algorithm == name; }
};

struct NcclAnswer {
  double seconds = 0;
  const char* algorithm = "";
  const char* protocol = "";
};

/// NCCL's own constants (tuning.cc @5067397c) for a GPU of this link rate: where a fit starts.
DomainConstants nccl_prior(double link_bytes_per_second);

/// Bytes on the busiest wire over S: nccl-tests' busbw / algbw.
double bus_factor(Collective, int ranks);
/// Whether the NVLink switch can add this type (NVLS): int8 and 8-bit floats cannot.
bool switch_can_add(DataType);

/// Whether LL128 may be used on this network: it needs 128-byte writes that arrive whole and in order.
bool keeps_write_order(const Network&);

NcclAnswer nccl_in_domain(const DomainConstants&, Collective, double bytes, int ranks, DataType,
                          const NcclSettings& = {});
/// `nic_bytes_per_second`: line rate of all NICs that the group's members in one domain may use.
NcclAnswer nccl_across(const DomainConstants&, const FabricConstants&, Collective, double bytes, const GroupShape&,
                       DataType, double nic_bytes_per_second, const NcclSettings& = {});

}  // namespace shardplan
