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
  static std::size_t hash(const KernelKey& key) {
    std::uint64_t h = 0x9E3779B97F4A7C15ULL;
    for (const std::uint64_t word : key) h = (h ^ word) * 0xFF51AFD7ED558CCDULL, h ^= h >> 32;
    return static_cast<std::size_t>(h);
  }
};

}  // namespace shardplan
