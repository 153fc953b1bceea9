#include "base/number_text.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <span>

namespace shardplan {
namespace {

struct Step {
  double size;
  const char* unit;
};

std::string scaled(double value, std::span<const Step> steps) {
  if (!std::isfinite(value)) return "not finite";
  const Step* chosen = &steps.back();
  // A value that would print as 1000 (or 1024) of the smaller unit belongs to the larger one.
  for (const Step& step : steps) {
    if (std::abs(value) >= step.size * 0.9995) {
      chosen = &step;
      break;
    }
  }
  return text_of_number(value / chosen->size, 3) + " " + chosen->unit;
}

}  // namespace

std::string text_of_number(double value, int significant) {
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  std::array<char, 64> buffer{};
  if (magnitude < 1e-4 || magnitude >= 1e9) {
    std::snprintf(buffer.data(), buffer.size(), "%.*e", significant - 1, value);
    return buffer.data();
  }
  const int whole_digits = static_cast<int>(std::floor(std::log10(magnitude))) + 1;
  const int decimals = significant > whole_digits ? significant - whole_digits : 0;
  std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  return buffer.data();
}

std::string text_of_bytes(double bytes) {
  constexpr std::array<Step, 5> steps{
      {{1099511627776.0, "TiB"}, {1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}, {1.0, "B"}}};
  return scaled(bytes, steps);
}

std::string text_of_decimal_bytes(double bytes) {
  constexpr std::array<Step, 6> steps{{{1e15, "PB"}, {1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1.0, "B"}}};
  return scaled(bytes, steps);
}

std::string text_of_seconds(double seconds) {
  constexpr std::array<Step, 7> steps{
      {{86400.0 * 3, "days"}, {3600.0, "h"}, {60.0 * 3, "min"}, {1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}};
  return scaled(seconds, steps);
}

std::string text_of_flops_per_second(double rate) {
  constexpr std::array<Step, 4> steps{{{1e15, "PFLOP/s"}, {1e12, "TFLOP/s"}, {1e9, "GFLOP/s"}, {1.0, "FLOP/s"}}};
  return scaled(rate, steps);
}

std::string text_of_flops(double flops) {
  constexpr std::array<Step, 6> steps{
      {{1e15, "PFLOP"}, {1e12, "TFLOP"}, {1e9, "GFLOP"}, {1e6, "MFLOP"}, {1e3, "kFLOP"}, {1.0, "FLOP"}}};
  return scaled(flops, steps);
}

std::string text_of_bytes_per_second(double rate) {
  constexpr std::array<Step, 5> steps{{{1e12, "TB/s"}, {1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "kB/s"}, {1.0, "B/s"}}};
  return scaled(rate, steps);
}

std::string text_of_percent(double fraction) { return text_of_number(100 * fraction, 3) + " %"; }

std::string text_of_count(std::int64_t n) {
  const bool negative = n < 0;
  std::string digits = std::to_string(n < 0 ? -n : n), out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return negative ? "-" + out : out;
}

std::string counted(std::int64_t n, const char* noun) {
  std::string out = text_of_count(n) + " " + noun;
  if (n == 1) return out;
  return out + (out.size() > 2 && out.compare(out.size() - 2, 2, "ch") == 0 ? "es" : "s");
}

}  // namespace shardplan
