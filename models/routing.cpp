#include "models/routing.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/errors.hpp"

namespace shardplan {

namespace {

/// Indices of the k largest values, best first; ties to the lower index.
std::vector<std::int64_t> largest(std::span<const double> values, std::int64_t k) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto end = order.begin() + std::min<std::int64_t>(k, static_cast<std::int64_t>(order.size()));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int64_t a, std::int64_t b) {
    const double x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.erase(end, order.end());
  return order;
}

double sum_of_largest(std::span<const double> values, std::int64_t count) {
  double sum = 0;
  for (const std::int64_t i : largest(values, count)) sum += values[static_cast<std::size_t>(i)];
  return sum;
}

/// Leaves the experts of the best groups and puts the others out of reach.
void keep_best_groups(const Moe& moe, std::vector<double>& select) {
  const auto size = static_cast<std::size_t>(moe.experts / moe.groups);
  const std::int64_t counted = moe.selection_bias ? std::max<std::int64_t>(1, moe.top_k / moe.groups_per_token) : 1;
  std::vector<double> group_scores;
  for (std::int64_t g = 0; g < moe.groups; ++g) {
    group_scores.push_back(
        sum_of_largest(std::span(select).subspan(static_cast<std::size_t>(g) * size, size), counted));
  }
  std::vector<char> kept(static_cast<std::size_t>(moe.groups), 0);
  for (const std::int64_t g : largest(group_scores, moe.groups_per_token)) kept[static_cast<std::size_t>(g)] = 1;
  for (std::size_t i = 0; i < select.size(); ++i) {
    if (!kept[i / size]) select[i] = -INFINITY;
  }
}

double softplus(double z) { return z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z)); }

}  // namespace

std::vector<double> router_scores(RouterScore kind, std::span<const double> logits) {
  std::vector<double> out(logits.begin(), logits.end());
  if (kind == RouterScore::sigmoid) {
    for (double& z : out) z = 1 / (1 + std::exp(-z));
  } else if (kind == RouterScore::sqrt_softplus) {
    for (double& z : out) z = std::sqrt(softplus(z));
  } else if (!out.empty()) {
    const double top = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (double& z : out) sum += z = std::exp(z - top);
    for (double& z : out) z /= sum;
  }
  return out;
}

std::vector<double> gates_of(const Moe& moe, std::span<const double> logits, std::span<const std::int64_t> chosen) {
  const std::vector<double> scores = router_scores(moe.score, logits);
  std::vector<double> gates;
  for (const std::int64_t i : chosen) gates.push_back(scores[static_cast<std::size_t>(i)]);
  const double sum = moe.renormalise ? std::accumulate(gates.begin(), gates.end(), 0.0) : 1;
  for (double& g : gates) g *= moe.routed_scaling / sum;
  return gates;
}

Selection select_experts(const Moe& moe, std::span<const double> logits, std::span<const double> bias) {
  std::vector<double> select = router_scores(moe.score, logits);
  for (std::size_t i = 0; i < bias.size(); ++i) select[i] += bias[i];
  if (moe.groups > 1 && moe.groups_per_token < moe.groups) keep_best_groups(moe, select);
  Selection out;
  out.experts = largest(select, moe.top_k);
  out.gates = gates_of(moe, logits, out.experts);
  return out;
}

std::vector<std::vector<double>> gate_gradients(const Moe& moe, std::span<const double> logits, double step) {
  const std::vector<std::int64_t> chosen = select_experts(moe, logits).experts;
  std::vector<std::vector<double>> out(chosen.size(), std::vector<double>(logits.size()));
  std::vector<double> z(logits.begin(), logits.end());
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double here = z[i];
    z[i] = here + step;
    const std::vector<double> up = gates_of(moe, z, chosen);
    z[i] = here - step;
    const std::vector<double> down = gates_of(moe, z, chosen);
    z[i] = here;
    for (std::size_t j = 0; j < chosen.size(); ++j) out[j][i] = (up[j] - down[j]) / (2 * step);
  }
  return out;
}

