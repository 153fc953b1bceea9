#include "models/routing_demonstrations.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/routing.hpp"

namespace shardplan {

namespace {

using Tokens = std::vector<std::vector<std::int64_t>>;

Tokens draw_tokens(TokenSampler& sampler, std::int64_t count, Random random) {
  Tokens out;
  for (std::int64_t t = 0; t < count; ++t) {
    const auto chosen = sampler.draw(random);
    out.emplace_back(chosen.begin(), chosen.end());
  }
  return out;
}

/// What becomes of the prompt's selections behind these mates.
std::vector<std::vector<bool>> kept_of_prompt(Tokens batch, const Tokens& prompt, std::int64_t experts, double factor) {
  batch.insert(batch.end(), prompt.begin(), prompt.end());
  CapacityOutcome outcome = apply_capacity(batch, experts, factor);
  return {outcome.kept.end() - static_cast<std::ptrdiff_t>(prompt.size()), outcome.kept.end()};
}

double dropped_share(const std::vector<std::vector<bool>>& kept) {
  double dropped = 0, all = 0;
  for (const auto& token : kept) {
    for (const bool k : token) dropped += k ? 0 : 1, all += 1;
  }
  return all > 0 ? dropped / all : 0;
}

std::int64_t different(const std::vector<std::vector<bool>>& a, const std::vector<std::vector<bool>>& b) {
  std::int64_t count = 0;
  for (std::size_t t = 0; t < a.size(); ++t) count += a[t] != b[t];
  return count;
}

}  // namespace

BatchMates batch_mates(std::span<const double> weights, std::int64_t top_k, std::int64_t prompt, std::int64_t mates,
                       double capacity_factor, std::uint64_t seed) {
  TokenSampler sampler(weights, top_k);
  const auto experts = static_cast<std::int64_t>(weights.size());
  Random streams(seed);
  const Tokens same = draw_tokens(sampler, prompt, Random(streams.next()));
  const Tokens first = draw_tokens(sampler, mates, Random(streams.next()));
  const Tokens second = draw_tokens(sampler, mates, Random(streams.next()));
  const auto a = kept_of_prompt(first, same, experts, capacity_factor);
  const auto b = kept_of_prompt(second, same, experts, capacity_factor);
  BatchMates out;
  out.prompt_tokens = prompt;
  out.dropped_first = dropped_share(a);
  out.dropped_second = dropped_share(b);
  out.changed_tokens = different(a, b);
  out.changed_dropless = different(kept_of_prompt(first, same, experts, 0), kept_of_prompt(second, same, experts, 0));
  return out;
}

GateGradientReport gate_gradient_report(const Moe& moe, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> logits;
  for (std::int64_t i = 0; i < moe.experts; ++i) logits.push_back(random.normal());
  GateGradientReport out;
  const auto rows = gate_gradients(moe, logits);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double most = 0;
    for (const auto& row : rows) most = std::max(most, std::abs(row[i]));
    ++(most > 1e-8 ? out.carrying : out.silent);
    out.largest = std::max(out.largest, most);
  }
  Moe one = moe;
  one.top_k = one.groups = one.groups_per_token = 1;
  one.renormalise = true;
  const auto alone = gate_gradients(one, logits);
  for (const double g : alone[0]) out.top1_renormalised = std::max(out.top1_renormalised, std::abs(g));
  return out;
}

}  // namespace shardplan
