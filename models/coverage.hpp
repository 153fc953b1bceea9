#pragma once
// Decoding with a mixture of experts: a small batch touches most of the experts, so weights are read for little
// arithmetic.
#include <cstdint>
#include <span>

#include "models/model.hpp"

namespace shardplan {

/// Expected distinct experts that a batch of B tokens touches: N (1 - (1 - k/N)^B). Each token's k experts are
/// distinct; tokens are independent and experts equally popular.
double distinct_experts(std::int64_t experts, std::int64_t top_k, double batch);
/// The same for expected loads (shares of the selections, sum 1): sum_i 1 - (1 - k load_i)^B.
double distinct_experts(std::span<const double> loads, std::int64_t top_k, double batch);

struct SampledCoverage {
  double mean = 0;
  double standard_error = 0;
};
/// By drawing `rounds` batches, k distinct experts a token by these weights.
SampledCoverage sample_coverage(std::span<const double> weights, std::int64_t top_k, std::int64_t batch, int rounds,
                                std::uint64_t seed);

/// One MoE layer's experts in one decoding step of B tokens (the whole expert bank, however it is spread).
struct DecodeLayer {
  double experts_touched = 0;  // routed
  double weight_bytes = 0;     // touched routed experts and the shared ones
  double flops = 0;            // 2 a multiply-add; routed and shared
  double intensity = 0;        // FLOP per byte of weights; activations left out
  double dense_intensity = 0;  // of a dense model that holds the same weights: 2 B / bytes per weight
};
struct DecodeQuestion {
  const Moe* moe = nullptr;
  std::int64_t hidden = 0;
  double batch = 1;
  double bytes_per_weight = 1;
  bool shared = true;                  // count the shared experts
  std::span<const double> loads = {};  // empty = uniform
};
DecodeLayer decode_layer(const DecodeQuestion&);

/// What dense_intensity / intensity tends to for large B: (N + s) / (k + s), s = shared width / expert width; N / k
/// without.
double intensity_gap(const Moe&, bool shared);

/// Smallest batch whose intensity reaches `ridge` FLOP per byte (compute peak over memory bandwidth); 0 where none
/// below 2^30 does.
std::int64_t batch_at_ridge(DecodeQuestion, double ridge);

/// Experts kept on the host: of the touched ones, those beyond the `resident` most popular come over PCIe in every
/// step.
struct HostOffload {
  double experts_fetched = 0;
  double bytes = 0;
  double seconds = 0;
};
HostOffload host_offload(const DecodeQuestion&, std::int64_t resident, double pcie_bytes_per_second);

/// Elements of one routed expert: 3 h f gated, 2 h f plain.
double expert_elements(const Moe&, std::int64_t hidden);

}  // namespace shardplan
