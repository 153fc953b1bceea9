#pragma once
// Flows over the same links always have the same rate: one class. Private to sim/max_min.cpp.
#include <cstdint>
#include <vector>

#include "sim/max_min.hpp"

namespace shardplan {

/// Flows with bytes and links, grouped by their links. Class c = flow[first[c]] .. flow[first[c + 1] - 1], fewest bytes
/// first.
struct FlowClasses {
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> flow;
  bool single = true;  // one flow a class
  std::int64_t count() const { return static_cast<std::int64_t>(first.size()) - 1; }
};

/// With find = false every flow is a class of its own.
FlowClasses classes_of(const FlowSet&, bool find);

}  // namespace shardplan
