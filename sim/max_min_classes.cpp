#include "sim/max_min_classes.hpp"

#include <algorithm>
#include <numeric>

namespace shardplan {
namespace {

std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::uint64_t hash_of_links(const FlowSet& set, std::int64_t f) {
  std::uint64_t hash = 0x9E3779B97F4A7C15ULL;
  for (auto i = set.first[f]; i < set.first[f + 1]; ++i)
    hash = mixed(hash ^ static_cast<std::uint64_t>(set.link[i] + 1));
  return hash;
}

bool same_links(const FlowSet& set, std::int64_t a, std::int64_t b) {
  const auto n = set.first[a + 1] - set.first[a];
  if (n != set.first[b + 1] - set.first[b]) return false;
  return std::equal(set.link.begin() + set.first[a], set.link.begin() + set.first[a] + n,
                    set.link.begin() + set.first[b]);
}

/// Whether every flow's links come after those of the flow before it, compared as words: then all differ. A list of all
/// pairs in order is like that, and needs no table.
bool ascending(const FlowSet& set, const std::vector<std::int32_t>& flows) {
  const auto links = set.link.begin();
  for (std::size_t i = 1; i < flows.size(); ++i) {
    const std::int32_t a = flows[i - 1], b = flows[i];
    if (!std::lexicographical_compare(links + set.first[a], links + set.first[a + 1], links + set.first[b],
                                      links + set.first[b + 1])) {
      return false;
    }
  }
  return true;
}

/// Class of each of `flows`, numbered by first appearance; links in another order are another class, which costs time
/// only.
std::vector<std::int32_t> numbered_by_links(const FlowSet& set, const std::vector<std::int32_t>& flows) {
  std::size_t slots = 16;
  while (slots < 2 * flows.size()) slots *= 2;
  struct Entry {
    std::int32_t flow = -1, number = 0;
  };
  std::vector<Entry> table(slots);
  std::vector<std::int32_t> numbers;
  numbers.reserve(flows.size());
  std::int32_t classes = 0;
  for (const std::int32_t f : flows) {
    std::size_t at = hash_of_links(set, f) & (slots - 1);
    while (table[at].flow >= 0 && !same_links(set, table[at].flow, f)) at = (at + 1) & (slots - 1);
    if (table[at].flow < 0) table[at] = {f, classes++};
    numbers.push_back(table[at].number);
  }
  return numbers;
}

}  // namespace

FlowClasses classes_of(const FlowSet& set, bool find) {
  std::vector<std::int32_t> flows;
  flows.reserve(set.bytes.size());
  for (std::int32_t f = 0; f < set.flows(); ++f) {
    if (set.bytes[f] > 0 && set.first[f + 1] > set.first[f]) flows.push_back(f);
  }
  const std::vector<std::int32_t> number =
      find && !ascending(set, flows) ? numbered_by_links(set, flows) : std::vector<std::int32_t>();
  const std::size_t count =
      number.empty() ? flows.size() : static_cast<std::size_t>(*std::max_element(number.begin(), number.end())) + 1;
  FlowClasses classes;
  classes.single = count == flows.size();
  classes.first.resize(count + 1);
  if (classes.single) {
    std::iota(classes.first.begin(), classes.first.end(), 0);
    classes.flow = std::move(flows);
    return classes;
  }
  for (const std::int32_t c : number) ++classes.first[c + 1];
  std::partial_sum(classes.first.begin(), classes.first.end(), classes.first.begin());
  classes.flow.resize(flows.size());
  std::vector<std::int64_t> at(classes.first.begin(), classes.first.end() - 1);
  for (std::size_t i = 0; i < flows.size(); ++i) classes.flow[at[number[i]]++] = flows[i];
  for (std::size_t c = 0; c < count; ++c) {
    std::stable_sort(classes.flow.begin() + classes.first[c], classes.flow.begin() + classes.first[c + 1],
                     [&](std::int32_t x, std::int32_t y) { return set.bytes[x] < set.bytes[y]; });
  }
  return classes;
}

}  // namespace shardplan
