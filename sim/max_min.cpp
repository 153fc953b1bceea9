#include "sim/max_min.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/errors.hpp"
#include "sim/max_min_classes.hpp"

namespace shardplan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;  // of a flow's bytes: what counts as sent at tolerance 0

void check(const FlowSet& set) {
  const auto links = static_cast<std::int32_t>(set.capacity.size());
  for (const std::int32_t l : set.link) {
    if (l < 0 || l >= links) throw InputError("flows", "no link " + std::to_string(l));
    if (!(set.capacity[l] > 0)) throw InputError("flows", "link " + std::to_string(l) + " has no capacity");
  }
  for (const double b : set.bytes) {
    if (!(b >= 0) || !std::isfinite(b)) throw InputError("flows", "a flow's bytes must be finite and not negative");
  }
}

/// State of a class whose flows are still sending: bytes that its next flow to end has left, and that flow's size; size
/// 0 = no flow is left. K links stand inside (missing ones name a spare link); K = 0 keeps them in the FlowSet.
template <int K>
struct Slot {
  double left, size;
  std::int32_t link[K];
};
template <>
struct Slot<2> {
  double left, size;
  std::int32_t link[2];
  std::int32_t place[2];  // where the lists of the two links name this class
};
template <>
struct Slot<0> {
  double left, size;
  const std::int32_t* link;
  std::int32_t links;
};

/// A class in the list of a link; of two links also the other one, so that filling need not look at the class.
template <int K>
struct Entry {
  std::int32_t slot;
};
template <>
struct Entry<2> {
  std::int32_t slot, other;
};

/// Progressive filling and stepping over classes. K = most links of a class, 0 = any number.
template <int K>
class Solver {
 public:
  Solver(const FlowSet& set, const FlowClasses& classes, double tolerance)
      : set_(set),
        classes_(classes),
        tolerance_(tolerance),
        spare_(static_cast<std::int32_t>(set.capacity.size())),
        closed_link_(spare_ + 1) {
    const std::size_t links = set.capacity.size() + 2;
    for (auto* by_link : {&flows_on_, &level_, &open_, &left_, &flows_left_, &carried_, &freed_})
      by_link->resize(links);
    slots_.reserve(static_cast<std::size_t>(classes.count()));
    next_.reserve(slots_.capacity());
    for (std::int64_t c = 0; c < classes.count(); ++c) add_slot(c);
    build_lists();
  }

  bool done() const { return slots_.empty(); }
  std::size_t size() const { return slots_.size(); }

  /// Finds the level of every link for a step that begins at `now`: the rate of the classes whose bottleneck it is.
  void fill(double now) {
    const double bonus = carries_ ? 1 / (tolerance_ * now) : 0;
    heap_.clear();
    for (std::int32_t l = 0; l < spare_; ++l) {
      level_[l] = kInfinity;
      open_[l] = 1;
      left_[l] = set_.capacity[l] + carried_[l] * bonus;
      flows_left_[l] = flows_on_[l];
      if (flows_on_[l] > 0) heap_.push_back({left_[l] / flows_on_[l], l});
    }
    level_[spare_] = kInfinity;
    open_[spare_] = 1;
    level_[closed_link_] = open_[closed_link_] = 0;
    std::make_heap(heap_.begin(), heap_.end(), later);
    double share = 0;
    while (!heap_.empty()) {
      const std::int32_t link = heap_.front().link;
      if (flows_left_[link] > 0) {
        // Shares only grow while classes get their rates (each gets at most the share of all its links): old keys are
        // lower bounds, looked at anew when they come first.
        const double fair = std::max(share, left_[link] / flows_left_[link]);
        if (fair > heap_.front().share) {
          heap_.front().share = fair;
          sift_down();
          if (heap_.front().link != link) continue;
        }
        share = level_[link] = fair;
        open_[link] = 0;
        take_from_others(link, share);
      }
      std::pop_heap(heap_.begin(), heap_.end(), later);
      heap_.pop_back();
    }
  }

  double rate(std::size_t s) const {
    double least = kInfinity;
    for (const std::int32_t* l = begin(slots_[s]); l != end(slots_[s]); ++l) least = std::min(least, level_[*l]);
    return least;
  }

