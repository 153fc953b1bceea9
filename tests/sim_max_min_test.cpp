#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "sim/max_min.hpp"

using namespace shardplan;

namespace {

std::vector<std::int32_t> links_of(const FlowSet& set, std::int64_t f) {
  return {set.link.begin() + set.first[f], set.link.begin() + set.first[f + 1]};
}

/// Max-min rates of the flows that are still sending, written down as the definition says: raise all rates together,
/// stop those on a full link, repeat.
std::vector<double> brute_rates(const FlowSet& set, const std::vector<bool>& sending) {
  std::vector<double> rate(sending.size(), 0.0);
  std::vector<bool> rising = sending;
  std::vector<double> left = set.capacity;
  for (;;) {
    std::vector<int> count(left.size(), 0);
    for (std::size_t f = 0; f < rising.size(); ++f) {
      if (!rising[f]) continue;
      for (const auto l : links_of(set, static_cast<std::int64_t>(f))) ++count[l];
    }
    double raise = std::numeric_limits<double>::infinity();
    for (std::size_t l = 0; l < left.size(); ++l) {
      if (count[l] > 0) raise = std::min(raise, left[l] / count[l]);
    }
    if (std::isinf(raise)) return rate;
    for (std::size_t f = 0; f < rising.size(); ++f) {
      if (rising[f]) rate[f] += raise;
    }
    for (std::size_t l = 0; l < left.size(); ++l) left[l] -= raise * count[l];
    for (std::size_t f = 0; f < rising.size(); ++f) {
      if (!rising[f]) continue;
      for (const auto l : links_of(set, static_cast<std::int64_t>(f))) {
        if (left[l] <= 1e-12 * set.capacity[l]) rising[f] = false;
      }
    }
  }
}

std::vector<double> brute_finishes(const FlowSet& set) {
  std::vector<double> left = set.bytes, finish(set.bytes.size(), 0.0);
  std::vector<bool> sending(set.bytes.size());
  for (std::size_t f = 0; f < left.size(); ++f)
    sending[f] = left[f] > 0 && !links_of(set, static_cast<std::int64_t>(f)).empty();
  double now = 0;
  while (std::find(sending.begin(), sending.end(), true) != sending.end()) {
    const std::vector<double> rate = brute_rates(set, sending);
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t f = 0; f < left.size(); ++f) {
      if (sending[f]) step = std::min(step, left[f] / rate[f]);
    }
    now += step;
    for (std::size_t f = 0; f < left.size(); ++f) {
      if (!sending[f]) continue;
      left[f] -= rate[f] * step;
      if (left[f] <= 1e-11 * set.bytes[f]) {
        sending[f] = false;
        finish[f] = now;
      }
    }
  }
  return finish;
}

/// Links of odd capacities, flows over up to `most` of them, several over the same links, some without bytes or links.
FlowSet random_network(Random& random, std::size_t most) {
  FlowSet set;
  const std::size_t links = 1 + random.below(8);
  for (std::size_t l = 0; l < links; ++l) set.capacity.push_back(1 + 99 * random.uniform());
  const std::size_t flows = 1 + random.below(20);
  for (std::size_t f = 0; f < flows; ++f) {
    if (f > 0 && random.uniform() < 0.3) {
      set.add(links_of(set, static_cast<std::int64_t>(random.below(f))),
              random.uniform() < 0.5 ? 7 : 1 + 99 * random.uniform());
      continue;
    }
    std::vector<std::int32_t> route;
    for (std::size_t l = 0; l < links && route.size() < most; ++l) {
      if (random.uniform() < 0.4) route.push_back(static_cast<std::int32_t>(l));
    }
    set.add(route, random.uniform() < 0.1 ? 0 : 1 + 99 * random.uniform());
  }
  return set;
}

FlowSet skewed_all_to_all(int hosts, double skew, std::uint64_t seed) {
  FlowSet set;
  set.capacity.assign(static_cast<std::size_t>(2 * hosts), 50e9);
  Random random(seed);
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if (from != to) set.add({from, hosts + to}, (1 + skew * random.uniform()) * 1e6);
    }
  }
  return set;
}

}  // namespace

