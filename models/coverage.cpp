#include "models/coverage.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "models/routing.hpp"

namespace shardplan {

namespace {

double matrices(const Moe& moe) { return moe.gated ? 3 : 2; }

/// Chance that a batch touches an expert that one token takes with probability p: 1 - (1 - p)^B.
double touched(double p, double batch) { return p >= 1 ? 1 : -std::expm1(batch * std::log1p(-p)); }

}  // namespace

double expert_elements(const Moe& moe, std::int64_t hidden) {
  return matrices(moe) * static_cast<double>(hidden) * static_cast<double>(moe.width);
}

double distinct_experts(std::int64_t experts, std::int64_t top_k, double batch) {
  const double n = static_cast<double>(experts);
  return n * touched(static_cast<double>(top_k) / n, batch);
}

double distinct_experts(std::span<const double> loads, std::int64_t top_k, double batch) {
  double sum = 0;
  for (const double load : loads) sum += touched(static_cast<double>(top_k) * load, batch);
  return sum;
}

SampledCoverage sample_coverage(std::span<const double> weights, std::int64_t top_k, std::int64_t batch, int rounds,
                                std::uint64_t seed) {
  TokenSampler sampler(weights, top_k);
  Random random(seed);
  double sum = 0, square = 0;
  std::vector<int> seen(weights.size(), -1);
  for (int round = 0; round < rounds; ++round) {
    double distinct = 0;
    for (std::int64_t t = 0; t < batch; ++t) {
      for (const std::int32_t e : sampler.draw(random)) {
        int& last = seen[static_cast<std::size_t>(e)];
        distinct += last != round;
        last = round;
      }
    }
    sum += distinct;
    square += distinct * distinct;
  }
  const double mean = sum / rounds;
  return {mean, std::sqrt(std::max(0.0, square / rounds - mean * mean) / std::max(1, rounds - 1))};
}

DecodeLayer decode_layer(const DecodeQuestion& q) {
  const Moe& moe = *q.moe;
  const double expert = expert_elements(moe, q.hidden);
  const double shared =
      q.shared ? matrices(moe) * static_cast<double>(q.hidden) * static_cast<double>(moe.shared_width) : 0;
  DecodeLayer out;
  out.experts_touched = q.loads.empty() ? distinct_experts(moe.experts, moe.top_k, q.batch)
                                        : distinct_experts(q.loads, moe.top_k, q.batch);
  out.weight_bytes = (out.experts_touched * expert + shared) * q.bytes_per_weight;
  out.flops = 2 * q.batch * (static_cast<double>(moe.top_k) * expert + shared);
  out.intensity = out.flops / out.weight_bytes;
  out.dense_intensity = 2 * q.batch / q.bytes_per_weight;
  return out;
}

double intensity_gap(const Moe& moe, bool shared) {
  const double s = shared ? static_cast<double>(moe.shared_width) / static_cast<double>(moe.width) : 0;
  return (static_cast<double>(moe.experts) + s) / (static_cast<double>(moe.top_k) + s);
}

std::int64_t batch_at_ridge(DecodeQuestion q, double ridge) {
  std::int64_t low = 0, high = std::int64_t{1} << 30;  // intensity rises with the batch
  q.batch = static_cast<double>(high);
  if (decode_layer(q).intensity < ridge) return 0;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    q.batch = static_cast<double>(middle);
    (decode_layer(q).intensity >= ridge ? high : low) = middle;
  }
  return high;
}

HostOffload host_offload(const DecodeQuestion& q, std::int64_t resident, double pcie_bytes_per_second) {
  const Moe& moe = *q.moe;
  std::vector<double> loads(q.loads.begin(), q.loads.end());
  if (loads.empty()) loads.assign(static_cast<std::size_t>(moe.experts), 1.0 / static_cast<double>(moe.experts));
  std::sort(loads.begin(), loads.end(), std::greater<>());
  const auto kept = static_cast<std::size_t>(std::clamp<std::int64_t>(resident, 0, moe.experts));
  HostOffload out;
  out.experts_fetched = distinct_experts(std::span(loads).subspan(kept), moe.top_k, q.batch);
  out.bytes = out.experts_fetched * expert_elements(moe, q.hidden) * q.bytes_per_weight;
  out.seconds = pcie_bytes_per_second > 0 ? out.bytes / pcie_bytes_per_second : 0;
  return out;
}

}  // namespace shardplan