  /// Runs the step that begins at `now`, writes the finishes of the flows that end in it and returns its seconds.
  double step(double now, std::vector<double>& finish) {
    const double seconds = carries_ ? tolerance_ * now : first_end(now);
    std::fill(freed_.begin(), freed_.end(), 0.0);
    const std::int64_t ended_before = ended_;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      Slot<K>& slot = slots_[s];
      const double sent = rate(s) * seconds;
      if (slot.left - sent <= kRounding * slot.size && slot.size > 0) end_flows(s, now, seconds, finish);
      slot.left -= sent;
    }
    carries_ = tolerance_ > 0 && ended_ != ended_before;
    carried_.swap(freed_);
    if (4 * closed_ >= slots_.size()) compact();
    return seconds;
  }

 private:
  struct Candidate {
    double share;
    std::int32_t link;
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return a.share != b.share ? a.share > b.share : a.link > b.link;
  }

  /// Restores the heap after its first key has grown.
  void sift_down() {
    std::size_t at = 0;
    const Candidate moving = heap_[0];
    for (;;) {
      std::size_t child = 2 * at + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && later(heap_[child], heap_[child + 1])) ++child;
      if (!later(moving, heap_[child])) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = moving;
  }

  void add_slot(std::int64_t c) {
    const std::int64_t position = classes_.first[c];
    const std::int32_t f = classes_.flow[position];
    Slot<K> slot{};
    slot.left = slot.size = set_.bytes[f];
    const std::int32_t* links = set_.link.data() + set_.first[f];
    const auto n = static_cast<std::int32_t>(set_.first[f + 1] - set_.first[f]);
    if constexpr (K == 0) {
      slot.link = links;
      slot.links = n;
    } else {
      for (int i = 0; i < K; ++i) slot.link[i] = i < n ? links[i] : spare_;
    }
    slots_.push_back(slot);
    next_.push_back(position);
    if (!classes_.single) {
      last_.push_back(classes_.first[c + 1]);
      members_.push_back(static_cast<double>(classes_.first[c + 1] - position));
    }
  }

  static const std::int32_t* begin(const Slot<K>& slot) { return slot.link; }
  static const std::int32_t* end(const Slot<K>& slot) {
    if constexpr (K == 0) {
      return slot.link + slot.links;
    } else {
      return slot.link + K;
    }
  }
  /// Flows of a class that are still sending.
  double members(std::size_t s) const { return members_.empty() ? 1.0 : members_[s]; }

  /// Which classes use a link, and how many flows.
  void build_lists() {
    list_first_.assign(level_.size() + 1, 0);
    std::fill(flows_on_.begin(), flows_on_.end(), 0.0);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      for (const std::int32_t* l = begin(slots_[s]); l != end(slots_[s]); ++l) {
        ++list_first_[*l + 1];
        flows_on_[*l] += members(s);
      }
    }
    std::partial_sum(list_first_.begin(), list_first_.end(), list_first_.begin());
    list_.resize(static_cast<std::size_t>(list_first_.back()));
    std::vector<std::int64_t> at(list_first_.begin(), list_first_.end() - 1);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      for (const std::int32_t* l = begin(slots_[s]); l != end(slots_[s]); ++l) {
        if constexpr (K == 2) {
          slots_[s].place[l - begin(slots_[s])] = static_cast<std::int32_t>(at[*l]);
          list_[at[*l]++] = {static_cast<std::int32_t>(s), slots_[s].link[l == begin(slots_[s])]};
        } else {
          list_[at[*l]++] = {static_cast<std::int32_t>(s)};
        }
      }
    }
  }

  /// Link `link` has got its level: takes what its open classes use from their other links. A class is open where none
  /// of its other links has a level. For two links without a branch: whether a class is open is as good as random.
  void take_from_others(std::int32_t link, double share) {
    const Entry<K>* const last = list_.data() + list_first_[link + 1];
    for (const Entry<K>* entry = list_.data() + list_first_[link]; entry != last; ++entry) {
      if constexpr (K == 2) {
        const double flows = open_[entry->other] * members(static_cast<std::size_t>(entry->slot));
        left_[entry->other] -= share * flows;
        flows_left_[entry->other] -= flows;
      } else {
        const Slot<K>& slot = slots_[entry->slot];
        bool open = slot.size > 0;
        for (const std::int32_t* l = begin(slot); l != end(slot); ++l) open &= *l == link || open_[*l] > 0;
        if (!open) continue;
        const double flows = members(static_cast<std::size_t>(entry->slot));
        for (const std::int32_t* l = begin(slot); l != end(slot); ++l) {
          left_[*l] -= share * flows;
          flows_left_[*l] -= flows;
        }
      }
    }
  }

  /// The step to the first end, and on by the tolerance of the time until then.
  double first_end(double now) const {
    double soonest = kInfinity;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].size > 0) soonest = std::min(soonest, slots_[s].left / rate(s));
    }
    return soonest + tolerance_ * (now + soonest);
  }

  /// Ends the flows of class s that have sent their bytes within `seconds`; what they leave free goes to the next step.
  void end_flows(std::size_t s, double now, double seconds, std::vector<double>& finish) {
    Slot<K>& slot = slots_[s];
    const double speed = rate(s);
    double flows = 0, freed = 0;
    while (slot.size > 0 && slot.left - speed * seconds <= kRounding * slot.size) {
      const double own = std::min(slot.left / speed, seconds);
      finish[classes_.flow[next_[s]]] = now + own;
      freed += speed * (seconds - own);
      ++flows;
      ++next_[s];
      if (classes_.single || next_[s] == last_[s]) {
        slot.size = 0;
      } else {
        const double size = set_.bytes[classes_.flow[next_[s]]];
        slot.left += size - slot.size;
        slot.size = size;
      }
    }
    for (const std::int32_t* l = begin(slot); l != end(slot); ++l) {
      flows_on_[*l] -= flows;
      freed_[*l] += freed;
    }
    if (!members_.empty()) members_[s] -= flows;
    ended_ += static_cast<std::int64_t>(flows);
    if (slot.size == 0) close(slot);
  }

  /// A class without flows stays in the lists until compact(), with a link that has a level: it takes nothing.
  void close(Slot<K>& slot) {
    ++closed_;
    if constexpr (K == 2) {
      for (int i = 0; i < 2; ++i) list_[slot.place[i]].other = closed_link_;
    }
  }

  /// Drops the classes whose flows have all ended.
  void compact() {
    std::size_t keep = 0;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].size == 0) continue;
      slots_[keep] = slots_[s];
      next_[keep] = next_[s];
      if (!members_.empty()) {
        members_[keep] = members_[s];
        last_[keep] = last_[s];
      }
      ++keep;
    }
    slots_.resize(keep);
    next_.resize(keep);
    if (!members_.empty()) {
      members_.resize(keep);
      last_.resize(keep);
    }
    closed_ = 0;
    build_lists();
  }

  const FlowSet& set_;
  const FlowClasses& classes_;
  const double tolerance_;
  const std::int32_t spare_;        // link of a class with fewer than K: never has a level
  const std::int32_t closed_link_;  // link of a class without flows: always has a level
  std::vector<Slot<K>> slots_;
  std::vector<std::int64_t> next_,
      last_;                     // by slot: position in FlowClasses::flow of the next flow to end, and past the last
  std::vector<double> members_;  // by slot: flows that are still sending; empty where every class has one
  // By link: flows that are still sending; level; 1 while it has none, else 0; capacity and flows that the filling has
  // left; bytes that ended flows left free in the last step, and in this one.
  std::vector<double> flows_on_, level_, open_, left_, flows_left_, carried_, freed_;
  std::vector<std::int64_t> list_first_;
  std::vector<Entry<K>> list_;
  std::vector<Candidate> heap_;
  bool carries_ = false;    // whether the last step left bytes free
  std::int64_t ended_ = 0;  // flows
  std::size_t closed_ = 0;  // classes since the last compact()
};

