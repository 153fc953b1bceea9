#pragma once
// The fitted form of a kernel's time: a p-norm roofline with a fixed part.
#include <algorithm>
#include <cmath>

namespace shardplan {

/// What a kernel does: FLOPs, and bytes that it must move between HBM and the chip at least once. Kernels made of
/// several also stream rows before and after: bytes of the rows of this rank, and of all rows that were routed.
struct KernelWork {
  double flops = 0;
  double bytes = 0;
  double local_bytes = 0;
  double routed_bytes = 0;
};

/// Peak FLOP/s of the operands' type and datasheet HBM bytes/s of one GPU.
struct KernelRates {
  double peak = 0;
  double bandwidth = 0;
};

/// t = t0 + ((F / (e P))^p + (B / (b W))^p)^(1/p) + (l L + r R) / W, seconds; F FLOPs, B bytes, P peak FLOP/s, W HBM
/// bytes/s. e, b: reachable fractions; p: how softly compute and memory hand over (infinity = max); t0: fixed seconds;
/// L, R: streamed bytes of local and of routed rows, l, r: how many times they pass (0 but for expert layers).
/// Increasing in F, B, L and R for every parameter value. Leaves out tiles and waves: the grid of measured points
/// carries them. Source of the form: the best smooth form of nine compared on these measurements (p-norm roofline +
/// t0).
struct RooflineForm {
  double compute = 0.6;
  double memory = 0.75;
  double fixed = 4e-6;
  double exponent = 3;
  double local = 0;
  double routed = 0;

  double seconds(const KernelWork& work, const KernelRates& rates) const {
    const double c = rates.peak > 0 ? work.flops / (compute * rates.peak) : 0;
    const double m = work.bytes / (memory * rates.bandwidth);
    const double streamed = (local * work.local_bytes + routed * work.routed_bytes) / rates.bandwidth;
    const double large = std::max(c, m);
    if (large <= 0) return fixed + streamed;
    const double ratio = std::min(c, m) / large;
    return fixed + large * std::pow(1 + std::pow(ratio, exponent), 1 / exponent) + streamed;
  }
};

/// Whiteboard: max(F / P, B / W), no launch, no efficiency.
inline double datasheet_seconds(const KernelWork& work, const KernelRates& rates) {
  const double c = rates.peak > 0 ? work.flops / rates.peak : 0;
  return std::max(c, work.bytes / rates.bandwidth);
}

}  // namespace shardplan
