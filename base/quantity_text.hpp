#pragma once
// Texts that carry units: "400 Gbit/s", "80 GiB", "25 MB", "3.4 ms", "8k". In files and in options alike.
// kB/MB/GB/TB are powers of ten, KiB/MiB/GiB/TiB of two. A bare number is in the base unit (bytes, seconds, bytes/s,
// FLOP/s). `where` is the option or file path for errors (InputError). Negative, NaN, infinite and overflowing values
// are refused.
#include <cstdint>
#include <string>
#include <string_view>

namespace shardplan {

double parse_bytes(std::string_view text, const std::string& where);
double parse_seconds(std::string_view text, const std::string& where);           // s ms us ns min h d
double parse_bytes_per_second(std::string_view text, const std::string& where);  // GB/s, GiB/s, Gbit/s, Gb/s, TB/s
double parse_flops_per_second(std::string_view text, const std::string& where);  // TFLOP/s, PFLOP/s, TFLOPS
double parse_watts(std::string_view text, const std::string& where);             // W, kW
double parse_number(std::string_view text, const std::string& where);            // plain, finite

/// A whole number, 0 <= n <= 2^53; no unit. "010" is ten.
std::int64_t parse_count(std::string_view text, const std::string& where);
/// Sequence lengths and batch tokens: k = 1,024, M = 1,048,576.
std::int64_t parse_binary_count(std::string_view text, const std::string& where);
/// Training tokens: k, M, B, T are powers of ten ("15T", "1.5B").
double parse_decimal_count(std::string_view text, const std::string& where);

}  // namespace shardplan