template <int K>
void complete(const FlowSet& set, const FlowClasses& classes, double tolerance, FlowTimes& times) {
  Solver<K> solver(set, classes, tolerance);
  double now = 0;
  while (!solver.done()) {
    solver.fill(now);
    now += solver.step(now, times.finish);
    ++times.steps;
  }
}

std::int64_t most_links(const FlowSet& set) {
  std::int64_t most = 0;
  for (std::int64_t f = 0; f < set.flows(); ++f) most = std::max(most, set.first[f + 1] - set.first[f]);
  return most;
}

}  // namespace

void FlowSet::add(const std::vector<std::int32_t>& links, double flow_bytes) {
  link.insert(link.end(), links.begin(), links.end());
  first.push_back(static_cast<std::int64_t>(link.size()));
  bytes.push_back(flow_bytes);
}

std::vector<double> max_min_rates(const FlowSet& given) {
  check(given);
  FlowSet set = given;
  std::fill(set.bytes.begin(), set.bytes.end(), 1.0);
  const FlowClasses classes = classes_of(set, true);
  std::vector<double> rates(set.bytes.size(), kInfinity);
  Solver<0> solver(set, classes, 0);
  solver.fill(0);
  for (std::size_t s = 0; s < solver.size(); ++s) {
    for (auto i = classes.first[s]; i < classes.first[s + 1]; ++i) rates[classes.flow[i]] = solver.rate(s);
  }
  return rates;
}

FlowTimes complete_flows(const FlowSet& set, const FlowOptions& options) {
  check(set);
  if (!(options.tolerance >= 0 && options.tolerance < 1)) throw InputError("flows", "the tolerance must be in [0, 1)");
  if (set.link.size() > (1u << 30) || set.bytes.size() > (1u << 30)) throw InputError("flows", "too many flows");
  const FlowClasses classes = classes_of(set, options.find_classes);
  FlowTimes times;
  times.finish.assign(set.bytes.size(), 0.0);
  times.classes = std::max<std::int64_t>(0, classes.count());
  if (times.classes > 0) {
    const std::int64_t most = most_links(set);
    if (most <= 2) {
      complete<2>(set, classes, options.tolerance, times);
    } else if (most <= 4) {
      complete<4>(set, classes, options.tolerance, times);
    } else {
      complete<0>(set, classes, options.tolerance, times);
    }
  }
  for (const double finish : times.finish) times.end = std::max(times.end, finish);
  return times;
}

BusiestLink busiest_link(const FlowSet& set) {
  check(set);
  std::vector<double> load(set.capacity.size(), 0.0);
  for (std::int64_t f = 0; f < set.flows(); ++f) {
    for (auto i = set.first[f]; i < set.first[f + 1]; ++i) load[set.link[i]] += set.bytes[f];
  }
  BusiestLink busiest;
  for (std::size_t l = 0; l < load.size(); ++l) {
    const double seconds = load[l] > 0 ? load[l] / set.capacity[l] : 0;
    if (seconds > busiest.seconds) busiest = {seconds, static_cast<std::int32_t>(l)};
  }
  return busiest;
}

}  // namespace shardplan
