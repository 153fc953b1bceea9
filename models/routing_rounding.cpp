// How often the rounding of a router's scores changes which experts it takes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "models/routing.hpp"

namespace shardplan {

namespace {

/// Choices of `a` that are not among those of `b` (both of one length).
std::int64_t changed(std::vector<std::int64_t> a, std::vector<std::int64_t> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<std::int64_t> only;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(only));
  return static_cast<std::int64_t>(only.size());
}

std::vector<double> rounded(std::span<const double> values) {
  std::vector<double> out;
  for (const double v : values) out.push_back(static_cast<double>(to_bf16(static_cast<float>(v))));
  return out;
}

/// The experts of the largest scores, by a model whose scores are its logits' order: rounded scores are compared as
/// they are.
std::vector<std::int64_t> take(const Moe& moe, std::span<const double> scores) {
  Moe plain = moe;
  plain.score = RouterScore::sigmoid;
  return select_experts(plain, scores).experts;
}

/// Logits of one token, FP32 products summed in order and from the other end; weights by input, then expert.
struct Logits {
  std::vector<double> forward, reversed;
};
Logits logits_of(std::span<const float> weights, std::span<const float> x, std::size_t experts) {
  std::vector<float> up(experts, 0.0f), down(experts, 0.0f);
  const auto add = [&](std::vector<float>& sum, std::size_t j) {
    const float* w = &weights[j * experts];
    for (std::size_t i = 0; i < experts; ++i) sum[i] += w[i] * x[j];
  };
  for (std::size_t j = 0; j < x.size(); ++j) add(up, j);
  for (std::size_t j = x.size(); j-- > 0;) add(down, j);
  return {{up.begin(), up.end()}, {down.begin(), down.end()}};
}

struct FlipCount {
  std::int64_t choices = 0, tokens = 0;
  void add(std::int64_t flips) {
    choices += flips;
    tokens += flips > 0;
  }
  FlipShares shares(std::int64_t tokens_drawn, std::int64_t top_k) const {
    return {static_cast<double>(choices) / static_cast<double>(tokens_drawn * top_k),
            static_cast<double>(tokens) / static_cast<double>(tokens_drawn)};
  }
};

/// Logits of the last expert taken and of the first not taken, and how much their errors differ.
struct Boundary {
  double gap = 0, error = 0;
};
Boundary boundary_of(const Logits& z, const Moe& moe) {
  Moe more = moe;
  more.top_k = std::min(moe.top_k + 1, moe.experts);
  const auto order = take(more, z.forward);
  const auto in = static_cast<std::size_t>(order[order.size() - 2]), out = static_cast<std::size_t>(order.back());
  const auto error = [&](std::size_t i) { return z.reversed[i] - z.forward[i]; };
  return {z.forward[in] - z.forward[out], std::abs(error(in) - error(out))};
}

}  // namespace

float to_bf16(float x) {
  if (std::isnan(x)) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

RoundingReport rounding_report(const Moe& given, std::int64_t hidden, std::int64_t tokens, std::uint64_t seed) {
  Moe moe = given;
  moe.groups = moe.groups_per_token = 1;  // top-k alone: a group's flip would be counted as k flips
  const auto h = static_cast<std::size_t>(hidden), n = static_cast<std::size_t>(moe.experts);
  Random random(seed);
  std::vector<float> weights(h * n), x(h);
  for (float& w : weights) w = static_cast<float>(random.normal() / std::sqrt(static_cast<double>(hidden)));
  FlipCount scores, logits, order;
  RoundingReport out;
  out.tokens = tokens;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (float& v : x) v = to_bf16(static_cast<float>(random.normal()));
    const Logits z = logits_of(weights, x, n);
    const std::vector<double> reference = router_scores(moe.score, z.forward);
    const auto chosen = take(moe, reference);
    scores.add(changed(chosen, take(moe, rounded(reference))));
    logits.add(changed(chosen, take(moe, router_scores(moe.score, rounded(z.forward)))));
    order.add(changed(chosen, take(moe, router_scores(moe.score, z.reversed))));
    if (moe.top_k >= moe.experts) continue;
    const Boundary at = boundary_of(z, moe);
    out.mean_gap += at.gap / static_cast<double>(tokens);
    out.mean_error += at.error / static_cast<double>(tokens);
  }
  out.bf16_scores = scores.shares(tokens, moe.top_k);
  out.bf16_logits = logits.shares(tokens, moe.top_k);
  out.reversed_sum = order.shares(tokens, moe.top_k);
  if (out.mean_gap > 0) out.reversed_expected = out.mean_error / 2 / out.mean_gap / static_cast<double>(moe.top_k);
  return out;
}

}  // namespace shardplan
