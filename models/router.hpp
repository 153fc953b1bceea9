#pragma once
// How a router's balance moves from step to step, under two laws that every answer names.
//
// mean-field: load = softmax(z); z += gain (load - 1/N): the more an expert is used the better it becomes. The only
// noise is
//   a normal draw of z before step 0. Step s is the load after s updates.
// tokens: each of T tokens takes the top k of z + Gumbel noise (so that it draws k distinct experts by the weights
// exp(z));
//   load = counts / (T k); z as before.
//
// Against the growth of z stand:
// - bias: selection by z + b, b -= rate sign(load - 1/N); the gates never see b (DeepSeek-V3, arXiv 2412.19437, 2.1.2).
// - aux-loss: z_i -= alpha N P_i (f_i - f.P), the gradient in logit space of alpha N sum f_i P_i with f held constant
//   (Switch, arXiv 2101.03961, 2.2): P = softmax(z), f = share of the selections. f is that of each micro-batch, or of
//   the global batch (one all-reduce of N counts; Qiu et al., arXiv 2501.11873): the first makes every domain spread
//   over the experts, the second only their sum. Domains (`domain_spread`) are orthogonal to the router: the loss moves
//   the logits of each by its own gradient. Near even loads a step multiplies a deviation by about
//   1 + (gain - alpha) / N: it grows below alpha = gain, and overshoots beyond alpha = gain + 2 N.
// - z-loss: z_i -= c d/dz_i logsumexp(z)^2 = 2 c logsumexp(z) P_i (ST-MoE, arXiv 2202.08906): bounds the logits, not
//   their order.
// - expert-choice: every expert takes its T k / N best tokens: loads are equal by construction, tokens may go unchosen,
//   and which tokens it takes depends on later tokens of the sequence (a causal leak; arXiv 2202.09368).
// - hash: k experts by a hash of the token's id; ids follow Zipf's law over a vocabulary, nothing is learned.
//
// What this leaves out: tokens have no features, so experts cannot specialise (except by `domain_spread`, and the gain
// acts on what the domains share), and the gain is one constant where training has a curve.
#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

enum class Balance { none, aux_loss, bias, expert_choice, hash };

struct RouterQuestion {
  std::int64_t experts = 16;
  std::int64_t top_k = 1;
  std::int64_t steps = 100;  // entries of the series: steps 0 .. steps-1
  Balance balance = Balance::none;
  std::int64_t tokens = 0;  // a step; 0 = mean-field
  double gain = 0.8;
  double noise = 0.01;  // standard deviation of z before step 0
  double bias_rate = 0.01;
  double alpha = 0.5;
  double z_loss = 0;
  std::uint64_t seed = 1;
  std::int64_t micro_batches = 1;  // of a step, each of its own domain
  bool global_loss = false;        // aux-loss: f of the whole step; otherwise of each micro-batch alone
  double domain_spread = 0;        // standard deviation of the logit offset that each micro-batch's domain begins with
  std::int64_t vocabulary = 129280;  // hash: token ids
  double token_zipf = 1.0;           // hash: exponent of the ids' frequency
};

struct RouterStep {
  double max_violation = 0;  // busiest load over 1/N, minus 1
  double idle_experts = 0;   // tokens: experts with no token; mean-field: below a hundredth of 1/N
  double aux_loss = 1;       // N sum f_i P_i: 1 = even, N = all on one
  double logit_spread = 0;   // largest z - smallest z
  double log_sum_exp = 0;
  double unchosen_tokens = 0;  // expert-choice: share of the tokens that no expert took
  double micro_violation = 0;  // max violation inside a micro-batch, mean over them: domains that keep their experts
};

struct RouterSeries {
  std::string law;  // a sentence
  std::vector<RouterStep> steps;
  RouterStep final;  // tokens: mean of the last `window` steps; mean-field: the last step
  std::int64_t window = 1;
  double sampling_noise = 0;  // max violation that even loads would show from T k draws alone (tokens)
  // bias: z grows by gain x excess a step while b can undo `bias_rate`: the rate holds only where it is larger.
  double bias_rate_needed = 0;  // largest gain x (load - 1/N) in the window
  // Why bias or aux-loss did not hold (max violation beyond 5 x the sampling noise and not falling); one at most:
  bool rate_too_small = false;
  bool rate_too_large = false;  // each step overshoots the balance: alpha beyond gain + 2 N, or the bias swings
  std::vector<double> loads;    // of the last step
};

/// InputError (naming the option) where a count is out of range or the law does not cover the method.
RouterSeries simulate_router(const RouterQuestion&);

/// Expected maximum over N experts of the relative deviation of counts of T k fair draws: sqrt(2 ln N (N/(T k)) (1 -
/// k/N)), a bound that is 10-20 % above the mean at N = 16.
double sampling_violation(std::int64_t experts, std::int64_t top_k, std::int64_t tokens);

const char* balance_name(Balance);
Balance parse_balance(const std::string& text, const std::string& where);

}  // namespace shardplan
