#include "base/normal.hpp"

#include <cmath>
#include <numbers>

namespace shardplan {

double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1 - p);
  // Newton's method on ln P, which is concave: from any point at or left of the root it closes in from one side.
  double x = -std::sqrt(std::fmax(0.0, -2 * std::log(2 * p)));
  for (int i = 0; i < 40; ++i) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    const double step = (std::log(p) - std::log(below)) * below / density;
    x += step;
    if (std::fabs(step) < 1e-13 * (1 + std::fabs(x))) break;
  }
  return x;
}

double expected_largest(double n) { return n <= 1 ? 0 : normal_quantile((n - 0.375) / (n + 0.25)); }

}  // namespace shardplan
