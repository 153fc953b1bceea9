#include "layouts/expert_placement.hpp"

#include <algorithm>
#include <numeric>
#include <queue>
#include <string>

#include "base/errors.hpp"

namespace shardplan {

namespace {

struct Copy {
  double load;
  std::int32_t expert;
};

/// Packing under way: what each GPU holds and how much more it may.
struct Packing {
  std::vector<std::vector<Copy>> held;
  std::vector<double> load;
  std::vector<std::size_t> slots;

  Packing(int gpus, std::size_t copies)
      : held(static_cast<std::size_t>(gpus)), load(held.size(), 0.0), slots(held.size()) {
    for (std::size_t g = 0; g < slots.size(); ++g) slots[g] = copies / slots.size() + (g < copies % slots.size());
  }
  bool holds(std::size_t gpu, std::int32_t expert) const {
    return std::any_of(held[gpu].begin(), held[gpu].end(), [&](const Copy& c) { return c.expert == expert; });
  }
  void put(std::size_t gpu, Copy copy) {
    held[gpu].push_back(copy);
    load[gpu] += copy.load;
  }
};

std::vector<std::int32_t> count_copies(std::span<const double> loads, std::int64_t redundant) {
  std::vector<std::int32_t> copies(loads.size(), 1);
  using Entry = std::pair<double, std::int32_t>;  // load per copy; ties to the lower expert
  auto less = [](const Entry& a, const Entry& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<Entry, std::vector<Entry>, decltype(less)> queue(less);
  for (std::size_t i = 0; i < loads.size(); ++i) queue.emplace(loads[i], static_cast<std::int32_t>(i));
  for (std::int64_t r = 0; r < redundant; ++r) {
    const auto i = static_cast<std::size_t>(queue.top().second);
    queue.pop();
    ++copies[i];
    queue.emplace(loads[i] / copies[i], static_cast<std::int32_t>(i));
  }
  return copies;
}

std::vector<Copy> sorted_copies(std::span<const double> loads, std::span<const std::int32_t> copies) {
  std::vector<Copy> out;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    for (std::int32_t c = 0; c < copies[i]; ++c) out.push_back({loads[i] / copies[i], static_cast<std::int32_t>(i)});
  }
  std::sort(out.begin(), out.end(),
            [](const Copy& a, const Copy& b) { return a.load != b.load ? a.load > b.load : a.expert < b.expert; });
  return out;
}

/// The least loaded GPU with room, one without this expert first; ties to the lower number.
std::size_t best_gpu(const Packing& packing, std::int32_t expert) {
  std::size_t best = packing.load.size();
  bool best_fresh = false;
  for (std::size_t g = 0; g < packing.load.size(); ++g) {
    if (packing.held[g].size() >= packing.slots[g]) continue;
    const bool fresh = !packing.holds(g, expert);
    if (best == packing.load.size() || (fresh && !best_fresh) ||
        (fresh == best_fresh && packing.load[g] < packing.load[best])) {
      best = g;
      best_fresh = fresh;
    }
  }
  return best;
}

/// One exchange that lowers the busiest GPU `hot`: the swap (or move into a free slot) with the least resulting maximum
/// of the two GPUs. False where none lowers it.
bool improve(Packing& packing, std::size_t hot) {
  double best = packing.load[hot] * (1 - 1e-12);
  std::size_t from = 0, other = 0, with = 0;
  bool found = false;
  for (std::size_t a = 0; a < packing.held[hot].size(); ++a) {
    const Copy mine = packing.held[hot][a];
    for (std::size_t g = 0; g < packing.load.size(); ++g) {
      if (g == hot || packing.holds(g, mine.expert)) continue;
      const std::size_t theirs = packing.held[g].size();
      for (std::size_t b = 0; b <= theirs; ++b) {
        if (b == theirs && theirs >= packing.slots[g]) continue;  // no free slot to move into
        const double back = b < theirs ? packing.held[g][b].load : 0;
        if (back >= mine.load || (b < theirs && packing.holds(hot, packing.held[g][b].expert))) continue;
        const double top = std::max(packing.load[hot] - mine.load + back, packing.load[g] + mine.load - back);
        if (top < best) best = top, from = a, other = g, with = b, found = true;
      }
    }
  }
  if (!found) return false;
  const Copy mine = packing.held[hot][from];
  packing.load[hot] -= mine.load;
  packing.load[other] += mine.load;
  if (with == packing.held[other].size()) {
    packing.held[hot].erase(packing.held[hot].begin() + static_cast<std::ptrdiff_t>(from));
    packing.held[other].push_back(mine);
  } else {
    const Copy back = packing.held[other][with];
    packing.load[hot] += back.load;
    packing.load[other] -= back.load;
    packing.held[hot][from] = back;
    packing.held[other][with] = mine;
  }
  return true;
}

std::vector<std::vector<std::int32_t>> pack(const std::vector<Copy>& copies, int gpus) {
  Packing packing(gpus, copies.size());
  for (const Copy& copy : copies) packing.put(best_gpu(packing, copy.expert), copy);
  for (int round = 0; round < 2000; ++round) {
    const auto hot = std::max_element(packing.load.begin(), packing.load.end()) - packing.load.begin();
    if (!improve(packing, static_cast<std::size_t>(hot))) break;
  }
  std::vector<std::vector<std::int32_t>> out;
  for (const auto& held : packing.held) {
    std::vector<std::int32_t> experts;
    for (const Copy& copy : held) experts.push_back(copy.expert);
    std::sort(experts.begin(), experts.end());
    out.push_back(std::move(experts));
  }
  return out;
}

void check_sizes(std::size_t experts, int gpus, std::int64_t redundant) {
  if (gpus < 1) throw InputError("--ep", "needs at least one GPU");
  if (redundant < 0) throw InputError("--redundant", "cannot be negative");
  if (redundant > static_cast<std::int64_t>(experts) * (gpus - 1)) {
    throw InputError("--redundant", "more copies than one of every expert on every GPU");
  }
}

}  // namespace

std::int64_t ExpertPlacement::physical() const {
  return std::accumulate(copies.begin(), copies.end(), std::int64_t{0});
}

ExpertPlacement place_contiguous(std::int64_t experts, int gpus) {
  ExpertPlacement out;
  out.on_gpu.resize(static_cast<std::size_t>(gpus));
  out.copies.assign(static_cast<std::size_t>(experts), 1);
  for (std::int64_t i = 0; i < experts; ++i)
    out.on_gpu[static_cast<std::size_t>(i * gpus / experts)].push_back(static_cast<std::int32_t>(i));
  return out;
}

ExpertPlacement place_balanced(std::span<const double> loads, int gpus, std::int64_t redundant) {
  check_sizes(loads.size(), gpus, redundant);
  ExpertPlacement out;
  out.copies = count_copies(loads, redundant);
  out.on_gpu = pack(sorted_copies(loads, out.copies), gpus);
  return out;
}

ExpertPlacement place_hierarchical(std::span<const double> loads, int gpus, std::int64_t redundant, int groups,
                                   int nodes) {
  check_sizes(loads.size(), gpus, redundant);
  const auto experts = static_cast<std::int64_t>(loads.size());
  if (groups < 1 || nodes < 1 || groups % nodes != 0 || experts % groups != 0 || gpus % nodes != 0 ||
      redundant % nodes != 0) {
    throw InputError("--placement", "hierarchical needs groups, GPUs and redundant experts that divide over " +
                                        std::to_string(nodes) + " nodes (groups " + std::to_string(groups) + ", GPUs " +
                                        std::to_string(gpus) + ", redundant " + std::to_string(redundant) + ")");
  }
  const auto size = static_cast<std::size_t>(experts / groups);
  std::vector<Copy> group_loads;
  for (int g = 0; g < groups; ++g) {
    const auto first = loads.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(g) * size);
    group_loads.push_back({std::accumulate(first, first + static_cast<std::ptrdiff_t>(size), 0.0), g});
  }
  std::sort(group_loads.begin(), group_loads.end(),
            [](const Copy& a, const Copy& b) { return a.load != b.load ? a.load > b.load : a.expert < b.expert; });

