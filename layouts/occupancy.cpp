#include "layouts/occupancy.hpp"

#include <algorithm>
#include <vector>

namespace shardplan {

double distinct_groups(std::int64_t experts, std::int64_t top_k, double groups) {
  if (groups <= 1) return 1;
  const double n = static_cast<double>(experts), size = n / groups;
  double untouched = 1;
  for (std::int64_t j = 0; j < top_k; ++j)
    untouched *= std::max(0.0, n - size - static_cast<double>(j)) / (n - static_cast<double>(j));
  return groups * (1 - untouched);
}

namespace {

using Polynomial = std::vector<double>;  // coefficients of 1, x, ... x^k

/// (1 + x)^size - 1: the ways to pick from a group, at least one.
Polynomial picks_of_a_group(double size, std::size_t k) {
  Polynomial out(k + 1, 0.0);
  double c = 1;
  for (std::size_t i = 1; i <= k; ++i)
    out[i] = std::max(0.0, c *= (size - static_cast<double>(i) + 1) / static_cast<double>(i));
  return out;
}

/// a times b, b without a constant, up to x^k.
Polynomial times(const Polynomial& a, const Polynomial& b) {
  Polynomial out(a.size(), 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 1; i + j < a.size(); ++j) out[i + j] += a[i] * b[j];
  }
  return out;
}

/// P(X = j), j from 0, of the distinct groups X that k of N experts touch; empty where no such draw exists.
std::vector<double> group_law(std::int64_t experts, std::int64_t top_k, std::int64_t groups) {
  const auto k = static_cast<std::size_t>(top_k);
  // Scaled by 1 / C(N, k) at the end through P summing to 1.
  const std::int64_t of_group = experts / groups;  // whole experts
  const Polynomial one = picks_of_a_group(static_cast<double>(of_group), k);
  Polynomial power(k + 1, 0.0);
  power[0] = 1;
  double all = 0, teams = 1;
  std::vector<double> law{0.0};
  for (std::int64_t j = 1; j <= groups; ++j) {
    power = times(power, one);
    teams *= static_cast<double>(groups - j + 1) / static_cast<double>(j);
    law.push_back(teams * power[k]);
    all += law.back();
    if (j >= top_k) break;  // k picks touch at most k groups
  }
  if (!(all > 0)) return {};
  for (double& p : law) p /= all;
  return law;
}

/// Distinct parts that k picks touch in `groups` groups of `size` experts and `parts` parts each, every group picked
/// from: groups x E[parts | c picks], c by its law given the others.
double parts_of_groups(std::int64_t size, std::int64_t top_k, std::int64_t groups, double parts) {
  const auto k = static_cast<std::size_t>(top_k);
  const Polynomial one = picks_of_a_group(static_cast<double>(size), k);
  Polynomial others(k + 1, 0.0);
  others[0] = 1;
  for (std::int64_t j = 1; j < groups; ++j) others = times(others, one);
  double mean = 0, all = 0;
  for (std::size_t c = 1; c <= k; ++c) {
    const double ways = one[c] * others[k - c];
    all += ways;
    mean += ways * distinct_groups(size, static_cast<std::int64_t>(c), parts);
  }
  return static_cast<double>(groups) * (all > 0 ? mean / all : 1);
}

}  // namespace

double distinct_groups_limited(std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t limit) {
  const std::vector<double> law = group_law(experts, top_k, groups);
  if (law.empty()) return static_cast<double>(std::min({limit, top_k, groups}));
  double mean = 0;
  for (std::size_t j = 1; j < law.size(); ++j)
    mean += law[j] * static_cast<double>(std::min(static_cast<std::int64_t>(j), limit));
  return mean;
}

double distinct_parts_of_groups(std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t limit,
                                int parts) {
  const double g = static_cast<double>(groups), spread = parts / g;  // parts a group
  const auto covered = [&](std::int64_t j) {
    if (spread > 1) return parts_of_groups(experts / groups, top_k, j, spread);
    double untouched = 1;  // none of a part's 1 / spread groups among the j
    for (std::int64_t i = 0; i < j; ++i)
      untouched *= std::max(0.0, g - 1 / spread - static_cast<double>(i)) / (g - static_cast<double>(i));
    return parts * (1 - untouched);
  };
  const std::vector<double> law = group_law(experts, top_k, groups);
  if (law.empty()) return covered(std::min({limit, top_k, groups}));
  double mean = 0;
  for (std::size_t j = 1; j < law.size(); ++j) mean += law[j] * covered(std::min(static_cast<std::int64_t>(j), limit));
  return mean;
}

}  // namespace shardplan
