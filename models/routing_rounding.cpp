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

/// Selection by given scores: a sigmoid-free path, so that rounded scores are compared as they are.
std::vector<std::int64_t> take(const Moe& moe, std::span<const double> scores) {
  Moe plain = moe;
  plain.score = RouterScore::sigmoid;  // monotonic: the order of logit(score) is the order of the scores
  std::vector<double> logits;
  for (const double s : scores) logits.push_back(s);
  return select_experts(plain, logits).experts;
}

}  // namespace

float to_bf16(float x) {
  if (std::isnan(x)) return x;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

FlipShares rounding_flips(const Moe& given, std::int64_t hidden, std::int64_t tokens, ScoreRounding how,
                          std::uint64_t seed) {
  Moe moe = given;
  moe.groups = moe.groups_per_token = 1;  // top-k alone: a group's flip would be counted as k flips
  const auto h = static_cast<std::size_t>(hidden), n = static_cast<std::size_t>(moe.experts);
  Random random(seed);
  std::vector<float> weights(h * n), x(h);
  for (float& w : weights) w = static_cast<float>(random.normal() / std::sqrt(static_cast<double>(hidden)));
  std::int64_t flips = 0, hit = 0;
  std::vector<double> forward(n), other(n);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (float& v : x) v = to_bf16(static_cast<float>(random.normal()));
    for (std::size_t i = 0; i < n; ++i) {
      const float* w = &weights[i * h];
      float up = 0, down = 0;
      for (std::size_t j = 0; j < h; ++j) up += w[j] * x[j];
      if (how == ScoreRounding::fp32_reversed_sum) {
        for (std::size_t j = h; j-- > 0;) down += w[j] * x[j];
      }
      forward[i] = static_cast<double>(up);
      other[i] = static_cast<double>(how == ScoreRounding::fp32_reversed_sum ? down : up);
    }
    if (how == ScoreRounding::bf16_logits) other = rounded(other);
    std::vector<double> a = router_scores(moe.score, forward), b = router_scores(moe.score, other);
    if (how == ScoreRounding::bf16_scores) b = rounded(b);
    const std::int64_t c = changed(take(moe, a), take(moe, b));
    flips += c;
    hit += c > 0;
  }
  return {static_cast<double>(flips) / static_cast<double>(tokens * moe.top_k),
          static_cast<double>(hit) / static_cast<double>(tokens)};
}

}  // namespace shardplan
