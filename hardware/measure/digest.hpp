#pragma once
// Bits of floats as one number, so that results of different schedules and transports can be compared exactly.
#include <bit>
#include <cstdint>
#include <span>

namespace shardplan {

/// FNV-1a over 32-bit words, seeded with the item's identity: sums of digests do not depend on the order of the items.
inline std::uint64_t digest_of(std::span<const float> values, std::uint64_t identity) {
  std::uint64_t h = 0xcbf29ce484222325ULL ^ (identity * 0x9E3779B97F4A7C15ULL);
  for (const float v : values) h = (h ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ULL;
  return h;
}

}  // namespace shardplan
