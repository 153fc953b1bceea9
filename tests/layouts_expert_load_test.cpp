#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>

#include "layouts/expert_load.hpp"
#include "layouts/expert_traffic.hpp"
#include "models/routing.hpp"
#include "tests/deepseek_experts.hpp"

using namespace shardplan;

namespace {

ExpertLoadQuestion ep64(const Moe& moe) {
  ExpertLoadQuestion q;
  q.moe = &moe;
  q.hidden = 7168;
  q.tokens_per_rank = 8192;
  q.ep = 64;
  return q;
}

/// Means over drawn tokens: distinct nodes, distinct ranks, remote nodes and NVLink copies of a token from rank 0's
/// place.
struct Drawn {
  double nodes = 0, ranks = 0, nvlink = 0, hottest_rank = 0;
};
Drawn draw(const ExpertPopularity& p, const ExpertPlacement& placement, int per_node, int limit, int tokens) {
  const auto ranks = static_cast<std::size_t>(placement.gpus());
  const auto nodes = (ranks + static_cast<std::size_t>(per_node) - 1) / static_cast<std::size_t>(per_node);
  std::vector<std::vector<std::size_t>> hosts(p.weights.size());
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const auto e : placement.on_gpu[r]) hosts[static_cast<std::size_t>(e)].push_back(r);
  }
  TokenSampler sampler(p.weights, p.top_k, static_cast<std::int64_t>(nodes), limit);
  Random random(23);
  Drawn out;
  std::vector<double> rank_pairs(ranks, 0.0);
  for (int t = 0; t < tokens; ++t) {
    const std::size_t place = static_cast<std::size_t>(t) % static_cast<std::size_t>(per_node);
    std::vector<char> rank(ranks, 0), node(nodes, 0);
    for (const auto e : sampler.draw(random)) {
      const auto& at = hosts[static_cast<std::size_t>(e)];
      const std::size_t r = at[random.below(at.size())];
      rank[r] = node[r / static_cast<std::size_t>(per_node)] = 1;
      rank_pairs[r] += 1;
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      out.ranks += rank[r];
      out.nvlink += rank[r] && r % static_cast<std::size_t>(per_node) != place;
    }
    out.nodes += std::accumulate(node.begin(), node.end(), 0);
  }
  out.nodes /= tokens;
  out.ranks /= tokens;
  out.nvlink /= tokens;
  out.hottest_rank = max_violation(rank_pairs) + 1;
  return out;
}

}  // namespace

TEST_CASE("eight of 256 experts touch 5.29 of 8 nodes, at most four under the cap", "[experts]") {
  CHECK(distinct_groups(256, 8, 8) == Approx(5.294652).epsilon(1e-6));
  CHECK(distinct_groups_limited(256, 8, 8, 8) == Approx(5.294652).epsilon(1e-6));
  const double capped = distinct_groups_limited(256, 8, 8, 4);
  CHECK(capped < 4);
  CHECK(capped > 3.9);
}

TEST_CASE("the whiteboard's exchange of EP64: 705 MB on the network, 1.41 GB on NVLink", "[experts]") {
  const Moe moe = deepseek_v3_experts();
  ExpertLoadQuestion q = ep64(moe);
  q.nodes_per_token = 4;
  q.count_own_node = q.every_copy = true;
  const ExpertLoad r = expert_load(q);
  CHECK(r.pairs_per_rank == 65536);
  CHECK(r.dispatch_network + r.combine_network == Approx(704643072).epsilon(1e-12));
  CHECK(r.dispatch_nvlink + r.combine_nvlink == Approx(1409286144).epsilon(1e-12));
  CHECK(r.hottest == std::vector<std::int64_t>(4, 16384));
  q.count_own_node = false;
  CHECK(expert_load(q).dispatch_network * 3 == Approx(616562688).epsilon(1e-12));
}

