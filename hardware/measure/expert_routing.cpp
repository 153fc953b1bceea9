#include "hardware/measure/expert_routing.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "base/random.hpp"

namespace shardplan {
namespace {

/// top_k distinct experts: the largest of log popularity + Gumbel noise.
std::vector<int> draw_experts(Random& random, const std::vector<double>& popularity, int top_k) {
  std::vector<double> score(popularity.size());
  for (std::size_t e = 0; e < score.size(); ++e) score[e] = popularity[e] + random.gumbel();
  std::vector<int> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](int a, int b) {
    return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(top_k));
  return order;
}

void check(const ExpertStepShape& s) {
  const BlockShape& b = s.block;
  if (s.ranks < 1 || s.experts_per_rank < 1 || s.layers < 1 || b.tokens < 1 || b.hidden < 1 || b.inner < 1 ||
      s.top_k < 1 || s.top_k > s.experts())
    throw InputError("shape", "ranks, experts, layers, tokens and sizes must be at least 1, top_k at most the experts");
}

}  // namespace

ExpertRouting::ExpertRouting(const ExpertStepShape& s)
    : ranks_(s.ranks), experts_per_rank_(s.experts_per_rank), experts_(s.experts()) {
  check(s);
  Random popular(s.seed * 7919);
  std::vector<double> popularity(static_cast<std::size_t>(experts_));
  for (double& z : popularity) z = s.skew * popular.normal();
  rows_.assign(static_cast<std::size_t>(ranks_ * experts_), 0);
  for (int from = 0; from < ranks_; ++from) {
    Random random(s.seed * 1000003 + static_cast<std::uint64_t>(from));
    std::vector<Copy> copies;
    for (std::int64_t t = 0; t < s.block.tokens; ++t) {
      for (const int e : draw_experts(random, popularity, s.top_k)) {
        copies.push_back({t, e});
        ++rows_[static_cast<std::size_t>(from * experts_ + e)];
      }
    }
    std::stable_sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) { return a.expert < b.expert; });
    std::vector<std::int64_t> places(copies.size());
    std::vector<int> found(static_cast<std::size_t>(s.block.tokens), 0);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const auto t = static_cast<std::size_t>(copies[i].token);
      places[t * static_cast<std::size_t>(s.top_k) + static_cast<std::size_t>(found[t]++)] =
          static_cast<std::int64_t>(i);
    }
    sent_.push_back(std::move(copies));
    places_.push_back(std::move(places));
  }
}

std::int64_t ExpertRouting::rows_between(int from, int to) const {
  std::int64_t n = 0;
  for (int e = 0; e < experts_per_rank_; ++e) n += rows(from, to * experts_per_rank_ + e);
  return n;
}

std::int64_t ExpertRouting::received(int rank) const {
  std::int64_t n = 0;
  for (int from = 0; from < ranks_; ++from) n += rows_between(from, rank);
  return n;
}

std::vector<std::int64_t> ExpertRouting::loads() const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(experts_), 0);
  for (int from = 0; from < ranks_; ++from) {
    for (int e = 0; e < experts_; ++e) out[static_cast<std::size_t>(e)] += rows(from, e);
  }
  return out;
}

std::vector<std::int64_t> ExpertRouting::expert_rows(int rank) const {
  const std::vector<std::int64_t> all = loads();
  const auto begin = all.begin() + std::ptrdiff_t{rank} * experts_per_rank_;
  return {begin, begin + experts_per_rank_};
}

}  // namespace shardplan
