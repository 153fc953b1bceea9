#include <algorithm>
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "sim/in_flight.hpp"
#include "sim/schedules.hpp"
#include "sim/zb_auto.hpp"
#include "sim/zb_strings.hpp"

using namespace shardplan;

namespace {

ZbQuestion random_question(Random& random, int p, int m) {
  ZbQuestion q;
  q.ranks = p;
  q.microbatches = m;
  const auto draw = [&](int least, int most) { return least + static_cast<double>(random.below(most - least + 1)); };
  for (int s = 0; s < p; ++s) {
    q.times.forward.push_back(draw(1, 9));
    q.times.input_grad.push_back(draw(1, 9));
    q.times.weight_grad.push_back(draw(0, 9));
    q.times.hop_forward.push_back(draw(0, 4) / 4);
    q.times.hop_backward.push_back(draw(0, 4) / 4);
    q.chunk_bytes.push_back(draw(2, 4));
    q.weight_grad_bytes.push_back(draw(0, 2));
  }
  if (random.below(3) > 0) {
    for (int s = 0; s < p; ++s) q.limit.push_back(draw(4, 4 * p + 4));
  }
  q.objective = random.below(2) == 0 ? ZbObjective::makespan : ZbObjective::window;
  return q;
}

/// All legal strings of m F, I, W each.
void all_strings(int m, std::vector<ZbOp>& prefix, int f, int i, int w, std::vector<std::vector<ZbOp>>& out) {
  if (w == m) {
    out.push_back(prefix);
    return;
  }
  const auto go = [&](ZbOp op, int df, int di, int dw) {
    prefix.push_back(op);
    all_strings(m, prefix, f + df, i + di, w + dw, out);
    prefix.pop_back();
  };
  if (f < m) go(ZbOp::forward, 1, 0, 0);
  if (i < f) go(ZbOp::input_grad, 0, 1, 0);
  if (w < i) go(ZbOp::weight_grad, 0, 0, 1);
}

double value_of(const ZbAnswer& a, ZbObjective objective) {
  return objective == ZbObjective::makespan ? a.makespan : a.window;
}

}  // namespace

TEST_CASE("the lower bound is below every order, and the search finds the best of small questions", "[sim]") {
  Random random(11);
  std::vector<std::vector<ZbOp>> strings;
  std::vector<ZbOp> prefix;
  all_strings(3, prefix, 0, 0, 0, strings);
  CHECK(strings.size() == 42);
  int optimal = 0, cases = 0;
  for (int i = 0; i < 60; ++i) {
    ZbQuestion q = random_question(random, 2, 3);
    ZbEvaluator evaluator(q);
    double best = 1e300;
    for (const auto& a : strings) {
      for (const auto& b : strings) {
        const ZbStrings order = {a, b};
        if (fits(q, order)) best = std::min(best, evaluator.score(order).of(q.objective));
      }
    }
    const ZbAnswer found = zb_auto(q);
    INFO("question " << i);
    CHECK(found.lower_bound <= best * (1 + 1e-9));
    CHECK(value_of(found, q.objective) >= best * (1 - 1e-9));
    CHECK(value_of(found, q.objective) <= best * 1.05);
    optimal += value_of(found, q.objective) <= best * (1 + 1e-9) ? 1 : 0;
    ++cases;
  }
  CHECK(optimal >= cases * 9 / 10);
}

TEST_CASE("the lower bound holds for three stages, too", "[sim]") {
  Random random(12);
  std::vector<std::vector<ZbOp>> strings;
  std::vector<ZbOp> prefix;
  all_strings(2, prefix, 0, 0, 0, strings);
  for (int i = 0; i < 100; ++i) {
    const ZbQuestion q = random_question(random, 3, 2);
    ZbEvaluator evaluator(q);
    double best = 1e300;
    for (const auto& a : strings) {
      for (const auto& b : strings) {
        for (const auto& c : strings) {
          const ZbStrings order = {a, b, c};
          if (fits(q, order)) best = std::min(best, evaluator.score(order).of(q.objective));
        }
      }
    }
    INFO("question " << i);
    CHECK(zb_lower_bound(q) <= best * (1 + 1e-9));
  }
}

