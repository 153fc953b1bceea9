#pragma once
// Reproducible random numbers: the standard library's distributions differ between implementations, these do not.
#include <cmath>
#include <cstdint>
#include <numbers>

namespace shardplan {

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, full period, good enough for routing and jitter draws.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// In (0, 1): safe for logarithms.
  double open_uniform() { return (static_cast<double>(next() >> 12) + 0.5) * 0x1.0p-52; }
  /// In [0, n), n > 0; n at most 2^53.
  std::uint64_t below(std::uint64_t n) { return static_cast<std::uint64_t>(uniform() * static_cast<double>(n)); }
  /// Standard normal (Box-Muller, one of the pair).
  double normal() {
    const double r = std::sqrt(-2.0 * std::log(open_uniform()));
    return r * std::cos(2.0 * std::numbers::pi * uniform());
  }
  /// Standard Gumbel.
  double gumbel() { return -std::log(-std::log(open_uniform())); }

 private:
  std::uint64_t state_;
};

}  // namespace shardplan
