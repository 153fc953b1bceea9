#include <catch2/catch.hpp>
#include <cmath>

#include "base/errors.hpp"
#include "layouts/expert_layer.hpp"
#include "layouts/expert_traffic.hpp"
#include "models/load_model.hpp"
#include "models/transform.hpp"

using namespace shardplan;

namespace {

struct Bench {
  Model model = load_model("deepseek-v3");
  Cluster cluster = load_cluster("h100-sxm");
  KernelModel calibrated{cluster.gpu, Rates::calibrated}, datasheet{cluster.gpu, Rates::datasheet};
  ExpertExchangeModel network{cluster, Rates::calibrated, Fidelity::table},
      lines{cluster, Rates::datasheet, Fidelity::table};

  MoeLayerQuestion question(Rates rates) const {
    MoeLayerQuestion q;
    q.load.moe = first_moe(model);
    q.load.hidden = model.hidden;
    q.load.tokens_per_rank = 8192;
    q.load.ep = 64;
    q.load.nodes_per_token = 4;
    q.cluster = &cluster;
    q.rates = rates;
    q.kernels = rates == Rates::calibrated ? &calibrated : &datasheet;
    q.exchange = rates == Rates::calibrated ? &network : &lines;
    return q;
  }
};

const Bench& bench() {
  static const Bench b;
  return b;
}

}  // namespace

TEST_CASE("waves: the makespan of a hand-drawn case", "[experts]") {
  // D1 0-2, D2 2-4, C1 2-5, B1 5-6 (the wire waits for C1), C2 5-8, B2 8-9.
  CHECK(waves_makespan({2, 2}, {3, 3}, {1, 1}) == Approx(9).epsilon(1e-12));
  CHECK(waves_makespan({2}, {3}, {1}) == Approx(6).epsilon(1e-12));
  CHECK(waves_makespan({2}, {3}, {1}, 5) == Approx(9).epsilon(1e-12));  // 5 s of shared experts first
  CHECK(waves_makespan({}, {}, {}) == 0);
}

TEST_CASE("waves: more of them approach the longer lane and never beat it", "[experts]") {
  double before = 1e9;
  for (const std::size_t w : {1, 2, 4, 8, 32}) {
    const double part = 1.0 / static_cast<double>(w);
    const double now = waves_makespan(std::vector<double>(w, 2 * part), std::vector<double>(w, 6 * part),
                                      std::vector<double>(w, 4 * part));
    CHECK(now <= before);
    CHECK(now >= 6);
    before = now;
  }
  CHECK(before < 6.5);
}

TEST_CASE("calibrated prices are slower than the datasheet's and carry their basis", "[experts]") {
  const MoeLayerTimes fast = price_moe_layer(bench().question(Rates::datasheet)),
                      slow = price_moe_layer(bench().question(Rates::calibrated));
  CHECK(slow.compute() > 1.1 * fast.compute());
  CHECK(slow.exchange.dispatch.total.seconds > fast.exchange.dispatch.total.seconds);
  CHECK(fast.routed.basis == Basis::datasheet);
  CHECK(slow.routed.basis != Basis::datasheet);
}

TEST_CASE("overlap never costs more than doing one thing after the other, and SMs are paid for", "[experts]") {
  MoeLayerQuestion q = bench().question(Rates::calibrated);
  q.waves = 4;
  const MoeLayerTimes t = price_moe_layer(q);
  CHECK(t.overlap.shared <= t.overlap.none);
  CHECK(t.overlap.microbatches <= t.overlap.none);
  CHECK(t.overlap.microbatches >=
        std::max(t.compute(), t.exchange.dispatch.total.seconds + t.exchange.combine.total.seconds));
  CHECK(t.overlap.waves <= t.overlap.none);
  q.waves = 5;
  CHECK_THROWS_AS(price_moe_layer(q), InputError);
}

TEST_CASE("every assumption's line moves the ratio its way", "[experts]") {
  const MoeLayerQuestion q = bench().question(Rates::calibrated);
  const auto lines = assumption_worth({q, &bench().datasheet, &bench().lines, &bench().calibrated, &bench().network});
  REQUIRE(lines.size() == 9);
  CHECK(lines[0].ratio == Approx(2.62).epsilon(0.005));
  CHECK(lines[1].ratio == Approx(2.95).epsilon(0.005));  // without the shared expert
  CHECK(lines[2].ratio < lines[0].ratio);                // local traffic left out
  CHECK(lines[3].ratio < lines[0].ratio);                // expected nodes
  CHECK(lines[4].ratio > lines[0].ratio);                // FP8 scales
  CHECK(lines[5].ratio == Approx(2.15).epsilon(0.005));  // phases pipelined
  CHECK(lines[6].ratio > lines[0].ratio);                // calibrated network
  CHECK(lines[7].ratio < lines[0].ratio);                // calibrated products
}

TEST_CASE("drawn traffic adds up and agrees with the expected load", "[experts]") {
  const ExpertPopularity p = make_popularity(parse_skew("zipf:0.6", "--skew"), 256, 8, 524288, 2);
  const ExpertPlacement placement = place_contiguous(256, 64);
  ExpertLoadQuestion q = bench().question(Rates::datasheet).load;
  q.nodes_per_token = 0;
  q.popularity = &p;
  q.placement = &placement;
  const SampledTraffic t = sample_traffic(q, 1, 1 << 17, true);
  CHECK(t.tokens == 1 << 17);
  for (const auto& row : t.counts) {
    std::int64_t pairs = 0;
    for (const std::int64_t n : row) pairs += n;
    CHECK(pairs == t.tokens_per_rank * 8);
  }
  const ExpertLoad expected = expert_load(q);
  CHECK(t.distinct_nodes == Approx(expected.distinct_nodes).epsilon(0.01));
  CHECK(t.distinct_ranks == Approx(expected.distinct_ranks).epsilon(0.01));
  CHECK(t.busiest_network == Approx(expected.busiest_network).epsilon(0.05));
  CHECK(t.busiest_nvlink == Approx(expected.busiest_nvlink).epsilon(0.10));
  CHECK(sample_traffic(q, 1, 1 << 14, true).counts == sample_traffic(q, 1, 1 << 14, true).counts);
  CHECK(sample_traffic(q, 2, 1 << 14, true).counts != sample_traffic(q, 1, 1 << 14, true).counts);
}

TEST_CASE("no rank reaches more nodes a token than its limit", "[experts]") {
  const ExpertPopularity p = make_popularity({}, 256, 8, 0, 1);
  const ExpertPlacement placement = place_contiguous(256, 64);
  ExpertLoadQuestion q = bench().question(Rates::datasheet).load;
  q.popularity = &p;
  q.placement = &placement;
  const SampledTraffic t = sample_traffic(q, 1, 1 << 13);
  for (std::size_t n = 5; n < t.nodes_histogram.size(); ++n) CHECK(t.nodes_histogram[n] == 0);
  CHECK(t.distinct_nodes == Approx(expert_load(q).distinct_nodes).epsilon(0.01));
}