CapacityOutcome apply_capacity(std::span<const std::vector<std::int64_t>> tokens, std::int64_t experts, double factor) {
  CapacityOutcome out;
  out.load.assign(static_cast<std::size_t>(experts), 0);
  std::int64_t pairs = 0;
  for (const auto& token : tokens) pairs += static_cast<std::int64_t>(token.size());
  if (factor > 0) {
    out.capacity =
        static_cast<std::int64_t>(std::ceil(static_cast<double>(pairs) / static_cast<double>(experts) * factor - 1e-9));
  }
  for (const auto& token : tokens) {
    std::vector<bool> kept;
    for (const std::int64_t expert : token) {
      std::int64_t& load = out.load[static_cast<std::size_t>(expert)];
      kept.push_back(factor <= 0 || load < out.capacity);
      if (kept.back())
        ++load;
      else
        ++out.dropped;
    }
    out.kept.push_back(std::move(kept));
  }
  if (factor > 0) out.padded = experts * out.capacity - (pairs - out.dropped);
  return out;
}

CapacityShares capacity_shares(std::span<const double> loads, double factor) {
  if (factor <= 0) return {};
  const double limit = factor / static_cast<double>(loads.size());
  CapacityShares out;
  for (const double load : loads) out.dropped += std::max(0.0, load - limit);
  out.padding = std::max(0.0, 1 - (1 - out.dropped) / factor);
  return out;
}

namespace {

/// E[max(0, X - c)] of a normal X.
double normal_excess(double mean, double deviation, double c) {
  const double a = (c - mean) / deviation;
  const double density = std::exp(-a * a / 2) / std::sqrt(2 * std::numbers::pi);
  return deviation * (density - a * 0.5 * std::erfc(a / std::numbers::sqrt2));
}

/// E[max(0, X - c)] of a binomial X. Below the mean as mean - c + E[max(0, c - X)]: of the two sums, the one over the
/// nearer tail, from its largest term until nothing is added.
double binomial_excess(double n, double p, double c) {
  const double mean = n * p;
  if (p <= 0 || c >= n) return 0;
  if (p >= 1) return n - c;
  const double up = c >= mean ? 1 : -1;
  double x = c + up, sum = 0;
  double law = x < 0 ? 0
                     : std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) + x * std::log(p) +
                                (n - x) * std::log1p(-p));
  for (; x >= 0 && x <= n; x += up) {
    const double more = std::abs(x - c) * law;
    sum += more;
    if (more <= 1e-15 * sum) break;
    law *= up > 0 ? (n - x) / (x + 1) * p / (1 - p) : x / (n - x + 1) * (1 - p) / p;
  }
  return up > 0 ? sum : mean - c + sum;
}

}  // namespace

double counted_drops(std::span<const double> loads, std::int64_t top_k, std::int64_t tokens, double factor) {
  if (factor <= 0 || loads.empty()) return 0;
  const double n = static_cast<double>(tokens), pairs = n * static_cast<double>(top_k);
  const double capacity = std::ceil(pairs / static_cast<double>(loads.size()) * factor - 1e-9);
  double dropped = 0;
  for (const double load : loads) {
    const double p = std::min(load * static_cast<double>(top_k), 1.0), deviation = std::sqrt(n * p * (1 - p));
    dropped += deviation > 50 ? normal_excess(n * p, deviation, capacity) : binomial_excess(n, p, capacity);
  }
  return dropped / pairs;
}

