#include "layouts/expert_load.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/routing.hpp"

namespace shardplan {

namespace {

/// Probability that a token touches a set of copies. Experts that sit wholly in the set escape together as the draws
/// say; of an expert with other copies elsewhere, its own chance times the share of its copies that are here,
/// independently.
struct Touch {
  double weight = 0;
  std::vector<double> shift;
  std::vector<std::pair<std::int32_t, double>> partial;

  explicit Touch(std::size_t draws) : shift(draws, 0.0) {}
  void add(const ExpertPopularity& p, std::int32_t expert, std::int32_t copies) {
    const auto i = static_cast<std::size_t>(expert), k = p.draws.clock.size();
    if (copies > 1) {
      const auto same = [&](const auto& entry) { return entry.first == expert; };
      auto at = std::find_if(partial.begin(), partial.end(), same);
      if (at == partial.end()) at = partial.insert(at, {expert, 0.0});
      at->second += 1.0 / copies;
      return;
    }
    weight += p.weights[i];
    for (std::size_t j = 0; j < k; ++j) shift[j] += p.shift[i * k + j];
  }
  double probability(const ExpertPopularity& p) const {
    Touch all = *this;
    const std::size_t k = shift.size();
    for (const auto& [expert, share] : partial) {
      const auto i = static_cast<std::size_t>(expert);
      const double chance = std::min(p.loads[i] * static_cast<double>(p.top_k), 1 - 1e-12);
      all.weight += p.weights[i] * std::log1p(-share * chance) / std::log1p(-chance);
      for (std::size_t j = 0; j < k; ++j) all.shift[j] += share * p.shift[i * k + j];
    }
    double escape = 1;
    for (std::size_t j = 0; j < k; ++j) {
      const double left = std::max(1 - p.draws.taken[j] - all.shift[j], all.weight);
      if (left > 0) escape *= std::max(0.0, 1 - all.weight / left);
    }
    return 1 - escape;
  }
};

/// Touch probabilities of ranks and nodes under a placement, and loads of the ranks.
struct Reach {
  std::vector<double> rank, node;            // chance that a token touches it
  std::vector<double> rank_sent, node_sent;  // the same, less what a capacity drops there (in proportion to its pairs)
};

/// `kept`: the loads that a capacity lets through.
Reach reach_of(const ExpertPopularity& p, const ExpertPlacement& placement, std::span<const double> kept,
               int ranks_per_node) {
  Reach out;
  const std::size_t k = p.draws.clock.size();
  const int ranks = placement.gpus();
  for (int first = 0; first < ranks; first += ranks_per_node) {
    Touch node(k);
    double node_load = 0, node_kept = 0;
    for (int r = first; r < std::min(ranks, first + ranks_per_node); ++r) {
      Touch rank(k);
      double load = 0, rank_kept = 0;
      for (const std::int32_t e : placement.on_gpu[static_cast<std::size_t>(r)]) {
        const auto i = static_cast<std::size_t>(e);
        rank.add(p, e, placement.copies[i]);
        node.add(p, e, placement.copies[i]);
        load += p.loads[i] / placement.copies[i];
        rank_kept += kept[i] / placement.copies[i];
      }
      out.rank.push_back(rank.probability(p));
      out.rank_sent.push_back(load > 0 ? out.rank.back() * rank_kept / load : 0);
      node_load += load;
      node_kept += rank_kept;
    }
    out.node.push_back(node.probability(p));
    out.node_sent.push_back(node_load > 0 ? out.node.back() * node_kept / node_load : 0);
  }
  return out;
}

/// E[min(X, limit)] where X counts independent events of these probabilities.
double capped_count(std::span<const double> chances, int limit) {
  std::vector<double> law(static_cast<std::size_t>(limit) + 1, 0.0);  // the last entry: limit or more
  law[0] = 1;
  for (const double p : chances) {
    law.back() += law[law.size() - 2] * p;
    for (std::size_t j = law.size() - 2; j > 0; --j) law[j] = law[j] * (1 - p) + law[j - 1] * p;
    law[0] *= 1 - p;
  }
  double mean = 0;
  for (std::size_t j = 0; j < law.size(); ++j) mean += static_cast<double>(j) * law[j];
  return mean;
}

double sum(std::span<const double> v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double busiest_over_mean(std::span<const double> v) { return max_violation(v) + 1; }

bool own_groups(const ExpertLoadQuestion& q) {
  return q.routing_groups > 1 && q.groups_per_token > 0 && q.groups_per_token < q.routing_groups;
}

/// The nodes that a token can reach at most.
int limit_of(const ExpertLoadQuestion& q, int nodes) {
  if (own_groups(q)) {
    const int spread = (nodes + q.routing_groups - 1) / q.routing_groups;  // nodes that a group lies on
    return std::min(nodes, q.groups_per_token * spread);
  }
  return q.nodes_per_token > 0 && q.nodes_per_token < nodes ? q.nodes_per_token : nodes;
}

/// Distinct nodes and ranks of a token whose experts are equally popular and evenly spread.
void uniform_reach(const ExpertLoadQuestion& q, ExpertLoad& out) {
  const std::int64_t n = q.moe->experts, k = q.moe->top_k;
  const double nodes = static_cast<double>(q.ep) / q.ranks_per_node;
  const int limit = limit_of(q, out.nodes);
  const bool whole = q.ep % q.ranks_per_node == 0 && n % out.nodes == 0;
  if (out.nodes <= 1) {
    out.distinct_nodes = 1;
  } else if (own_groups(q)) {
    out.distinct_nodes = distinct_parts_of_groups(n, k, q.routing_groups, q.groups_per_token, out.nodes);
  } else if (limit < out.nodes && whole) {
    out.distinct_nodes = distinct_groups_limited(n, k, out.nodes, limit);
  } else {
    out.distinct_nodes = std::min(distinct_groups(n, k, nodes), static_cast<double>(limit));
  }
  // Under a node limit the k experts come from `limit` nodes' worth of ranks.
  const double part = limit < out.nodes ? static_cast<double>(limit) / out.nodes : 1;
  const auto pool = std::max<std::int64_t>(k, static_cast<std::int64_t>(std::llround(static_cast<double>(n) * part)));
  out.distinct_ranks = own_groups(q) ? distinct_parts_of_groups(n, k, q.routing_groups, q.groups_per_token, q.ep)
                                     : std::min(distinct_groups(pool, k, q.ep * part), static_cast<double>(q.ep));
}

/// The picks of one token are fixed in number, so the nodes that they touch vary less than independent events do: exact
/// law over independent law, both for equal weights.
double capped_count_correction(const ExpertLoadQuestion& q, int nodes, int limit) {
  if (q.moe->experts % nodes != 0) return 1;
  const double chance = distinct_groups(q.moe->experts, q.moe->top_k, nodes) / nodes;
  const std::vector<double> even(static_cast<std::size_t>(nodes), chance);
  return distinct_groups_limited(q.moe->experts, q.moe->top_k, nodes, limit) / capped_count(even, limit);
}

/// Does every routing group lie on as few nodes as it can? Otherwise its limit spares no node.
bool groups_stay_together(const ExpertLoadQuestion& q, const ExpertPlacement& placement, int nodes) {
  const auto size = static_cast<std::size_t>(q.moe->experts / q.routing_groups);
  std::vector<std::vector<char>> on(static_cast<std::size_t>(q.routing_groups),
                                    std::vector<char>(static_cast<std::size_t>(nodes), 0));
  for (std::size_t r = 0; r < placement.on_gpu.size(); ++r) {
    for (const std::int32_t e : placement.on_gpu[r])
      on[static_cast<std::size_t>(e) / size][r / static_cast<std::size_t>(q.ranks_per_node)] = 1;
  }
  const int fewest = (nodes + q.routing_groups - 1) / q.routing_groups;
  const int most = std::max(nodes, q.routing_groups) % std::min(nodes, q.routing_groups) == 0 ? fewest : fewest + 1;
  return std::all_of(on.begin(), on.end(),
                     [&](const auto& group) { return std::count(group.begin(), group.end(), 1) <= most; });
}

/// Distinct nodes and ranks of the unlimited draw, shrunk as the group limit shrinks those of equal popularities.
void shrink_by_groups(const ExpertLoadQuestion& q, ExpertLoad& out) {
  ExpertLoad free_reach = out, held_reach = out;
  ExpertLoadQuestion free = q;
  free.routing_groups = 0;
  uniform_reach(free, free_reach);
  uniform_reach(q, held_reach);
  out.distinct_nodes *= held_reach.distinct_nodes / free_reach.distinct_nodes;
  out.distinct_ranks *= held_reach.distinct_ranks / free_reach.distinct_ranks;
}

void skewed_reach(const ExpertLoadQuestion& q, const ExpertPlacement& placement, const Reach& reach, ExpertLoad& out) {
  if (own_groups(q)) {
    out.distinct_nodes = sum(reach.node);
    out.distinct_ranks = sum(reach.rank);
    if (groups_stay_together(q, placement, out.nodes)) shrink_by_groups(q, out);
    return;
  }
  const int limit = limit_of(q, out.nodes);
  const double free_nodes = sum(reach.node), free_ranks = sum(reach.rank);
  out.distinct_nodes = free_nodes;
  if (limit < out.nodes)
    out.distinct_nodes = capped_count(reach.node, limit) * capped_count_correction(q, out.nodes, limit);
  // Fewer nodes hold the same k picks: ranks shrink as if picks fell evenly on the ranks of the nodes that are left.
  out.distinct_ranks = free_ranks;
  if (limit < out.nodes && out.distinct_nodes < free_nodes) {
    ExpertLoad uniform_free = out, uniform_held = out;
    ExpertLoadQuestion free = q;
    free.nodes_per_token = 0;
    uniform_reach(free, uniform_free);
    uniform_reach(q, uniform_held);
    out.distinct_ranks *= uniform_held.distinct_ranks / uniform_free.distinct_ranks;
  }
}

void count_copies(const ExpertLoadQuestion& q, ExpertLoad& out) {
  const double k = static_cast<double>(q.moe->top_k), nodes = out.nodes, g = std::min(q.ranks_per_node, q.ep);
  const double other_nodes = nodes > 1 ? 1 - 1 / nodes : 0, other_ranks = g > 1 ? 1 - 1 / g : 0;
  out.remote_nodes = out.distinct_nodes * other_nodes;
  if (sends_every_copy(q.transport)) {  // k copies, each straight to its rank
    out.network_copies = k * (q.count_own_node ? 1 : other_nodes);
    out.nvlink_copies = q.count_own_node ? k : k / nodes * other_ranks;
    if (nodes <= 1) out.network_copies = 0;
    return;
  }
  const double reached = q.every_copy ? std::min({static_cast<double>(limit_of(q, out.nodes)), k}) : out.distinct_nodes;
  const double ranks = q.every_copy ? k : out.distinct_ranks;
  out.network_copies = nodes > 1 ? reached * (q.count_own_node ? 1 : other_nodes) : 0;
  // A copy that lands on the entry rank (the source's place in its node) needs no NVLink: one in g.
  out.nvlink_copies = ranks * (q.count_own_node ? 1 : other_ranks);
}

/// Whole tokens of expected ones: each running sum rounded, so that the sum stays what it is (8 pairs over 32 experts
/// are 8 experts of one token, not 32 of none).
std::vector<std::int64_t> whole_tokens(std::span<const double> expected) {
  std::vector<std::int64_t> out;
  double sum = 0;
  std::int64_t given = 0;
  for (const double tokens : expected) {
    sum += tokens;
    out.push_back(std::llround(sum) - given);
    given += out.back();
  }
  return out;
}
std::vector<std::int64_t> even_tokens(double experts, double tokens) {
  return whole_tokens(std::vector<double>(static_cast<std::size_t>(experts), tokens));
}

std::vector<std::int64_t> tokens_of(const ExpertPlacement& placement, int rank, std::span<const double> loads,
                                    double pairs) {
  std::vector<double> expected;
  for (const std::int32_t e : placement.on_gpu[static_cast<std::size_t>(rank)]) {
    const auto i = static_cast<std::size_t>(e);
    expected.push_back(pairs * loads[i] / placement.copies[i]);
  }
  return whole_tokens(expected);
}

void uniform_work(const ExpertLoadQuestion& q, ExpertLoad& out) {
  const std::int64_t n = q.moe->experts;
  const std::int64_t most = (n + q.ep - 1) / q.ep;
  const double pairs = out.pairs_per_rank * q.ep;
  out.hottest = even_tokens(static_cast<double>(most), pairs / static_cast<double>(n));
  out.mean = out.hottest;
  if (n % q.ep != 0) {
    const std::int64_t least = n / q.ep;
    const double held = std::max(1.0, static_cast<double>(least));
    out.mean = even_tokens(held, out.pairs_per_rank / held);
  }
  out.max_over_mean_rank = out.lower_bound_rank = static_cast<double>(most) * q.ep / static_cast<double>(n);
}

/// Loads that a capacity lets through, still as shares of all selections.
std::vector<double> kept_loads(std::span<const double> loads, double factor) {
  std::vector<double> out(loads.begin(), loads.end());
  if (factor > 0) {
    for (double& l : out) l = std::min(l, factor / static_cast<double>(loads.size()));
  }
  return out;
}

void placed_work(const ExpertLoadQuestion& q, const ExpertPopularity& p, const ExpertPlacement& placement,
                 std::span<const double> kept, ExpertLoad& out) {
  const std::vector<double> loads = gpu_loads(placement, kept);
  const auto hottest = static_cast<int>(std::max_element(loads.begin(), loads.end()) - loads.begin());
  const double all = q.tokens_per_rank * static_cast<double>(q.moe->top_k) * q.ep;  // selections of the group
  out.hottest = tokens_of(placement, hottest, kept, all);
  const double slots = std::max(1.0, std::round(static_cast<double>(placement.physical()) / q.ep));
  out.mean = even_tokens(slots, out.pairs_per_rank / slots);
  out.max_over_mean_rank = busiest_over_mean(loads);
  out.max_over_mean_expert = busiest_over_mean(p.loads);
  out.lower_bound_rank = busiest_gpu_bound(placement, kept) * q.ep / std::max(sum(kept), 1e-300);
}

}  // namespace

ExpertTransport expert_transport(Transport t) {
  switch (t) {
    case Transport::nccl:
      return ExpertTransport::nccl;
    case Transport::hybridep:
      return ExpertTransport::hybridep;
    default:
      return ExpertTransport::deepep;
  }
}

bool sends_every_copy(ExpertTransport t) {
  return t == ExpertTransport::nccl || t == ExpertTransport::deepep_low_latency;
}

ExpertPopularity make_popularity(const Skew& skew, std::int64_t experts, std::int64_t top_k, std::int64_t tokens,
                                 std::uint64_t seed) {
  ExpertPopularity p;
  p.uniform = skew.kind == SkewKind::none;
  p.experts = experts;
  p.top_k = top_k;
  p.weights = popularity(skew, experts, top_k, tokens, seed);
  p.loads = expected_loads(p.weights, top_k);
  p.draws = mean_draws(p.weights, top_k);
  for (const double w : p.weights) {
    for (std::size_t j = 0; j < p.draws.clock.size(); ++j) {
      p.shift.push_back((1 - std::exp(-w * p.draws.clock[j])) * (p.draws.next[j] - w));
    }
  }
  return p;
}

ExpertPopularity limit_to_nodes(ExpertPopularity p, int nodes, int nodes_per_token, std::uint64_t seed,
                                std::int64_t tokens) {
  if (p.uniform || nodes_per_token <= 0 || nodes_per_token >= nodes) return p;
  TokenSampler sampler(p.weights, p.top_k, nodes, nodes_per_token);
  Random random(seed ^ 0x6c696d6974ULL);
  std::fill(p.loads.begin(), p.loads.end(), 0.0);
  const double share = 1.0 / static_cast<double>(tokens * p.top_k);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (const std::int32_t e : sampler.draw(random)) p.loads[static_cast<std::size_t>(e)] += share;
  }
  return p;
}

ExpertLoad expert_load(const ExpertLoadQuestion& q) {
  ExpertLoad out;
  const Moe& moe = *q.moe;
  out.nodes = (q.ep + q.ranks_per_node - 1) / q.ranks_per_node;
  out.pairs_per_rank = q.tokens_per_rank * static_cast<double>(moe.top_k);
  const bool uniform = q.popularity == nullptr || q.popularity->uniform;
  if (!uniform && q.capacity_factor > 0) {
    const auto shares = capacity_shares(q.popularity->loads, q.capacity_factor);
    out.dropped = shares.dropped;
    out.padding = shares.padding;
  } else if (q.capacity_factor > 0) {
    out.dropped = std::max(0.0, 1 - q.capacity_factor);
    out.padding = std::max(0.0, 1 - (1 - out.dropped) / q.capacity_factor);
  }
  out.pairs_per_rank *= 1 - out.dropped;

  if (uniform && q.redundant == 0 && q.placement == nullptr) {
    uniform_reach(q, out);
    uniform_work(q, out);
  } else {
    std::optional<ExpertPopularity> even;
    if (q.popularity == nullptr) even = make_popularity({}, moe.experts, moe.top_k, 0, 0);
    const ExpertPopularity& p = even ? *even : *q.popularity;
    std::optional<ExpertPlacement> own;
    if (q.placement == nullptr) {
      own = q.redundant > 0 ? place_balanced(p.loads, q.ep, q.redundant) : place_contiguous(moe.experts, q.ep);
    }
    const ExpertPlacement& placement = own ? *own : *q.placement;
    const std::vector<double> kept = kept_loads(p.loads, q.capacity_factor);
    const Reach reach = reach_of(p, placement, kept, q.ranks_per_node);
    skewed_reach(q, placement, reach, out);
    placed_work(q, p, placement, kept, out);
    out.busiest_network = out.nodes > 1 ? busiest_over_mean(reach.node_sent) : 1;
    out.busiest_nvlink = busiest_over_mean(reach.rank_sent);
  }
  count_copies(q, out);
  const double values = q.tokens_per_rank * static_cast<double>(q.hidden) * (1 - out.dropped);
  out.dispatch_network = values * out.network_copies * q.dispatch_bytes_per_value;
  out.dispatch_nvlink = values * out.nvlink_copies * q.dispatch_bytes_per_value;
  out.combine_network = values * out.network_copies * q.combine_bytes_per_value;
  out.combine_nvlink = values * out.nvlink_copies * q.combine_bytes_per_value;
  return out;
}

double balance_flops_per_byte(const Moe& moe, double dispatch_bytes_per_value, double combine_bytes_per_value) {
  const double matrices = moe.gated ? 3 : 2;
  return 2 * matrices * static_cast<double>(moe.width) / (dispatch_bytes_per_value + combine_bytes_per_value);
}

}  // namespace shardplan
