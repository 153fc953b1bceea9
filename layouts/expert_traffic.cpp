#include "layouts/expert_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/routing.hpp"

namespace shardplan {

namespace {

struct Hosts {
  std::vector<std::vector<std::int32_t>> of_expert;
  std::size_t per_node = 1;
  std::size_t nodes = 1;
  std::size_t ranks = 1;
};

Hosts hosts_of(const ExpertLoadQuestion& q) {
  Hosts out;
  out.per_node = static_cast<std::size_t>(q.ranks_per_node);
  out.ranks = static_cast<std::size_t>(q.ep);
  out.nodes = (static_cast<std::size_t>(q.ep) + out.per_node - 1) / out.per_node;
  out.of_expert.resize(static_cast<std::size_t>(q.moe->experts));
  for (std::size_t r = 0; r < q.placement->on_gpu.size(); ++r) {
    for (const std::int32_t e : q.placement->on_gpu[r])
      out.of_expert[static_cast<std::size_t>(e)].push_back(static_cast<std::int32_t>(r));
  }
  return out;
}

double busiest_over_mean(const std::vector<double>& load) { return max_violation(load) + 1; }

/// Tokens on each rank's links: over the network out and into the entry rank (the source's place in the other node),
/// and over NVLink out of the entry rank and into the host.
struct Links {
  std::vector<double> sent, received, forwarded, arrived;

  explicit Links(std::size_t ranks) : sent(ranks, 0.0), received(sent), forwarded(sent), arrived(sent) {}
  static std::size_t entry(std::size_t source, std::size_t node, const Hosts& hosts) {
    if (node == source / hosts.per_node) return source;
    return std::min(node * hosts.per_node + source % hosts.per_node, hosts.ranks - 1);
  }
  void to_node(std::size_t source, std::size_t node, const Hosts& hosts) {
    if (node == source / hosts.per_node) return;
    sent[source] += 1;
    received[entry(source, node, hosts)] += 1;
  }
  void to_rank(std::size_t source, std::size_t rank, const Hosts& hosts) {
    const std::size_t from = entry(source, rank / hosts.per_node, hosts);
    if (from == rank) return;
    forwarded[from] += 1;
    arrived[rank] += 1;
  }
};

}  // namespace

SampledTraffic sample_traffic(const ExpertLoadQuestion& q, std::uint64_t seed, std::int64_t most, bool keep_matrices) {
  const Hosts hosts = hosts_of(q);
  const auto ranks = static_cast<std::size_t>(q.ep), experts = static_cast<std::size_t>(q.moe->experts);
  const bool own = q.routing_groups > 1;  // the router's groups, or one a node
  const std::int64_t groups = own ? q.routing_groups : static_cast<std::int64_t>(hosts.nodes);
  const std::int64_t limit = own ? q.groups_per_token : q.nodes_per_token;
  const bool limited = limit > 0 && limit < groups;
  if (limited)
    most = std::min(most, (std::int64_t{1} << 24) / q.moe->experts);  // a limited token draws every expert's score
  TokenSampler sampler(q.popularity->weights, q.popularity->top_k, groups, limit);
  Random random(seed ^ 0x74726166666963ULL);

  SampledTraffic out;
  out.tokens_per_rank = std::clamp<std::int64_t>(most / q.ep, 1, std::llround(q.tokens_per_rank));
  out.tokens = out.tokens_per_rank * q.ep;
  if (keep_matrices) {
    out.counts.assign(ranks, std::vector<std::int64_t>(experts, 0));
    out.rank_tokens.assign(ranks, std::vector<std::int64_t>(ranks, 0));
  }
  Links links(ranks);
  out.nodes_histogram.assign(std::min(hosts.nodes, static_cast<std::size_t>(q.moe->top_k)) + 1, 0);
  std::vector<std::int64_t> rank_seen(ranks, -1), node_seen(hosts.nodes, -1);
  std::vector<double> rank_pairs(ranks, 0.0), expert_pairs(experts, 0.0);
  std::int64_t token = 0;
  for (std::size_t s = 0; s < ranks; ++s) {
    for (std::int64_t t = 0; t < out.tokens_per_rank; ++t, ++token) {
      std::size_t nodes = 0;
      for (const std::int32_t e : sampler.draw(random)) {
        const auto& at = hosts.of_expert[static_cast<std::size_t>(e)];
        const auto r = static_cast<std::size_t>(at.size() == 1 ? at[0] : at[random.below(at.size())]);
        if (keep_matrices) ++out.counts[s][static_cast<std::size_t>(e)];
        expert_pairs[static_cast<std::size_t>(e)] += 1;
        rank_pairs[r] += 1;
        if (rank_seen[r] != token) {
          rank_seen[r] = token;
          if (keep_matrices) ++out.rank_tokens[s][r];
          links.to_rank(s, r, hosts);
          out.distinct_ranks += 1;
        }
        const std::size_t n = r / hosts.per_node;
        if (node_seen[n] != token) {
          node_seen[n] = token;
          links.to_node(s, n, hosts);
          ++nodes;
        }
      }
      out.distinct_nodes += static_cast<double>(nodes);
      ++out.nodes_histogram[nodes];
    }
  }
  out.distinct_nodes /= static_cast<double>(out.tokens);
  out.distinct_ranks /= static_cast<double>(out.tokens);
  out.max_violation_expert = max_violation(expert_pairs);
  out.max_violation_gpu = max_violation(rank_pairs);
  out.idle_experts = std::count(expert_pairs.begin(), expert_pairs.end(), 0.0);
  out.busiest_network = std::max(busiest_over_mean(links.sent), busiest_over_mean(links.received));
  out.busiest_nvlink = std::max(busiest_over_mean(links.forwarded), busiest_over_mean(links.arrived));
  return out;
}

}  // namespace shardplan
