#include "layouts/search/search.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "layouts/search/expert_ways.hpp"
#include "layouts/step/layer_shelf.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {
namespace {

struct Open {
  Layout layout;
  std::shared_ptr<const MemoryReport> memory;
  double bound = 0;
  std::string text;
};

double value_of(Objective objective, const RankedPlan& p) {
  return objective == Objective::memory ? p.memory.peak_bytes() : p.step.step_time_s;
}

bool same_proposal(Layout a, Layout b) {
  for (Layout* l : {&a, &b}) {
    l->vpp = 1;
    l->recompute = Recompute::none;
    l->modules = {};
    l->transport.reset();
    l->ep_overlap.reset();
    if (l->schedule == "interleaved-1f1b" || l->schedule == "1f1b") l->schedule.clear();
  }
  return a == b;
}

constexpr const char* kBeatenByOwn = "another variant of the same layout is faster";

class Search {
 public:
  explicit Search(const PlanQuestion& q)
      : q_(q), ask_{q.model, q.pricer, {}, q.workload, q.stack, q.options, &shelf_}, ways_(ask_) {}

  PlanAnswer run() {
    const std::vector<Candidate> candidates =
        enumerate_candidates(q_.space, *q_.model, q_.workload, q_.stack, q_.pricer->cluster(), answer_.rejected);
    for (const auto& [reason, count] : answer_.rejected) answer_.refused += count;
    answer_.considered = answer_.refused;
    for (const Candidate& c : candidates) answer_.considered += static_cast<std::int64_t>(c.paths.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      fit(candidates[i]);
      if (q_.progress) q_.progress(static_cast<std::int64_t>(i), static_cast<std::int64_t>(2 * candidates.size()));
    }
    // Best bound first: once it exceeds the worst plan kept, no later layout can enter.
    std::sort(open_.begin(), open_.end(),
              [](const Open& a, const Open& b) { return a.bound != b.bound ? a.bound < b.bound : a.text < b.text; });
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (cannot_enter(open_[i].bound)) {
        answer_.pruned += static_cast<std::int64_t>(open_.size() - i);
        answer_.rejected["slower than the plans kept (lower bound)"] += static_cast<std::int64_t>(open_.size() - i);
        break;
      }
      if (beaten_by_own(open_[i])) {
        ++answer_.pruned;
        ++answer_.rejected[kBeatenByOwn];
        continue;
      }
      price(open_[i]);
      if (q_.progress)
        q_.progress(static_cast<std::int64_t>(candidates.size() + candidates.size() * i / open_.size()),
                    static_cast<std::int64_t>(2 * candidates.size()));
    }
    if (!answer_.plans.empty()) answer_.shortfall.reset();
    return std::move(answer_);
  }

 private:
  const StepQuestion& step_question(const Layout& layout) {
    ask_.layout = layout;
    return ask_;
  }

  /// The words that candidates differ in decide nothing else of the split.
  const std::vector<StageSlice>& slices_of(const Layout& l) {
    const auto [kept, fresh] = slices_.try_emplace({l.pp, l.slices(), l.placement()});
    if (fresh) kept->second = split_stages(l, *q_.model);
    return kept->second;
  }

  void fit(const Candidate& c) {
    // Slices and micro-batches in flight do not depend on what is recomputed.
    const std::vector<StageSlice>& slices = slices_of(c.layout);
    const std::int64_t m = microbatches(c.layout, q_.workload);
    auto [kept, fresh] = flights_.try_emplace(in_flight_key(c.layout, m));
    if (fresh) kept->second = in_flight(c.layout, m);
    const InFlight& flight = kept->second;
    MemoryOptions asked = q_.memory;
    asked.load = routed_load(q_.options.routing, *q_.model, c.layout, q_.pricer->cluster());
    asked.redundant = q_.options.routing.redundant;
    const auto all = static_cast<std::int64_t>(c.paths.size());
    for (const Layout& layout : c.ladder) {
      auto memory = std::make_shared<MemoryReport>(
          memory_of(*q_.model, q_.pricer->cluster(), layout, q_.workload, asked, slices, flight, enough_bytes()));
      const double over = memory->peak_bytes() - (1 - q_.headroom) * memory->capacity_bytes;
      if (over > 0) {
        note_shortfall(layout, *memory, over);
        continue;
      }
      open(layout, c.paths, std::move(memory), slices);
      return;
    }
    answer_.infeasible += all;
    answer_.rejected["does not fit in memory"] += all;
  }

  /// Bytes of a rank from which on a layout neither fits nor comes closest to it.
  double enough_bytes() const {
    const double limit =
        (1 - q_.headroom) * q_.pricer->cluster().gpu.capacity_bytes(q_.memory.rates == Rates::datasheet);
    if (!open_.empty()) return limit;
    return answer_.shortfall ? limit + answer_.shortfall->bytes : std::numeric_limits<double>::infinity();
  }