TEST_CASE("rates and finishes are those of a brute-force solver on 1,000 random small networks", "[flows]") {
  Random random(20240601);
  for (int network = 0; network < 1000; ++network) {
    INFO("network " << network);
    const FlowSet set = random_network(random, network % 3 == 0 ? 2 : network % 3 == 1 ? 4 : 8);
    const std::vector<double> rate = max_min_rates(set);
    const std::vector<double> expected = brute_rates(set, std::vector<bool>(set.bytes.size(), true));
    const FlowTimes times = complete_flows(set);
    const FlowTimes one_by_one = complete_flows(set, {0, false});
    const std::vector<double> finish = brute_finishes(set);
    for (std::size_t f = 0; f < rate.size(); ++f) {
      INFO("flow " << f);
      if (links_of(set, static_cast<std::int64_t>(f)).empty()) {
        REQUIRE(std::isinf(rate[f]));
      } else {
        REQUIRE(rate[f] == Approx(expected[f]).epsilon(1e-9));
      }
      REQUIRE(times.finish[f] == Approx(finish[f]).epsilon(1e-9).margin(1e-12));
      REQUIRE(one_by_one.finish[f] == Approx(finish[f]).epsilon(1e-9).margin(1e-12));
    }
    REQUIRE(times.end >= busiest_link(set).seconds * (1 - 1e-12));
  }
}

TEST_CASE("no link is over its capacity and every flow has a full link", "[flows]") {
  Random random(7);
  for (int network = 0; network < 200; ++network) {
    const FlowSet set = random_network(random, 8);
    const std::vector<double> rate = max_min_rates(set);
    std::vector<double> load(set.capacity.size(), 0.0), highest(set.capacity.size(), 0.0);
    for (std::int64_t f = 0; f < set.flows(); ++f) {
      for (const auto l : links_of(set, f)) {
        load[l] += rate[f];
        highest[l] = std::max(highest[l], rate[f]);
      }
    }
    for (std::size_t l = 0; l < load.size(); ++l) CHECK(load[l] <= set.capacity[l] * (1 + 1e-9));
    for (std::int64_t f = 0; f < set.flows(); ++f) {
      bool bottleneck = links_of(set, f).empty();
      for (const auto l : links_of(set, f)) {
        bottleneck |= load[l] >= set.capacity[l] * (1 - 1e-9) && rate[f] >= highest[l] * (1 - 1e-9);
      }
      CHECK(bottleneck);
    }
  }
}

TEST_CASE("a star has a closed form: incast and equal all-to-all", "[flows]") {
  // n senders into one receiver: the receiver's link decides. All to all: n - 1 equal flows up and down every host.
  FlowSet incast;
  incast.capacity.assign(9, 10.0);
  for (int n = 0; n < 8; ++n) incast.add({n, 8}, 5 * (n + 1));
  CHECK(complete_flows(incast).end == Approx(5.0 * 36 / 10).epsilon(1e-12));
  CHECK(complete_flows(incast).finish[0] == Approx(8 * 5 / 10.0).epsilon(1e-12));
  for (const double tolerance : {0.0, 1e-3, 0.1}) {
    const FlowTimes equal = complete_flows(skewed_all_to_all(16, 0, 1), {tolerance, true});
    CHECK(equal.end == Approx(15 * 1e6 / 50e9).epsilon(1e-12));
    CHECK(equal.steps == 1);
  }
}

TEST_CASE("flows of different sizes over one link end as processor sharing says", "[flows]") {
  // Sorted sizes s1 <= s2 <= ...: flow i ends at (s1 + ... + s_i + (n - i) s_i) / c.
  FlowSet set;
  set.capacity = {4.0};
  const std::vector<double> sizes = {3, 1, 4, 1, 5, 9, 2, 6};
  for (const double s : sizes) set.add({0}, s);
  const FlowTimes times = complete_flows(set);
  CHECK(times.classes == 1);
  for (std::size_t f = 0; f < sizes.size(); ++f) {
    double sent = 0;
    for (const double other : sizes) sent += std::min(other, sizes[f]);
    CHECK(times.finish[f] == Approx(sent / 4).epsilon(1e-12));
  }
}

TEST_CASE("a two-level tree is bound by the trunk for traffic across and by the hosts within", "[flows]") {
  // Two leaves of 4 hosts at 10 B/s; trunks of 10 B/s each way (4:1). Host h sends 5 B to its partner across; hosts 0
  // and 1 also exchange 30 B inside. Across: 4 flows share the trunk, 2.5 B/s each, end at 2 s. Inside: 7.5 B/s until
  // then, 10 after.
  FlowSet set;
  set.capacity.assign(18, 10.0);  // 0-7 up, 8-15 down, 16 trunk of leaf 0 up, 17 its way down on the other side
  for (int h = 0; h < 4; ++h) set.add({h, 16, 17, 8 + 4 + h}, 5);
  set.add({0, 9}, 30);
  set.add({1, 8}, 30);
  const FlowTimes times = complete_flows(set);
  for (int h = 0; h < 4; ++h) CHECK(times.finish[h] == Approx(2.0).epsilon(1e-12));
  CHECK(times.finish[4] == Approx(2 + 15.0 / 10).epsilon(1e-12));
  CHECK(times.end == times.finish[5]);
}

