#include "sim/zb_auto.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/errors.hpp"
#include "sim/zb_search.hpp"
#include "sim/zb_strings.hpp"

namespace shardplan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Seed {
  std::string name;
  ZbStrings strings;
};

std::string name_of(const ZbSwitches& s) {
  std::string name = "published heuristic";
  if (s.bubble_before_first_input) name += ", bubble before the first input gradient";
  if (s.prefer_input) name += ", input gradients preferred";
  if (s.fill_greedily) name += ", gaps filled greedily";
  return name;
}

std::vector<Seed> heuristic_seeds(const ZbQuestion& q) {
  std::vector<Seed> seeds;
  for (const bool bubble : {true, false}) {
    for (const bool prefer : {true, false}) {
      for (const bool greedy : {true, false}) {
        const ZbSwitches switches{bubble, prefer, greedy};
        ZbStrings strings = zb_heuristic(q, switches);
        if (!strings.empty()) seeds.push_back({name_of(switches), std::move(strings)});
      }
    }
  }
  return seeds;
}

/// `warm_up` forwards, then I, W of `lag` before, F in turn.
std::vector<ZbOp> steady(int microbatches, int warm_up, int lag) {
  std::vector<ZbOp> list;
  int forwards = std::min(microbatches, warm_up), weights = 0;
  list.assign(forwards, ZbOp::forward);
  for (int k = 0; k < microbatches; ++k) {
    list.push_back(ZbOp::input_grad);
    if (k >= lag) {
      list.push_back(ZbOp::weight_grad);
      ++weights;
    }
    if (forwards < microbatches) {
      list.push_back(ZbOp::forward);
      ++forwards;
    }
  }
  list.insert(list.end(), microbatches - weights, ZbOp::weight_grad);
  return list;
}

/// gpipe, 1f1b, zb-h1, zb-h2 as strings, where they fit.
std::vector<Seed> known_seeds(const ZbQuestion& q) {
  const int p = q.ranks, m = q.microbatches;
  std::vector<Seed> seeds = {{"gpipe", {}}, {"1f1b", {}}, {"zb-h1", {}}, {"zb-h2", {}}};
  for (int r = 0; r < p; ++r) {
    seeds[0].strings.push_back(steady(m, m, 0));
    seeds[1].strings.push_back(steady(m, p - r, 0));
    seeds[2].strings.push_back(steady(m, p - r, r));
    seeds[3].strings.push_back(steady(m, 2 * (p - r) - 1, 2 * r));
  }
  std::erase_if(seeds, [&](const Seed& seed) { return !fits(q, seed.strings); });
  return seeds;
}

void check(const ZbQuestion& q) {
  const std::size_t p = q.ranks;
  if (q.chunk_bytes.size() != p || q.weight_grad_bytes.size() != p || (!q.limit.empty() && q.limit.size() != p)) {
    throw InputError("zb-auto", "memory needs one entry a stage");
  }
  for (std::size_t r = 0; r < q.limit.size(); ++r) {
    if (exceeds(std::max(q.chunk_bytes[r], q.weight_grad_bytes[r]), q.limit[r])) {
      throw InputError("--memory-limit", "not even one micro-batch fits on rank " + std::to_string(r));
    }
  }
}

/// One micro-batch after the other: always legal, fits wherever one does.
Seed one_by_one(const ZbQuestion& q) {
  Seed seed{"one micro-batch at a time", {}};
  for (int r = 0; r < q.ranks; ++r) {
    seed.strings.emplace_back();
    for (int k = 0; k < q.microbatches; ++k) {
      for (const ZbOp op : {ZbOp::forward, ZbOp::input_grad, ZbOp::weight_grad}) seed.strings[r].push_back(op);
    }
  }
  return seed;
}

}  // namespace

ZbAnswer zb_auto(const ZbQuestion& q) {
  check(q);
  ZbEvaluator evaluator(q);
  const ZbObjective objective = q.search ? q.objective : ZbObjective::window;
  std::vector<Seed> seeds = heuristic_seeds(q);
  if (q.search) {
    for (Seed& seed : known_seeds(q)) seeds.push_back(std::move(seed));
    for (ZbStrings& strings : list_scheduled(q)) seeds.push_back({"list schedule", std::move(strings)});
  }
  if (seeds.empty()) seeds.push_back(one_by_one(q));
  ZbAnswer answer;
  double best = kNever;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const double value = evaluator.score(seeds[i].strings).of(objective);
    ++answer.tried;
    if (value < best) {
      best = value;
      chosen = i;
    }
  }
  answer.seed = seeds[chosen].name;
  answer.lower_bound = zb_lower_bound(q);
  ZbStrings strings = std::move(seeds[chosen].strings);
  if (q.search) answer.tried += improve(q, strings, answer.lower_bound);
  const ZbScore score = evaluator.score(strings);
  answer.makespan = score.makespan;
  answer.window = score.window;
  answer.gap = std::max(0.0, score.of(q.objective) / answer.lower_bound - 1);  // sums round differently
  answer.order = order_of(strings, q.microbatches);
  return answer;
}

}  // namespace shardplan
