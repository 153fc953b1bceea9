#pragma once
// Seconds of the exchange around the experts of one MoE layer: tokens out to their experts (dispatch) and back
// (combine).
//
// Transports: NCCL's all-to-all (every selected copy travels), DeepEP normal kernels (a token crosses to a node once
// and to a GPU once; SMs copy), DeepEP low-latency kernels (every selected copy travels, no hand-over inside a node;
// all SMs, for short whiles), DeepEP's second version, and HybridEP.
//
// In one NVLink domain of a measured GPU (H100, H200, B200, GB200: data/deepep/<gpu>.json), with T tokens a rank, k
// choices, payload B bytes a token, R = expected distinct destination ranks, N = T R, c = SMs / 2 channels:
//   normal:  t = join(latency + (latency_byte + latency_copy_byte R) B,  sharp(walk / c, other / c, N B / link))
//            walk  = T (token + token_byte B) + N (copy + copy_byte B)      the side that goes through all tokens
//            other = N (other + other_byte B)                                the side that sees only its copies
//   low latency, S = ceil(E / ceil(E / SMs)) SMs at work (a group of warps an expert), n ranks:
//            t = join(latency + latency_byte B + expert E / n + k (choice + choice_byte B),
//                     sharp(T (token + token_byte B) / S, T k (copy + copy_byte B) / S, T k B (n-1)/n / link))
// where sharp and join are p-norms. Forms ours, after DeepEP's kernels (csrc/kernels/intranode.cu, internode_ll.cu
// @dd758caf: channels of two SMs, senders and receivers; a block an expert group); constants fitted to sglang 0.5.12's
// published sweeps. Elsewhere, after DeepEP's own tables (docs/legacy.md @dd758caf, H800 with 400G NICs):
//   t = latency + max(NVLink bytes / rate, NIC wire bytes / rate)            normal
//   t = latency + T k B [ (ranks outside the node) / n / NIC rate ]  or, in one node, all bytes / NVLink rate    low
//   latency
// Left out: skew within a rank's channels, contention with compute beyond the SMs held, RDMA congestion of many nodes.
#include <cstdint>
#include <memory>

#include "base/basis.hpp"
#include "hardware/cluster.hpp"
#include "hardware/collectives.hpp"
#include "hardware/kernels.hpp"

namespace shardplan {

enum class ExpertTransport { nccl, deepep, deepep_low_latency, deepep_v2, hybridep };
inline constexpr std::array<std::string_view, 5> kExpertTransportNames = {"nccl", "deepep", "deepep-low-latency",
                                                                          "deepep-v2", "hybridep"};

struct ExpertExchange {
  int ranks = 8;               // the expert-parallel group
  int ranks_per_domain = 8;    // its members in one NVLink domain
  double nics_per_domain = 8;  // NICs that they may use together
  double tokens = 0;           // of one rank, before routing
  int hidden = 0;
  int top_k = 1;
  int experts = 8;
  int nodes_per_token = 0;          // a token's experts are held to so many domains; 0 = no limit
  double dispatch_bytes = 1.03125;  // a value: FP8 with 4 bytes of scale per 128; BF16 2
  double combine_bytes = 2;
  int sms = 0;           // 0 = the transport's default
  double imbalance = 1;  // traffic of the busiest rank over the mean
};

/// Expected number of different groups, of `groups` equal ones, that hold the k of `experts` drawn without replacement;
/// where at most `limit` groups are allowed, they are drawn first. groups (1 - C(E - E/groups, k) / C(E, k)).
double expected_groups(double groups, double experts, int k, double limit = 0);

struct ExchangePrice {
  Price price;
  double nvlink_bytes = 0;   // over NVLink, into one GPU (what stays on the GPU left out)
  double nic_bytes = 0;      // over the NICs, out of one GPU's share (own node left out)
  double logical_bytes = 0;  // as DeepEP counts its bandwidth: own node included (low latency: every selection)
  const char* bound = "";    // nvlink | nic | sms | latency
  double sms_held = 0;
};

/// DeepEP: 24 SMs, the published default. Second version: 24 in a domain, 12 across two nodes, 6 across more. NCCL: its
/// channels.
int default_sms(ExpertTransport, const ExpertExchange&);

class ExpertExchangeModel {
 public:
  ExpertExchangeModel(const Cluster&, Rates, Fidelity);
  ~ExpertExchangeModel();
  ExpertExchangeModel(ExpertExchangeModel&&) noexcept;

  ExchangePrice dispatch(ExpertTransport, const ExpertExchange&) const;
  ExchangePrice combine(ExpertTransport, const ExpertExchange&) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardplan
