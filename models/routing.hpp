#pragma once
// What one router does with one token, as the published models define it, and what capacity does to a batch of tokens.
// Numbers only: who sits where is layouts' business.
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.hpp"
#include "models/model.hpp"

namespace shardplan {

/// Affinities of N experts. softmax: e^z / sum; sigmoid: 1 / (1 + e^-z); sqrt_softplus: sqrt(ln(1 + e^z)).
std::vector<double> router_scores(RouterScore, std::span<const double> logits);

/// One token's experts, best first, and their gates.
struct Selection {
  std::vector<std::int64_t> experts;
  std::vector<double> gates;
};

/// Token choice. Selection by score + bias, gates from the score alone; `bias` may be empty.
/// - renormalise: gates over their sum (softmax before top-k, then renormalised = softmax over the chosen k alone);
///   then times routed_scaling.
/// - groups > 1: the groups_per_token groups of highest group score stay, and k are taken among their experts. Group
/// score =
///   sum of the k / groups_per_token best score + bias in the group (DeepSeek-V3, arXiv 2412.19437 2.1.2,
///   "node-limited") where the model has a selection bias, else the best score (DeepSeek-V2, arXiv 2405.04434 2.2.2,
///   "device-limited").
/// Ties go to the lower expert number.
Selection select_experts(const Moe&, std::span<const double> logits, std::span<const double> bias = {});

/// The gates that the chosen experts get for other logits, the choice kept: what a finite difference has to hold fixed.
std::vector<double> gates_of(const Moe&, std::span<const double> logits, std::span<const std::int64_t> chosen);

/// d gate_j / d logit_i by central differences of width `step`, the choice held; rows = chosen experts, columns = N
/// logits.
std::vector<std::vector<double>> gate_gradients(const Moe&, std::span<const double> logits, double step = 1e-5);

/// Tokens (rows of k experts, in the order that the kernel sees them) against a capacity per expert.
struct CapacityOutcome {
  std::vector<std::int64_t> load;       // pairs that each expert accepts
  std::vector<std::vector<bool>> kept;  // by token and choice: false = dropped, the token passes by its residual
  std::int64_t dropped = 0;             // pairs
  std::int64_t padded = 0;              // empty rows in the fixed-size expert batches
  std::int64_t capacity = 0;            // rows an expert; 0 = dropless
};

/// capacity = ceil(pairs / experts x factor) (Switch, arXiv 2101.03961, eq. 3, with k selections a token); first come,
/// first served in token order. factor <= 0: dropless (no capacity, no padding: MegaBlocks, arXiv 2211.15841).
CapacityOutcome apply_capacity(std::span<const std::vector<std::int64_t>> tokens, std::int64_t experts, double factor);

/// Expected share of the selections that a capacity of `factor` drops when expert i receives expected_loads[i] of them,
/// and the share of expert rows that are padding: sum of max(0, load - factor / N), and 1 - kept / factor. Leaves out
/// the counting noise of few tokens, which drops more.
struct CapacityShares {
  double dropped = 0;
  double padding = 0;
};
CapacityShares capacity_shares(std::span<const double> loads, double factor);

/// Draws tokens by popularity (see popularity.hpp), optionally limited to a number of groups (nodes) a token.
class TokenSampler {
 public:
  /// `groups` equal runs of experts, of which a token may use `groups_per_token` (0 or >= groups: no limit). The
  /// group's score is the sum of the k / groups_per_token best softmax scores in it, as DeepSeek-V3 selects nodes.
  TokenSampler(std::span<const double> weights, std::int64_t top_k, std::int64_t groups = 1,
               std::int64_t groups_per_token = 0);

  /// The k experts of the next token, ascending; the view lives until the next call.
  std::span<const std::int32_t> draw(Random&);

 private:
  void draw_free(Random&);
  void draw_limited(Random&);
  void draw_by_clocks(Random&);

  std::vector<double> weights_;
  std::vector<double> threshold_;  // alias table (Walker 1977, Vose 1991)
  std::vector<std::int32_t> alias_;
  std::int64_t top_k_, groups_, limit_;
  std::vector<std::int32_t> chosen_;
  std::vector<double> clocks_;  // exponential arrival times, smaller = chosen earlier
  std::vector<std::int32_t> order_;
  std::vector<std::pair<double, std::int32_t>> group_scores_;
  std::vector<char> open_;
};

/// Expected share of the selections that a capacity drops where `tokens` are counted together, each taking k distinct
/// experts: mean over experts of E[max(0, X - C)] / mean X, X binomial (tokens, k x load), C = ceil(tokens k / N x
/// factor) rows. Frameworks count the tokens of one GPU (Switch; Megatron core, moe_utils.py get_capacity), so even
/// loads drop too: at C = mean about 0.4 / sqrt(mean) of them. Beyond a standard deviation of 50 the normal law stands
/// for the binomial.
double counted_drops(std::span<const double> loads, std::int64_t top_k, std::int64_t tokens, double factor);

/// Share of tokens whose chosen set, and share of choices that, change between two ways of computing the same scores.
struct FlipShares {
  double choices = 0;  // of the k per token
  double tokens = 0;   // with at least one changed choice
};

/// Choices that change when the same scores are computed in another way, against FP32 products summed in order.
/// bf16_scores: scores rounded to BF16 before top-k; bf16_logits: the product's result rounded; reversed_sum: the same
/// FP32 products summed from the other end. So few choices flip by the last that no affordable number of tokens shows
/// one; `reversed_expected` = E|d| / 2 / (mean gap) / k of the choices, d = difference of the two errors at the
/// boundary between the last expert taken and the first not taken, the gap there exponential (top order statistics of a
/// smooth law).
struct RoundingReport {
  FlipShares bf16_scores, bf16_logits, reversed_sum;
  double reversed_expected = 0;
  double mean_gap = 0, mean_error = 0;  // logits: of that boundary, E|d|
  std::int64_t tokens = 0;
};
/// A router of `hidden` inputs at initialisation (normal inputs in BF16, weights of deviation 1/sqrt(hidden)), top-k
/// alone.
RoundingReport rounding_report(const Moe&, std::int64_t hidden, std::int64_t tokens, std::uint64_t seed);

/// x to the nearest BF16 (ties to even), as a float.
float to_bf16(float x);

/// Bytes per sequence of recording every token's expert ids for replay: tokens x k x MoE layers x bytes an id (2).
double replay_bytes(std::int64_t tokens, std::int64_t top_k, std::int64_t moe_layers, double bytes_per_id = 2);

}  // namespace shardplan
