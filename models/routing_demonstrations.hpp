#pragma once
// Three effects that people meet before they know their cause, as figures.
#include <cstdint>
#include <span>

#include "models/model.hpp"
#include "models/routing.hpp"

namespace shardplan {

/// One prompt in two batches: the same tokens, other batch mates before them. Under a capacity, first come first
/// served, some of the prompt's selections are dropped in one batch and kept in the other, so its output differs
/// although nothing about it changed. Dropless nothing can differ.
struct BatchMates {
  std::int64_t prompt_tokens = 0;
  double dropped_first = 0, dropped_second = 0;  // share of the prompt's selections, in each batch
  std::int64_t changed_tokens = 0;               // prompt tokens with another set of kept experts
  std::int64_t changed_dropless = 0;             // the same without a capacity
};
BatchMates batch_mates(std::span<const double> weights, std::int64_t top_k, std::int64_t prompt, std::int64_t mates,
                       double capacity_factor, std::uint64_t seed);

/// Shares of choices and tokens that change with the rounding of a router's scores (see rounding_flips).
struct RoundingReport {
  FlipShares bf16_scores, bf16_logits, reversed_sum;
};
RoundingReport rounding_report(const Moe&, std::int64_t hidden, std::int64_t tokens, std::uint64_t seed);

}  // namespace shardplan
