#pragma once
// Seconds of one MoE layer's forward pass on the busiest GPU: expert products from real group sizes, permutation as
// memory traffic, dispatch and combine over network and NVLink, and what overlap leaves of their sum.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/basis.hpp"
#include "hardware/cluster.hpp"
#include "hardware/deepep.hpp"
#include "hardware/kernels.hpp"
#include "layouts/expert_load.hpp"

namespace shardplan {

/// One direction of the exchange. Network and NVLink seconds of the busiest rank, each alone; `total` = pipelined:
/// tokens are forwarded over NVLink while later ones still arrive.
struct ExchangePhase {
  double network = 0;
  double nvlink = 0;
  Price total;
};

/// How fast tokens move. datasheet: line rates, no latency.
struct MoeExchange {
  ExchangePhase dispatch, combine;
  double sms_held = 0;  // SMs that the kernels take from the products beside them
  std::string model;    // what the seconds stand on
};

/// The exchange of a layer whose load is `load` (bytes of the mean rank times the busiest factors).
MoeExchange price_moe_exchange(const Cluster&, Rates, const ExpertExchangeModel&, const ExpertLoadQuestion&,
                               const ExpertLoad&);

struct MoeLayerQuestion {
  ExpertLoadQuestion load;
  const Cluster* cluster = nullptr;
  const KernelModel* kernels = nullptr;           // same rates as `rates`
  const ExpertExchangeModel* exchange = nullptr;  // same rates
  Rates rates = Rates::calibrated;
  DataType precision = DataType::bf16;  // of the expert products
  bool shared = true;                   // count the shared experts (on every rank, no exchange)
  int waves = 1;
};

/// Step of a layer under one way of overlapping; steady state for `microbatches` (fill and drain left out).
struct MoeOverlap {
  double none = 0;    // dispatch, permute, experts, unpermute, combine, shared, one after the other
  double shared = 0;  // shared experts under the dispatch
  double microbatches =
      0;             // another micro-batch's compute (or opposite pass, DualPipe) beside the exchange: the longer one
  double waves = 0;  // experts in waves: compute of one, dispatch of the next, combine of the last
};

struct MoeLayerTimes {
  ExpertLoad load;
  double flops = 0;  // mean rank: routed pairs and shared experts
  double routed_flops = 0;
  Price routed, shared;  // busiest rank: gate and up, activation, down
  std::string products;  // how the first of the routed products runs: one fused kernel, or a loop over the experts
  Price permute;         // both permutations: read and write every routed row twice
  double permute_bytes = 0;
  MoeExchange exchange;
  MoeOverlap overlap;

  double compute() const { return routed.seconds + shared.seconds; }
  double network() const { return exchange.dispatch.network + exchange.combine.network; }
  double nvlink() const { return exchange.dispatch.nvlink + exchange.combine.nvlink; }
  double comm_over_compute() const { return (network() + nvlink()) / compute(); }
};

/// Rows that a layer's permutations read and write in the forward pass, for each token-expert pair. By copies (NCCL):
/// each token is written once a pair and, at the end, its pairs are added up; where a rank holds several experts, what
/// arrives from each source is sorted by expert, and back. Merged exchanges (DeepEP, HybridEP) bring a token once to
/// each rank: read there, written once a pair, and back.
double permuted_rows_per_pair(const ExpertLoadQuestion&, const ExpertLoad&);

/// InputError where there are more waves than experts on a rank.
MoeLayerTimes price_moe_layer(const MoeLayerQuestion&);

/// Experts of a rank dealt to waves in order, as even as their number allows: the tokens of each expert of each wave.
std::vector<std::vector<std::int64_t>> wave_groups(std::span<const std::int64_t> tokens, int waves);

/// Makespan of W waves: one lane moves (dispatch w+1 before combine w-1), one computes; wave w's compute waits for its
/// dispatch, its combine for its compute. `free` seconds of compute wait for nothing (shared experts) and run first.
double waves_makespan(const std::vector<double>& dispatch, const std::vector<double>& compute,
                      const std::vector<double>& combine, double free = 0);

/// What each assumption of the whiteboard's arithmetic is worth: the same layer with one of them changed at a time.
struct Assumption {
  std::string what;
  double communication_s = 0;  // network and NVLink
  double compute_s = 0;
  double ratio = 0;  // communication over compute, or overlapped where the line says so
};
struct AssumptionInputs {
  MoeLayerQuestion question;  // as asked; its conventions are replaced line by line
  const KernelModel* datasheet_kernels = nullptr;
  const ExpertExchangeModel* datasheet_exchange = nullptr;
  const KernelModel* calibrated_kernels = nullptr;
  const ExpertExchangeModel* calibrated_exchange = nullptr;
};
std::vector<Assumption> assumption_worth(const AssumptionInputs&);

}  // namespace shardplan
