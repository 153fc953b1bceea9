#include "models/documents.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

DocumentMask document_mask(double tokens, double mean_length) {
  const double a = tokens / mean_length;
  // Rarely a boundary: a cut at u leaves u^2 + (1-u)^2, on average 2/3, and 1 less that has the mean square 2/15.
  if (a < 0.02) return {1 - a / 3, std::sqrt(a * 2 / 15)};
  const double e = std::exp(-a), first = 2 * (a - 1 + e), second = 4 * a * a - 24 + e * (8 * a * a + 24 * a + 24);
  return {first / (a * a), std::sqrt(std::max(0.0, second - first * first)) / (a * a)};
}

}  // namespace shardplan
