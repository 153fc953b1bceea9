#pragma once
// Remembers prices by shape: a direct-mapped cache per thread, so that concurrent const use needs no lock.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/basis.hpp"

namespace shardplan {

/// The words that name a shape, model included; zero where a kernel has fewer.
using KernelKey = std::array<std::uint64_t, 8>;

class KernelMemo {
 public:
  /// A number no other model of this process has: keys of different models never meet.
  static std::uint64_t new_model() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }

  /// The remembered price of `key`, or what `make()` returns, which is then remembered. A colliding shape is forgotten.
  template <class Make>
  static Price get(const KernelKey& key, Make&& make) {
    thread_local std::vector<Entry> entries(kEntries);
    Entry& entry = entries[hash(key) & (kEntries - 1)];
    if (entry.key == key) return entry.price;
    const Price price = make();  // may throw or recurse: only then is the entry overwritten
    Entry& again = entries[hash(key) & (kEntries - 1)];
    again.key = key;
    again.price = price;
    return price;
  }

 private:
  static constexpr std::size_t kEntries = 1u << 14;
  struct Entry {
    KernelKey key{};
    Price price;
  };
  /// Independent products, so that they run side by side; the high bits are folded in last.
  static std::size_t hash(const KernelKey& k) {
    const std::uint64_t a = k[0] * 0x9E3779B97F4A7C15ULL + k[1] * 0xC2B2AE3D27D4EB4FULL + k[2] * 0x165667B19E3779F9ULL;
    const std::uint64_t b = k[3] * 0xFF51AFD7ED558CCDULL + k[4] * 0xD6E8FEB86659FD93ULL + k[5] * 0xA0761D6478BD642FULL;
    const std::uint64_t c = k[6] * 0xE7037ED1A0B428DBULL + k[7] * 0x8EBC6AF09C88C6E3ULL;
    std::uint64_t h = a ^ (b << 17 | b >> 47) ^ (c << 31 | c >> 33);
    h *= 0xFF51AFD7ED558CCDULL;
    return static_cast<std::size_t>(h ^ h >> 32);
  }
};

}  // namespace shardplan