TEST_CASE("rails do not share: each rail ends with its own load", "[flows]") {
  FlowSet set;
  const int rails = 4, nodes = 3;
  set.capacity.assign(2 * rails * nodes, 50.0);
  for (int rail = 0; rail < rails; ++rail) {
    for (int from = 0; from < nodes; ++from) {
      for (int to = 0; to < nodes; ++to) {
        if (from != to) set.add({rail * nodes + from, rails * nodes + rail * nodes + to}, 100.0 * (rail + 1));
      }
    }
  }
  const FlowTimes times = complete_flows(set);
  CHECK(times.finish[0] == Approx(4.0).epsilon(1e-12));
  CHECK(times.end == Approx(16.0).epsilon(1e-12));
}

TEST_CASE("with a tolerance every byte is sent, the end keeps the bottleneck bound and is near the exact one",
          "[flows]") {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const FlowSet set = skewed_all_to_all(24, 0.5, seed);
    const double exact = complete_flows(set).end;
    for (const double tolerance : {1e-3, 1e-2, 5e-2}) {
      const FlowTimes times = complete_flows(set, {tolerance, true});
      INFO("tolerance " << tolerance);
      CHECK(times.end >= busiest_link(set).seconds * (1 - 1e-12));
      CHECK(times.end == Approx(exact).epsilon(1.5 * tolerance));
      const double first = *std::min_element(times.finish.begin(), times.finish.end());
      CHECK(static_cast<double>(times.steps) <= 2 + std::log(times.end / first) / std::log1p(tolerance));
    }
  }
}

TEST_CASE("on random networks the tolerance bounds what an end is late", "[flows]") {
  Random random(11);
  for (int network = 0; network < 300; ++network) {
    const FlowSet set = random_network(random, 8);
    const double exact = complete_flows(set).end;
    const FlowTimes times = complete_flows(set, {1e-3, true});
    CHECK(times.end >= busiest_link(set).seconds * (1 - 1e-12));
    CHECK(times.end == Approx(exact).epsilon(3e-3));
  }
}

TEST_CASE("no link carries more than its capacity in any time from the start, whatever the tolerance", "[flows]") {
  // Bytes that had to be through a link by time t: those of the flows that ended by t.
  const FlowSet set = skewed_all_to_all(12, 2.0, 5);
  for (const double tolerance : {0.0, 1e-2, 1e-1}) {
    const FlowTimes times = complete_flows(set, {tolerance, true});
    for (std::int32_t l = 0; l < static_cast<std::int32_t>(set.capacity.size()); ++l) {
      std::vector<std::pair<double, double>> ends;
      for (std::int64_t f = 0; f < set.flows(); ++f) {
        const auto route = links_of(set, f);
        if (std::find(route.begin(), route.end(), l) != route.end()) ends.push_back({times.finish[f], set.bytes[f]});
      }
      std::sort(ends.begin(), ends.end());
      double through = 0;
      for (const auto& [time, bytes] : ends) {
        through += bytes;
        CHECK(through <= set.capacity[l] * time * (1 + 1e-9));
      }
    }
  }
}

TEST_CASE("equal flows are one class and cost one step", "[flows]") {
  FlowSet set;
  set.capacity = {10.0, 20.0};
  for (int n = 0; n < 1000; ++n) set.add({0, 1}, 1.0);
  const FlowTimes times = complete_flows(set);
  CHECK(times.classes == 1);
  CHECK(times.steps == 1);
  CHECK(times.end == Approx(100.0).epsilon(1e-12));
}

TEST_CASE("a bad flow set is refused", "[flows]") {
  FlowSet set;
  set.capacity = {0.0};
  set.add({0}, 1);
  CHECK_THROWS_AS(complete_flows(set), InputError);
  set.capacity = {1.0};
  set.link[0] = 1;
  CHECK_THROWS_AS(max_min_rates(set), InputError);
  set.link[0] = 0;
  set.bytes[0] = -1;
  CHECK_THROWS_AS(busiest_link(set), InputError);
  set.bytes[0] = 1;
  CHECK_THROWS_AS(complete_flows(set, {1.5, true}), InputError);
  CHECK(complete_flows(FlowSet{}).end == 0);
}