TEST_CASE("few tokens keep their pairs when they are made whole", "[experts]") {
  const Moe moe = deepseek_v3_experts();
  ExpertLoadQuestion q = ep64(moe);
  q.ep = q.ranks_per_node = 8;
  const ExpertPopularity p = make_popularity({}, 256, 8, 0, 1);
  const ExpertPlacement placement = place_contiguous(256, 8);
  for (const double tokens : {1.0, 3.0, 37.0}) {
    q.tokens_per_rank = tokens;  // 0.25 a token and expert
    for (const bool general : {false, true}) {
      q.popularity = general ? &p : nullptr;
      q.placement = general ? &placement : nullptr;
      const std::vector<std::int64_t> hottest = expert_load(q).hottest;
      CHECK(hottest.size() == 32);
      CHECK(std::accumulate(hottest.begin(), hottest.end(), std::int64_t{0}) == 8 * static_cast<std::int64_t>(tokens));
      const auto [least, most] = std::minmax_element(hottest.begin(), hottest.end());
      CHECK(*most - *least <= 1);
    }
  }
}

TEST_CASE("expected reach and loads agree with drawn tokens", "[experts]") {
  const Moe moe = deepseek_v3_experts();
  for (const char* text : {"none", "zipf:0.8", "dirichlet:0.5"}) {
    const ExpertPopularity p = make_popularity(parse_skew(text, "--skew"), 256, 8, 524288, 3);
    for (const int redundant : {0, 32}) {
      for (const int limit : {0, 4}) {
        const ExpertPlacement placement =
            redundant > 0 ? place_balanced(p.loads, 64, redundant) : place_contiguous(256, 64);
        if (limit > 0 && redundant > 0) continue;  // the sampler's nodes are runs of experts
        ExpertLoadQuestion q = ep64(moe);
        q.popularity = &p;
        q.placement = &placement;
        q.nodes_per_token = limit;
        const ExpertLoad r = expert_load(q);
        const Drawn d = draw(p, placement, 8, limit, 40000);
        INFO(text << " redundant " << redundant << " limit " << limit);
        CHECK(r.distinct_nodes == Approx(d.nodes).epsilon(limit > 0 ? 0.03 : 0.01));
        CHECK(r.distinct_ranks == Approx(d.ranks).epsilon(limit > 0 ? 0.04 : 0.01));
        CHECK(r.nvlink_copies == Approx(d.nvlink).epsilon(limit > 0 ? 0.04 : 0.015));
        CHECK(r.max_over_mean_rank == Approx(d.hottest_rank).epsilon(limit > 0 ? 0.12 : 0.04));
      }
    }
  }
}

TEST_CASE("the closed form of a uniform popularity equals the general path", "[experts]") {
  const Moe moe = deepseek_v3_experts();
  const ExpertPopularity p = make_popularity({}, 256, 8, 0, 1);
  const ExpertPlacement placement = place_contiguous(256, 64);
  ExpertLoadQuestion q = ep64(moe);
  const ExpertLoad fast = expert_load(q);
  q.popularity = &p;
  q.placement = &placement;
  const ExpertLoad general = expert_load(q);
  CHECK(fast.distinct_nodes == Approx(general.distinct_nodes).epsilon(1e-5));
  CHECK(fast.distinct_ranks == Approx(general.distinct_ranks).epsilon(1e-5));
  CHECK(fast.hottest == general.hottest);
  CHECK(fast.dispatch_network == Approx(general.dispatch_network).epsilon(1e-5));
}

TEST_CASE("one node has no network traffic, and NCCL sends every copy", "[experts]") {
  const Moe moe = deepseek_v3_experts();
  ExpertLoadQuestion q = ep64(moe);
  q.ep = 8;
  CHECK(expert_load(q).dispatch_network == 0);
  CHECK(expert_load(q).dispatch_nvlink > 0);
  q.ep = 64;
  const ExpertLoad deepep = expert_load(q);
  q.transport = ExpertTransport::nccl;
  const ExpertLoad nccl = expert_load(q);
  CHECK(nccl.network_copies == Approx(7).epsilon(1e-12));
  CHECK(nccl.network_copies > deepep.network_copies);
  q.ep = 1;
  CHECK(expert_load(q).dispatch_nvlink == 0);
}

