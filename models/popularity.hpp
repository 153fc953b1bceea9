#pragma once
// How popular each expert is, and what loads follow when every token takes k distinct experts.
//
// The law of every draw in this project: a token takes k experts one after the other, each time with probability
// proportional to the weights of those not yet taken (successive sampling; the same as the k largest of log w +
// Gumbel). No expert can be taken twice by one token, so no share of the selections exceeds 1/k.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"

namespace shardplan {

enum class SkewKind { none, zipf, dirichlet, power_law, file };

/// A popularity as the command line names it: none | zipf:S | dirichlet:A | power-law:A | file:PATH.
struct Skew {
  SkewKind kind = SkewKind::none;
  double parameter = 0;  // exponent or concentration
  std::string path;      // file only: JSON array of counts, one an expert, or of such arrays, which are added up

  bool operator==(const Skew&) const = default;
};

/// InputError names `where` (the option) for an unknown word or a parameter out of range.
Skew parse_skew(std::string_view text, const std::string& where);
std::string skew_text(const Skew&);

/// What a file of counts says that no router with this top-k can do, as a sentence; empty where all is well.
/// InputError as in popularity().
std::string counts_note(const Skew&, std::int64_t experts, std::int64_t top_k);

/// Weights of the experts, positive, sum 1, in the order of the expert numbers. `tokens` are those of the whole group
/// (used by power-law). zipf: weight rank^-S, ranks dealt to the experts by the seed (hot experts are anywhere).
/// dirichlet: symmetric, concentration A each. power-law and file name loads, not weights: they are turned into the
/// weights whose expected loads they are (weights_of_loads), loads above 1/k cut to it.
std::vector<double> popularity(const Skew&, std::int64_t experts, std::int64_t top_k, std::int64_t tokens,
                               std::uint64_t seed);

/// `n` loads by inverse CDF of the density x^-exponent on [1, 0.8 tokens], not normalised. Source: the benchmark behind
/// the power-law rows of the measured grouped GEMMs (NVIDIA aiconfigurator, collector of mixture-of-experts layers).
std::vector<double> power_law_loads(std::int64_t n, double exponent, double tokens, Random&);

/// The k draws of one token in mean-field form: before draw j (from 0), expert i is taken with probability 1 - exp(-w_i
/// t_j), where sum_i 1 - exp(-w_i t_j) = j (Rosen 1972).
struct MeanDraws {
  std::vector<double> clock;  // t_j
  std::vector<double> taken;  // r_j: expected weight already taken
  std::vector<double> next;   // dr/dj: mean weight of the next expert taken
};
MeanDraws mean_draws(std::span<const double> weights, std::int64_t top_k);

/// Probability that none of a set of experts (given by their weights) is among a token's k:
/// prod_j (1 - W / (1 - r_j)), W = the set's weight and r_j the weight taken from the others alone: r_j less what the
/// set contributes to it, plus as many further draws from the rest. For equal weights exactly C(N-s, k) / C(N, k).
double probability_untouched(std::span<const double> set, const MeanDraws&);

/// Share of the selections that each expert receives in expectation (sum 1, each at most 1/k): 1 -
/// probability_untouched of the expert alone, rescaled to k. Exact for equal weights, within about 1 % of the draws
/// otherwise (a test measures it).
std::vector<double> expected_loads(std::span<const double> weights, std::int64_t top_k);

/// Loads as shares (sum 1), those above 1/k cut to it and the cut shared among the others in proportion (evenly where
/// the others have none).
std::vector<double> cap_loads(std::span<const double> loads, std::int64_t top_k);

/// Weights (sum 1) whose expected loads are `loads` (any positive scale), loads above 1/k cut to it and the rest scaled
/// up. Starts at w_i = -ln(1 - k load_i) and corrects the rates until expected_loads() agrees to 1e-6 of a selection.
std::vector<double> weights_of_loads(std::span<const double> loads, std::int64_t top_k);

/// Busiest over mean minus 1; 0 for no entries.
double max_violation(std::span<const double> loads);

}  // namespace shardplan