  ExpertPlacement out;
  out.copies.assign(loads.size(), 0);
  for (const auto& node_groups : pack(group_loads, nodes)) {
    std::vector<std::int32_t> members;
    std::vector<double> member_loads;
    for (const std::int32_t g : node_groups) {
      for (std::size_t i = 0; i < size; ++i) {
        members.push_back(static_cast<std::int32_t>(static_cast<std::size_t>(g) * size + i));
        member_loads.push_back(loads[static_cast<std::size_t>(members.back())]);
      }
    }
    const ExpertPlacement node = place_balanced(member_loads, gpus / nodes, redundant / nodes);
    for (std::size_t i = 0; i < members.size(); ++i) out.copies[static_cast<std::size_t>(members[i])] = node.copies[i];
    for (const auto& gpu : node.on_gpu) {
      out.on_gpu.emplace_back();
      for (const std::int32_t i : gpu) out.on_gpu.back().push_back(members[static_cast<std::size_t>(i)]);
    }
  }
  return out;
}

std::vector<double> gpu_loads(const ExpertPlacement& placement, std::span<const double> loads) {
  std::vector<double> out;
  for (const auto& gpu : placement.on_gpu) {
    double sum = 0;
    for (const std::int32_t i : gpu)
      sum += loads[static_cast<std::size_t>(i)] / placement.copies[static_cast<std::size_t>(i)];
    out.push_back(sum);
  }
  return out;
}

double busiest_gpu_bound(const ExpertPlacement& placement, std::span<const double> loads) {
  const std::vector<Copy> copies = sorted_copies(loads, placement.copies);
  const std::size_t gpus = placement.on_gpu.size(), n = copies.size();
  if (n == 0) return 0;
  std::size_t slots = n;  // the fewest that a GPU holds
  for (const auto& gpu : placement.on_gpu) slots = std::min(slots, gpu.size());
  std::vector<double> top(n + 1, 0.0), low(n + 1, 0.0);  // sums of the i largest, of the i smallest
  for (std::size_t i = 0; i < n; ++i) {
    top[i + 1] = top[i] + copies[i].load;
    low[i + 1] = low[i] + copies[n - 1 - i].load;
  }
  double bound = top[n] / static_cast<double>(gpus);
  for (std::size_t m = 1; slots >= 1 && m <= gpus && m * slots <= n; ++m) {
    const double apart = (top[m] + low[m * (slots - 1)]) / static_cast<double>(m);
    // Two of the m share a GPU: at least the two smallest of them, and whatever fills the other slots.
    const double together =
        slots < 2 ? apart : (m < 2 ? apart : copies[m - 1].load + copies[m - 2].load + low[slots - 2]);
    bound = std::max(bound, std::min(apart, together));
  }
  for (std::size_t c = 1; c * gpus < n; ++c) bound = std::max(bound, top[c * gpus + 1] - top[c * gpus - c]);
  return bound;
}

}  // namespace shardplan