TokenSampler::TokenSampler(std::span<const double> weights, std::int64_t top_k, std::int64_t groups,
                           std::int64_t groups_per_token)
    : weights_(weights.begin(), weights.end()),
      top_k_(top_k),
      groups_(groups),
      limit_(groups_per_token > 0 && groups_per_token < groups ? groups_per_token : 0) {
  const std::size_t n = weights_.size();
  if (limit_ > 0 && static_cast<std::int64_t>(n) % groups_ != 0) {
    throw InputError("--nodes-per-token",
                     std::to_string(n) + " experts do not divide over " + std::to_string(groups_) + " nodes");
  }
  if (limit_ > 0 && limit_ * (static_cast<std::int64_t>(n) / groups_) < top_k_) {
    throw InputError("--nodes-per-token", "the experts of " + std::to_string(limit_) + " nodes are fewer than top-k");
  }
  clocks_.resize(n);
  order_.resize(n);
  threshold_.assign(n, 1.0);
  alias_.resize(n);
  std::iota(alias_.begin(), alias_.end(), 0);
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  std::vector<double> scaled;
  std::vector<std::size_t> small, large;
  for (std::size_t i = 0; i < n; ++i) {
    scaled.push_back(weights_[i] / sum * static_cast<double>(n));
    (scaled[i] < 1 ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const std::size_t s = small.back(), l = large.back();
    small.pop_back();
    threshold_[s] = scaled[s];
    alias_[s] = static_cast<std::int32_t>(l);
    scaled[l] -= 1 - scaled[s];
    if (scaled[l] < 1) {
      large.pop_back();
      small.push_back(l);
    }
  }
}

std::span<const std::int32_t> TokenSampler::draw(Random& random) {
  if (limit_ > 0)
    draw_limited(random);
  else
    draw_free(random);
  std::sort(chosen_.begin(), chosen_.end());
  return chosen_;
}

/// Successive draws, repeats rejected; a token whose repeats pile up is drawn anew by clocks (the same law).
void TokenSampler::draw_free(Random& random) {
  const std::size_t k = static_cast<std::size_t>(top_k_);
  const double n = static_cast<double>(weights_.size());
  chosen_.clear();
  for (std::size_t tries = 0; chosen_.size() < k; ++tries) {
    if (tries > 8 * k + 32) return draw_by_clocks(random);
    const double at = random.uniform() * n;
    const auto slot = static_cast<std::size_t>(at);
    const std::int32_t expert =
        at - static_cast<double>(slot) < threshold_[slot] ? static_cast<std::int32_t>(slot) : alias_[slot];
    if (std::find(chosen_.begin(), chosen_.end(), expert) == chosen_.end()) chosen_.push_back(expert);
  }
}

void TokenSampler::draw_by_clocks(Random& random) {
  for (std::size_t i = 0; i < weights_.size(); ++i) clocks_[i] = -std::log(random.open_uniform()) / weights_[i];
  std::iota(order_.begin(), order_.end(), 0);
  std::nth_element(order_.begin(), order_.begin() + (top_k_ - 1), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = clocks_[static_cast<std::size_t>(a)], y = clocks_[static_cast<std::size_t>(b)];
    return x != y ? x < y : a < b;
  });
  chosen_.assign(order_.begin(), order_.begin() + top_k_);
}

/// Score of an expert = 1 / clock (its logit is log w + Gumbel, its softmax score proportional to exp of that).
void TokenSampler::draw_limited(Random& random) {
  const std::size_t size = weights_.size() / static_cast<std::size_t>(groups_);
  const auto counted = static_cast<std::size_t>(
      std::min<std::int64_t>(std::max<std::int64_t>(1, top_k_ / limit_), static_cast<std::int64_t>(size)));
  group_scores_.clear();
  for (std::size_t g = 0; g < static_cast<std::size_t>(groups_); ++g) {
    double best[16] = {};  // the largest scores of the group, descending
    const std::size_t held = std::min<std::size_t>(counted, 16);
    for (std::size_t i = g * size; i < (g + 1) * size; ++i) {
      clocks_[i] = -std::log(random.open_uniform()) / weights_[i];
      double score = 1 / clocks_[i];
      for (std::size_t b = 0; b < held && score > 0; ++b) {
        if (score > best[b]) std::swap(score, best[b]);
      }
    }
    group_scores_.emplace_back(-std::accumulate(best, best + held, 0.0), static_cast<std::int32_t>(g));
  }
  std::sort(group_scores_.begin(), group_scores_.end());
  order_.clear();
  for (std::int64_t g = 0; g < limit_; ++g) {
    const std::size_t first = static_cast<std::size_t>(group_scores_[static_cast<std::size_t>(g)].second) * size;
    for (std::size_t i = first; i < first + size; ++i) order_.push_back(static_cast<std::int32_t>(i));
  }
  std::nth_element(order_.begin(), order_.begin() + (top_k_ - 1), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = clocks_[static_cast<std::size_t>(a)], y = clocks_[static_cast<std::size_t>(b)];
    return x != y ? x < y : a < b;
  });
  chosen_.assign(order_.begin(), order_.begin() + top_k_);
  order_.resize(weights_.size());
}

double replay_bytes(std::int64_t tokens, std::int64_t top_k, std::int64_t moe_layers, double bytes_per_id) {
  return static_cast<double>(tokens) * static_cast<double>(top_k) * static_cast<double>(moe_layers) * bytes_per_id;
}

}  // namespace shardplan