TEST_CASE("zb-auto keeps the limit, replays as it says, and is never worse than a known order that fits", "[sim]") {
  Random random(13);
  for (int i = 0; i < 40; ++i) {
    ZbQuestion q =
        random_question(random, 2 + static_cast<int>(random.below(5)), 1 + static_cast<int>(random.below(12)));
    q.most_tries = 300;
    const ZbAnswer a = zb_auto(q);
    const Replay r = replay(a.order, q.times);
    INFO("question " << i << " p=" << q.ranks << " m=" << q.microbatches);
    CHECK(r.makespan == Approx(a.makespan).epsilon(1e-12));
    CHECK(r.max_stage_window == Approx(a.window).epsilon(1e-12));
    CHECK(value_of(a, q.objective) >= a.lower_bound * (1 - 1e-9));
    const auto held = in_flight_bytes(a.order, q.chunk_bytes, q.weight_grad_bytes);
    for (std::size_t s = 0; s < q.limit.size(); ++s) CHECK(held[s].split <= q.limit[s] * (1 + 1e-9));
    for (const char* name : {"zb-h1", "zb-h2"}) {
      ScheduleQuestion known;
      known.ranks = q.ranks;
      known.microbatches = q.microbatches;
      const Order order = find_schedule(name).order(known);
      const auto bytes = in_flight_bytes(order, q.chunk_bytes, q.weight_grad_bytes);
      bool fits_limit = true;
      for (std::size_t s = 0; s < q.limit.size(); ++s) fits_limit = fits_limit && bytes[s].split <= q.limit[s];
      if (!fits_limit) continue;
      const Replay k = replay(order, q.times);
      CHECK(value_of(a, q.objective) <=
            (q.objective == ZbObjective::makespan ? k.makespan : k.max_stage_window) * (1 + 1e-9));
    }
  }
}

TEST_CASE("zb-auto with a slow last stage and 1.5 p chunks stays within 2 % of its bound", "[sim]") {
  for (const int p : {4, 8, 16}) {
    for (const double b : {10.0, 12.0}) {
      ScheduleQuestion s;
      s.ranks = p;
      s.microbatches = 4 * p;
      s.forward = 10;
      s.input_grad = b;
      s.weight_grad = 6;
      s.p2p = 0.5;
      s.stage_scale.assign(p, 1);
      s.stage_scale.back() = 1.25;
      s.memory_limit = 1.5 * p;
      s.weight_grad_memory = 0.5;
      const ZbAnswer a = zb_auto(zb_question(s));
      INFO("p=" << p << " B=" << b);
      CHECK(a.gap <= 0.02);
      const Replay h1 = replay(find_schedule("zb-h1").order(s), zb_question(s).times);
      CHECK(a.makespan <= h1.makespan * (1 + 1e-9));
    }
  }
}

TEST_CASE("tight memory: the search beats the published heuristic by far", "[sim]") {
  ScheduleQuestion s;
  s.ranks = 8;
  s.microbatches = 32;
  s.memory_limit = 5.6;
  s.weight_grad_memory = 0.5;
  const ZbAnswer searched = zb_auto(zb_question(s));
  s.search = false;
  const ZbAnswer published = zb_auto(zb_question(s));
  CHECK(searched.makespan < 0.6 * published.makespan);
}

TEST_CASE("the same question gives the same order; one that cannot fit is refused", "[sim]") {
  Random random(14);
  ZbQuestion q = random_question(random, 4, 10);
  q.limit.assign(4, 9);
  const ZbAnswer a = zb_auto(q), b = zb_auto(q);
  CHECK(a.makespan == b.makespan);
  CHECK(a.tried == b.tried);
  q.limit[2] = 1;
  CHECK_THROWS_AS(zb_auto(q), InputError);
}
