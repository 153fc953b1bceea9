#pragma once
// SHA-256 (FIPS 180-4), so that a measuring file can name exactly what it was made from.
#include <string>
#include <string_view>

namespace shardplan {

/// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view text);

}  // namespace shardplan
