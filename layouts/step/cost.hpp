#pragma once
// Seconds of a piece of work, by what they are spent on and by what they stand on.
#include <array>
#include <cmath>
#include <string_view>

#include "base/basis.hpp"

namespace shardplan {

/// What device seconds are spent on. tp .. fsdp are exposed communication: hidden seconds do not count.
enum class Part : unsigned char {
  gemm,
  attention,
  elementwise,
  experts,
  vocabulary,
  tp,
  cp,
  ep,
  fsdp,
  offload,
  launch
};
inline constexpr std::size_t kParts = 11;
inline constexpr std::array<std::string_view, kParts> kPartNames = {
    "gemm", "attention", "elementwise", "experts", "vocabulary", "tp", "cp", "ep", "fsdp", "offload", "launch"};

/// `factor` times a price, interval and all.
inline Price scaled(Price p, double factor) {
  p.seconds *= factor;
  p.low *= factor;
  p.high *= factor;
  return p;
}

/// A sum of priced operations. Intervals add (errors of one calibration table move together).
struct Cost {
  std::array<double, kParts> parts{};
  std::array<double, kBasisNames.size()> basis{};
  double low = 0, high = 0;
  double host = 0;  // host seconds to issue this work, beside the device

  void add(Part part, const Price& price, double times = 1) {
    parts[static_cast<std::size_t>(part)] += times * price.seconds;
    basis[static_cast<std::size_t>(price.basis)] += times * price.seconds;
    low += times * price.low;
    high += times * price.high;
  }
  Cost& operator+=(const Cost& o) { return add(o, 1); }
  Cost& add(const Cost& o, double times) {
    for (std::size_t i = 0; i < kParts; ++i) parts[i] += times * o.parts[i];
    for (std::size_t i = 0; i < basis.size(); ++i) basis[i] += times * o.basis[i];
    low += times * o.low;
    high += times * o.high;
    host += times * o.host;
    return *this;
  }
  /// Takes off seconds that run beside other work; basis and interval shrink with the sum.
  void hide(Part p, double seconds) {
    const double before = device();
    if (seconds <= 0 || before <= 0) return;
    const double share = 1 - seconds / before;
    parts[static_cast<std::size_t>(p)] -= seconds;
    for (double& b : basis) b *= share;
    low *= share;
    high *= share;
  }
  double part(Part p) const { return parts[static_cast<std::size_t>(p)]; }
  double device() const {
    double sum = 0;
    for (const double s : parts) sum += s;
    return sum;
  }
  /// Device and host run beside each other; whichever is slower holds a segment, and near a tie they mix: a power mean
  /// of exponent 4 fitted launch-bound runs slightly better than the maximum.
  double seconds() const {
    const double d = device();
    if (host <= 0 || d <= 0) return d + (d <= 0 ? host : 0);
    const double ratio = host / d;
    if (ratio < 0.05) return d;
    return d * std::sqrt(std::sqrt(1 + ratio * ratio * ratio * ratio));
  }
};

}  // namespace shardplan