  /// Every way to the experts that may be the best of this layout, with its bound. They hold the same memory.
  void open(const Layout& layout, const std::vector<ExpertPath>& paths, std::shared_ptr<const MemoryReport> memory,
            const std::vector<StageSlice>& slices) {
    const std::vector<ExpertPath> kept = q_.exhaustive ? paths : ways_.undominated(layout, paths);
    const auto dominated = static_cast<std::int64_t>(paths.size() - kept.size());
    answer_.pruned += dominated;
    if (dominated > 0) answer_.rejected["another way to the experts is faster in every layer"] += dominated;
    const std::size_t first = open_.size();
    for (const ExpertPath& path : kept) {
      const Layout next = with_path(layout, path);
      open_.push_back({next, memory, step_lower_bound(step_question(next), slices), layout_text(next)});
    }
    if (q_.objective != Objective::memory) return;
    // One plan a layout: the fastest of what holds the same.
    const auto fastest = std::min_element(open_.begin() + static_cast<std::ptrdiff_t>(first), open_.end(),
                                          [](const Open& a, const Open& b) { return a.bound < b.bound; });
    Open best = std::move(*fastest);
    best.bound = best.memory->peak_bytes();
    answer_.pruned += static_cast<std::int64_t>(open_.size() - first - 1);
    if (open_.size() - first > 1) answer_.rejected[kBeatenByOwn] += static_cast<std::int64_t>(open_.size() - first - 1);
    open_.resize(first);
    open_.push_back(std::move(best));
  }

  void note_shortfall(const Layout& layout, const MemoryReport& memory, double bytes) {
    if (answer_.shortfall && answer_.shortfall->bytes <= bytes) return;
    const RankMemory& fullest = memory.ranks[static_cast<std::size_t>(memory.peak_rank)];
    const auto largest = std::max_element(fullest.terms.begin(), fullest.terms.end()) - fullest.terms.begin();
    answer_.shortfall = PlanAnswer::Shortfall{layout, memory.peak_rank,
                                              std::string(term_name(static_cast<MemoryTerm>(largest))), bytes};
  }

  bool cannot_enter(double bound) const {
    return !q_.exhaustive && static_cast<int>(answer_.plans.size()) >= q_.top &&
           bound >= value_of(q_.objective, answer_.plans.back());
  }

  /// A plan of the same proposal is kept that this one cannot beat.
  bool beaten_by_own(const Open& o) const {
    return !q_.exhaustive && std::any_of(answer_.plans.begin(), answer_.plans.end(), [&](const RankedPlan& p) {
      return value_of(q_.objective, p) <= o.bound && same_proposal(p.layout, o.layout);
    });
  }

  void price(const Open& o) {
    RankedPlan plan;
    plan.layout = o.layout;
    plan.memory = *o.memory;
    try {
      plan.step = simulate_step(step_question(o.layout));
    } catch (const InputError& e) {
      // An order that deadlocks for this number of micro-batches.
      ++answer_.rejected["its schedule cannot run: " + std::string(e.what()).substr(0, 40)];
      ++answer_.refused;
      return;
    }
    ++answer_.replayed;
    const double value = value_of(q_.objective, plan);
    // Layouts that differ only in their number of chunks, in what they recompute or in the way to their experts are one
    // proposal: the best of them is kept.
    for (auto other = answer_.plans.begin(); other != answer_.plans.end(); ++other) {
      if (!same_proposal(other->layout, plan.layout)) continue;
      if (value_of(q_.objective, *other) <= value) {
        ++answer_.rejected[kBeatenByOwn];
        return;
      }
      ++answer_.rejected[kBeatenByOwn];
      answer_.plans.erase(other);
      break;
    }
    const auto at = std::upper_bound(answer_.plans.begin(), answer_.plans.end(), value,
                                     [&](double v, const RankedPlan& p) { return v < value_of(q_.objective, p); });
    answer_.plans.insert(at, std::move(plan));
    if (static_cast<int>(answer_.plans.size()) > q_.top) answer_.plans.pop_back();
  }

  const PlanQuestion& q_;
  LayerShelf shelf_;
  StepQuestion ask_;  // of the layout in hand
  ExpertWays ways_;
  std::map<std::string, InFlight> flights_;
  std::map<std::tuple<int, int, Placement>, std::vector<StageSlice>> slices_;
  PlanAnswer answer_;
  std::vector<Open> open_;
};

}  // namespace

PlanAnswer search_plans(const PlanQuestion& q) {
  if (q.top < 1) throw InputError("--top", "must be at least 1");
  return Search(q).run();
}

}  // namespace shardplan
