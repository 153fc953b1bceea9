#include "models/documents.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.hpp"

namespace shardplan {

DocumentMask document_mask(double tokens, double mean_length) {
  const double a = tokens / mean_length;
  // Rarely a boundary: a cut at u leaves u^2 + (1-u)^2, on average 2/3, and 1 less that has the mean square 2/15.
  if (a < 0.02) return {1 - a / 3, std::sqrt(a * 2 / 15)};
  const double e = std::exp(-a), first = 2 * (a - 1 + e), second = 4 * a * a - 24 + e * (8 * a * a + 24 * a + 24);
  return {first / (a * a), std::sqrt(std::max(0.0, second - first * first)) / (a * a)};
}

std::vector<double> draw_attention(std::int64_t sequences, double tokens, double mean_length, std::uint64_t seed) {
  constexpr double kMostDrawn = 256;
  const double a = tokens / mean_length;
  const DocumentMask mask = document_mask(tokens, mean_length);
  Random random(seed);
  std::vector<double> out(static_cast<std::size_t>(sequences));
  for (double& share : out) {
    if (a > kMostDrawn) {
      share = std::max(0.0, mask.share + mask.sd * random.normal());
      continue;
    }
    double sum = 0;
    for (double left = a; left > 0;) {
      const double length = std::min(left, -std::log(random.open_uniform()));
      sum += length * length;
      left -= length;
    }
    share = sum / (a * a);
  }
  const double mean = std::accumulate(out.begin(), out.end(), 0.0) / static_cast<double>(sequences);
  for (double& share : out) share = mean > 0 ? share / mean : 1;
  return out;
}

}  // namespace shardplan
