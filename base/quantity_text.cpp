#include "base/quantity_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "base/errors.hpp"

namespace shardplan {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  return '"' + std::string(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "") + '"';
}

/// Splits "3.4 ms" into 3.4 and "ms".
std::pair<double, std::string_view> split_number(std::string_view text, const std::string& where,
                                                 std::string_view expected) {
  text = trimmed(text);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string wanted = "expected " + std::string(expected) + ", got " + shown(text);
  if (error == std::errc::result_out_of_range) throw InputError(where, "number out of range: " + shown(text));
  if (error != std::errc() || !std::isfinite(value)) throw InputError(where, wanted);
  if (value < 0) throw InputError(where, "must not be negative: " + shown(text));
  return {value, trimmed(text.substr(static_cast<std::size_t>(end - text.data())))};
}

double with_unit(std::string_view text, const std::string& where, std::span<const Unit> units,
                 std::string_view expected) {
  const auto [value, unit] = split_number(text, where, expected);
  if (unit.empty()) return value;
  for (const Unit& u : units) {
    if (u.name != unit) continue;
    const double result = value * u.factor;
    if (!std::isfinite(result)) throw InputError(where, "number out of range: " + shown(text));
    return result;
  }
  throw InputError(where, "expected " + std::string(expected) + ", got unit " + shown(unit) + " in " + shown(text));
}

constexpr double kKi = 1024.0, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;
constexpr double kLargestCount = 9007199254740992.0;  // 2^53: every whole number up to it is a double

double whole(double value, std::string_view text, const std::string& where) {
  if (value != std::floor(value)) throw InputError(where, "expected a whole number, got " + shown(text));
  if (value > kLargestCount) throw InputError(where, "number out of range: " + shown(text));
  return value;
}

}  // namespace

double parse_bytes(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 11> units{{{"B", 1},
                                        {"kB", 1e3},
                                        {"KB", 1e3},
                                        {"MB", 1e6},
                                        {"GB", 1e9},
                                        {"TB", 1e12},
                                        {"PB", 1e15},
                                        {"KiB", kKi},
                                        {"MiB", kMi},
                                        {"GiB", kGi},
                                        {"TiB", kTi}}};
  return with_unit(text, where, units, "bytes such as \"80 GiB\" or \"25 MB\"");
}

double parse_seconds(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 7> units{
      {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}, {"d", 86400}}};
  return with_unit(text, where, units, "a time such as \"3.4 ms\"");
}

double parse_bytes_per_second(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 15> units{{{"B/s", 1},
                                        {"kB/s", 1e3},
                                        {"MB/s", 1e6},
                                        {"GB/s", 1e9},
                                        {"TB/s", 1e12},
                                        {"KiB/s", kKi},
                                        {"MiB/s", kMi},
                                        {"GiB/s", kGi},
                                        {"TiB/s", kTi},
                                        {"Gbit/s", 1e9 / 8},
                                        {"Gb/s", 1e9 / 8},
                                        {"Gbps", 1e9 / 8},
                                        {"Tbit/s", 1e12 / 8},
                                        {"Mbit/s", 1e6 / 8},
                                        {"Tb/s", 1e12 / 8}}};
  return with_unit(text, where, units, "a rate such as \"400 Gbit/s\" or \"450 GB/s\"");
}

double parse_flops_per_second(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 9> units{{{"FLOP/s", 1},
                                       {"GFLOP/s", 1e9},
                                       {"TFLOP/s", 1e12},
                                       {"PFLOP/s", 1e15},
                                       {"EFLOP/s", 1e18},
                                       {"GFLOPS", 1e9},
                                       {"TFLOPS", 1e12},
                                       {"PFLOPS", 1e15},
                                       {"EFLOPS", 1e18}}};
  return with_unit(text, where, units, "a rate such as \"989 TFLOP/s\"");
}

double parse_watts(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 2> units{{{"W", 1}, {"kW", 1e3}}};
  return with_unit(text, where, units, "a power such as \"700 W\"");
}

double parse_number(std::string_view text, const std::string& where) { return with_unit(text, where, {}, "a number"); }

std::int64_t parse_count(std::string_view text, const std::string& where) {
  return static_cast<std::int64_t>(whole(with_unit(text, where, {}, "a whole number"), text, where));
}

std::int64_t parse_binary_count(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 4> units{{{"k", kKi}, {"K", kKi}, {"M", kMi}, {"m", kMi}}};
  return static_cast<std::int64_t>(
      whole(with_unit(text, where, units, "a whole number such as 8192 or \"8k\""), text, where));
}

double parse_decimal_count(std::string_view text, const std::string& where) {
  constexpr std::array<Unit, 5> units{{{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}};
  return with_unit(text, where, units, "a count such as \"15T\" or \"300B\"");
}

}  // namespace shardplan
