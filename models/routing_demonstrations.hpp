#pragma once
// Effects that people meet before they know their cause, as figures.
#include <cstdint>
#include <span>

#include "models/model.hpp"

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

/// Which of one token's logits its gates depend on, by central differences (the choice held): normal logits of the
/// seed. Sigmoid or renormalised gates depend on the chosen k alone; a softmax over all experts that is not
/// renormalised on every logit. A renormalised top-1 gate is constant: its router learns nothing from the output.
struct GateGradientReport {
  std::int64_t carrying = 0, silent = 0;  // logits with |d gate / d logit| above 1e-8 for some gate; the others
  double largest = 0;
  double top1_renormalised = 0;  // largest gradient of the same router with one renormalised gate
};
GateGradientReport gate_gradient_report(const Moe&, std::uint64_t seed);

}  // namespace shardplan
