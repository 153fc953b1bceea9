#pragma once
// Seconds of one collective by NCCL's own way of working: several algorithms and protocols, the quickest is taken.
//
// In one NVLink domain, for a group of n GPUs and S bytes (as nccl-tests counts them):
//   ring, protocol p in {LL, LL128, Simple}:  t = base_p + hop_p * steps + factor * S / (bus_p * (1 - pair_loss_p / (n
//   - 1)))
//     steps  = 2(n-1) for all-reduce, n-1 for all-gather, reduce-scatter and broadcast
//     factor = 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast
//     pair_loss: two GPUs share one pair of buffers and reach only part of the ring's rate
//   NVLS (the switch adds; all-reduce of types that the switch can add, from `least_ranks` GPUs on):  t = base + S /
//   rate pairwise (all-to-all, send-recv as grouped point-to-point):  as ring with steps = n - 1
// Forms after NCCL 2.30.7 src/graph/tuning.cc (@5067397c): t = latency + bytes / bandwidth, the least of all pairs;
// constants are fitted to measured curves per GPU (data/collectives/<gpu>.json), not NCCL's own, which are 20-45 % low
// outside Hopper. Left out: channels and chunk sizes one by one, copy engines, several collectives at once in one
// domain.
#include <array>
#include <optional>

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
};

/// Across nodes. One latency per hop is the fabric's own; the rest belongs to NCCL and is the same everywhere.
///   t = latency + S * factor / bandwidth + fill;  fill = min(fill_scale * sqrt(latency * S * factor / bandwidth),
///   fill_cap * latency)
/// `fill` is the pipeline filling: chunks grow with the message until they reach NCCL's largest.
struct FabricConstants {
  double hop_seconds = 5e-6;                          // one LL message from GPU to GPU through two NICs
  double line_efficiency = 0.97;                      // of NIC line rate
  std::array<double, 3> hop_scale = {1.0, 1.7, 2.8};  // LL, LL128, Simple over LL: 5 / 8.5 / 14 us in NCCL's table
  double fill_scale = 1.0;
  double fill_cap = 2.0;
};

struct NcclAnswer {
  double seconds = 0;
  const char* algorithm = "";
  const char* protocol = "";
};

/// Bytes on the busiest wire over S: nccl-tests' busbw / algbw.
double bus_factor(Collective, int ranks);
/// Whether the NVLink switch can add this type (NVLS): int8 and 8-bit floats cannot.
bool switch_can_add(DataType);

NcclAnswer nccl_in_domain(const DomainConstants&, Collective, double bytes, int ranks, DataType);
/// `nic_bytes_per_second`: line rate of all NICs that the group's members in one domain may use.
NcclAnswer nccl_across(const DomainConstants&, const FabricConstants&, Collective, double bytes, const GroupShape&,
                       DataType, double nic_bytes_per_second);

}  // namespace shardplan