TEST_CASE("a router's own groups: as a node limit where a node is a group, milder where it holds several",
          "[experts]") {
  // 8 of 256 in 4 of 8 groups. Nodes = groups: E[min(groups, 4)].
  CHECK(distinct_parts_of_groups(256, 8, 8, 4, 8) == Approx(distinct_groups_limited(256, 8, 8, 4)).epsilon(1e-12));
  // Two groups a node (EP32 on nodes of eight): four groups miss a node with chance C(6, 4) / C(8, 4) = 15 / 70.
  const double four = distinct_parts_of_groups(256, 8, 8, 4, 4);
  CHECK(four < 4 * (1 - 15.0 / 70) + 1e-9);
  CHECK(four > 4 * (1 - 15.0 / 70) - 0.05);
  CHECK(four < distinct_groups(256, 8, 4));
  // No limit, no difference.
  CHECK(distinct_parts_of_groups(256, 8, 8, 8, 4) == Approx(distinct_groups(256, 8, 4)).epsilon(1e-9));
  // Closed forms against drawn tokens, also where a group lies on two nodes, and for a skewed popularity.
  const Moe moe = deepseek_v3_experts();
  for (const int ep : {32, 64, 128}) {
    for (const char* skew : {"none", "zipf:0.5"}) {
      ExpertPopularity p = make_popularity(parse_skew(skew, "--skew"), 256, 8, 0, 1);
      p = limit_to_nodes(std::move(p), 8, 4, 1);
      const ExpertPlacement placement = place_contiguous(256, ep);
      ExpertLoadQuestion q = ep64(moe);
      q.ep = ep;
      q.popularity = &p;
      q.placement = &placement;
      q.nodes_per_token = 0;
      q.routing_groups = 8;
      q.groups_per_token = 4;
      const SampledTraffic drawn = sample_traffic(q, 1, 1 << 15);
      INFO(ep << " " << skew);
      CHECK(expert_load(q).distinct_nodes == Approx(drawn.distinct_nodes).epsilon(0.02));
      CHECK(expert_load(q).distinct_ranks == Approx(drawn.distinct_ranks).epsilon(0.03));
    }
  }
}

TEST_CASE("skew raises the hottest rank, redundant experts lower it, a capacity cuts it", "[experts]") {
  const Moe moe = deepseek_v3_experts();
  double before = 1;
  for (const char* text : {"zipf:0.3", "zipf:0.6", "zipf:1", "zipf:1.5"}) {
    const ExpertPopularity p = make_popularity(parse_skew(text, "--skew"), 256, 8, 0, 1);
    ExpertLoadQuestion q = ep64(moe);
    q.popularity = &p;
    const double now = expert_load(q).max_over_mean_rank;
    CHECK(now > before);
    before = now;
    q.redundant = 64;
    CHECK(expert_load(q).max_over_mean_rank < now);
    CHECK(expert_load(q).max_over_mean_rank >= expert_load(q).lower_bound_rank * (1 - 1e-9));
    q.redundant = 0;
    q.capacity_factor = 1.25;
    const ExpertLoad capped = expert_load(q);
    CHECK(capped.dropped > 0);
    CHECK(*std::max_element(capped.hottest.begin(), capped.hottest.end()) <= 20480);
  }
}

TEST_CASE("a GB/s of interconnect hides 6.1 TFLOP/s at width 3,072", "[experts]") {
  Moe moe = deepseek_v3_experts();
  moe.width = 3072;
  CHECK(balance_flops_per_byte(moe, 1, 2) == Approx(6144).epsilon(1e-12));
  moe.width = 2048;
  CHECK(balance_flops_per_byte(moe, 1, 2) == Approx(4096).epsilon(1e-12));
}
