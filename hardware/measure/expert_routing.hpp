#pragma once
// Which rows of each rank go to which experts in an expert step. Drawn once from a popularity, not chosen by the
// router's product: as benchmarks force it, so that every run moves the same rows.
#include <cstdint>
#include <vector>

#include "hardware/measure/block_kernels.hpp"

namespace shardplan {

struct ExpertStepShape {
  int ranks = 2;
  int experts_per_rank = 2;
  int top_k = 2;
  int layers = 1;
  BlockShape block{64, 64, 64};  // tokens = of one rank; hidden and inner of an expert
  double skew = 0;               // standard deviation of the experts' log popularity, the same on every rank
  std::uint64_t seed = 1;
  bool spin = false, pin = false;

  int experts() const { return ranks * experts_per_rank; }
};

class ExpertRouting {
 public:
  /// InputError where the shape is none.
  explicit ExpertRouting(const ExpertStepShape&);

  /// One copy of a token on its way to an expert.
  struct Copy {
    std::int64_t token = 0;
    int expert = 0;
  };
  /// A rank's copies in the order in which they are sent: by expert, then by token.
  const std::vector<Copy>& sent(int rank) const { return sent_[static_cast<std::size_t>(rank)]; }
  /// Where the copies of a token stand in sent(rank): top_k of them, [token * top_k + i].
  const std::vector<std::int64_t>& places(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  /// Rows from a rank to an expert, and to all experts of a rank.
  std::int64_t rows(int from, int expert) const { return rows_[static_cast<std::size_t>(from * experts_ + expert)]; }
  std::int64_t rows_between(int from, int to) const;
  std::int64_t received(int rank) const;
  /// Rows of each expert of a rank.
  std::vector<std::int64_t> expert_rows(int rank) const;
  /// Rows of every expert.
  std::vector<std::int64_t> loads() const;

 private:
  int ranks_, experts_per_rank_, experts_;
  std::vector<std::vector<Copy>> sent_;
  std::vector<std::vector<std::int64_t>> places_;
  std::vector<std::int64_t> rows_;  // [from * experts + expert]
};

}  // namespace shardplan
