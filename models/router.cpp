#include "models/router.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/random.hpp"
#include "base/suggest.hpp"
#include "models/popularity.hpp"

namespace shardplan {

namespace {

constexpr std::array<const char*, 5> kBalanceNames{"none", "aux-loss", "bias", "expert-choice", "hash"};
constexpr std::int64_t kFinalWindow = 50;

/// A stream of its own for every (seed, a, b): Random's states are equally spaced, so nearby seeds must be scattered
/// first.
Random stream(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0) {
  const std::uint64_t first = Random(seed).next() ^ a;
  return Random(Random(Random(first).next() ^ b).next());
}
enum Stream : std::uint64_t { kStart = 1, kDomain = 2, kHash = 3, kTokens = 16 };

using Vector = std::vector<double>;

Vector softmax(const Vector& z) {
  const double top = *std::max_element(z.begin(), z.end());
  Vector p(z.size());
  double sum = 0;
  for (std::size_t i = 0; i < z.size(); ++i) sum += p[i] = std::exp(z[i] - top);
  for (double& v : p) v /= sum;
  return p;
}

double log_sum_exp(const Vector& z) {
  const double top = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double v : z) sum += std::exp(v - top);
  return top + std::log(sum);
}

double dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

Vector sum_of(const Vector& a, const Vector& b) {
  Vector out(a);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += b[i];
  return out;
}

/// What one micro-batch's routing gave.
struct Batch {
  Vector probabilities;  // P: softmax of the logits that its tokens share
  Vector load;           // f: share of its selections
  double unchosen = 0;
};

/// The state of one run and the stream of tokens, the same for every method of one seed.
class RouterRun {
 public:
  explicit RouterRun(const RouterQuestion& question) : q_(question), n_(static_cast<std::size_t>(question.experts)) {
    Random random = stream(q_.seed, kStart);
    for (std::size_t i = 0; i < n_; ++i) z_.push_back(q_.noise * random.normal());
    bias_.assign(n_, 0.0);
    for (std::int64_t b = 0; b < q_.micro_batches && q_.domain_spread > 0; ++b) {
      Random domain = stream(q_.seed, kDomain, static_cast<std::uint64_t>(b));
      Vector& offset = domains_.emplace_back();
      for (std::size_t i = 0; i < n_; ++i) offset.push_back(q_.domain_spread * domain.normal());
    }
    if (q_.balance == Balance::hash) prepare_hash();
  }

  RouterStep step(std::int64_t s) {
    const std::vector<Batch> batches = q_.tokens == 0 ? std::vector<Batch>{mean_field()} : route(s);
    Vector load(n_, 0.0), probabilities(n_, 0.0);
    RouterStep out;
    const double share = 1.0 / static_cast<double>(batches.size());
    for (const Batch& b : batches) {
      for (std::size_t i = 0; i < n_; ++i) load[i] += share * b.load[i];
      for (std::size_t i = 0; i < n_; ++i) probabilities[i] += share * b.probabilities[i];
      out.unchosen_tokens += share * b.unchosen;
      out.micro_violation += share * max_violation(b.load);
    }
    out.max_violation = max_violation(load);
    out.idle_experts = static_cast<double>(std::count_if(load.begin(), load.end(), [&](double l) { return idle(l); }));
    out.aux_loss = static_cast<double>(n_) * dot(load, probabilities);
    const auto [low, high] = std::minmax_element(z_.begin(), z_.end());
    out.logit_spread = *high - *low;
    out.log_sum_exp = log_sum_exp(z_);
    largest_pull_ = q_.gain * (*std::max_element(load.begin(), load.end()) - 1.0 / static_cast<double>(n_));
    update(load, batches);
    load_ = load;
    return out;
  }

  double largest_pull() const { return largest_pull_; }
  const Vector& load() const { return load_; }

 private:
  bool idle(double load) const { return q_.tokens > 0 ? load <= 0 : load < 0.01 / static_cast<double>(n_); }

  Batch mean_field() const {
    const Vector p = softmax(z_);
    return {p, q_.balance == Balance::bias ? softmax(sum_of(z_, bias_)) : p, 0};
  }

  /// Tokens of step s in micro-batches. Streams: step and micro-batch seed the noise, so that methods see the same
  /// tokens.
  std::vector<Batch> route(std::int64_t s) const {
    std::vector<Batch> out;
    const std::int64_t each = q_.tokens / q_.micro_batches;
    for (std::int64_t b = 0; b < q_.micro_batches; ++b) {
      Random random = stream(q_.seed, kTokens + static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(b));
      const Vector logits = domains_.empty() ? z_ : sum_of(z_, domains_[static_cast<std::size_t>(b)]);
      if (q_.balance == Balance::hash) {
        out.push_back(by_hash(each, random));
      } else if (q_.balance == Balance::expert_choice) {
        out.push_back(by_expert(each, logits, random));
      } else {
        out.push_back(by_token(each, logits, random));
      }
    }
    return out;
  }

  /// Top k of z + b + Gumbel = the k smallest of E exp(-z - b) with E exponential: one logarithm a draw.
  Batch by_token(std::int64_t tokens, const Vector& logits, Random& random) const {
    const Vector select = q_.balance == Balance::bias ? sum_of(logits, bias_) : logits;
    const double top = *std::max_element(select.begin(), select.end());
    Vector scale(n_);
    for (std::size_t i = 0; i < n_; ++i) scale[i] = std::exp(std::min(top - select[i], 700.0));
    const std::size_t k = static_cast<std::size_t>(q_.top_k);
    std::vector<std::int64_t> counts(n_, 0);
    Vector best(k);
    std::vector<std::size_t> who(k);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::size_t held = 0;
      for (std::size_t i = 0; i < n_; ++i) {
        const double key = -std::log(random.open_uniform()) * scale[i];
        if (held == k && key >= best[k - 1]) continue;
        std::size_t at = held < k ? held++ : k - 1;
        for (; at > 0 && best[at - 1] > key; --at) {
          best[at] = best[at - 1];
          who[at] = who[at - 1];
        }
        best[at] = key;
        who[at] = i;
      }
      for (std::size_t j = 0; j < k; ++j) ++counts[who[j]];
    }
    return {softmax(logits), shares(counts, tokens * q_.top_k), 0};
  }

  /// Every expert takes its T k / N tokens of highest softmax score; equal scores by token number.
  Batch by_expert(std::int64_t tokens, const Vector& logits, Random& random) const {
    const std::size_t t_count = static_cast<std::size_t>(tokens);
    const std::size_t capacity =
        std::min(t_count, static_cast<std::size_t>(std::max<std::int64_t>(1, tokens * q_.top_k / q_.experts)));
    std::vector<float> scores(t_count * n_);
    Vector token(n_);
    for (std::size_t t = 0; t < t_count; ++t) {
      for (std::size_t i = 0; i < n_; ++i) token[i] = logits[i] + random.gumbel();
      const Vector p = softmax(token);
      for (std::size_t i = 0; i < n_; ++i) scores[i * t_count + t] = static_cast<float>(p[i]);
    }
    std::vector<char> chosen(t_count, 0);
    std::vector<std::size_t> order(t_count);
    for (std::size_t i = 0; i < n_; ++i) {
      const float* score = &scores[i * t_count];
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::nth_element(
          order.begin(), order.begin() + static_cast<std::ptrdiff_t>(capacity - 1), order.end(),
          [&](std::size_t a, std::size_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
      for (std::size_t c = 0; c < capacity; ++c) chosen[order[c]] = 1;
    }
    const auto taken = std::count(chosen.begin(), chosen.end(), char{1});
    const double unchosen = 1 - static_cast<double>(taken) / static_cast<double>(tokens);
    return {softmax(logits), Vector(n_, 1.0 / static_cast<double>(n_)), unchosen};
  }

  void prepare_hash() {
    double sum = 0;
    for (std::int64_t id = 0; id < q_.vocabulary; ++id) {
      frequency_.push_back(sum += std::pow(static_cast<double>(id + 1), -q_.token_zipf));
    }
  }

  /// k distinct experts from a hash of the token id: the table a model stores (token id to experts), computed.
  Batch by_hash(std::int64_t tokens, Random& random) const {
    std::vector<std::int64_t> counts(n_, 0);
    std::vector<std::uint64_t> taken;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double at = random.uniform() * frequency_.back();
      const auto id = std::upper_bound(frequency_.begin(), frequency_.end(), at) - frequency_.begin();
      Random hash = stream(q_.seed, kHash, static_cast<std::uint64_t>(id));
      taken.clear();
      while (taken.size() < static_cast<std::size_t>(q_.top_k)) {
        const std::uint64_t expert = hash.below(n_);
        if (std::find(taken.begin(), taken.end(), expert) != taken.end()) continue;
        taken.push_back(expert);
        ++counts[expert];
      }
    }
    return {Vector(n_, 1.0 / static_cast<double>(n_)), shares(counts, tokens * q_.top_k), 0};
  }

  Vector shares(const std::vector<std::int64_t>& counts, std::int64_t all) const {
    Vector out;
    for (const std::int64_t c : counts) out.push_back(static_cast<double>(c) / static_cast<double>(all));
    return out;
  }

  void update(const Vector& load, const std::vector<Batch>& batches) {
    if (q_.balance == Balance::hash) return;  // nothing is learned
    const double n = static_cast<double>(n_), even = 1 / n;
    Vector change(n_, 0.0);
    for (std::size_t i = 0; i < n_; ++i) change[i] += q_.gain * (load[i] - even);
    for (std::size_t b = 0; b < batches.size() && q_.balance == Balance::aux_loss; ++b) {
      const Vector& p = batches[b].probabilities;
      const Vector& f = q_.global_loss ? load : batches[b].load;
      const double mean = dot(f, p), rate = q_.alpha * n;
      for (std::size_t i = 0; i < n_; ++i) {
        const double gradient = rate * p[i] * (f[i] - mean);
        if (domains_.empty())
          change[i] -= gradient / static_cast<double>(batches.size());
        else
          domains_[b][i] -= gradient;
      }
    }
    if (q_.z_loss > 0) {
      const double lse = log_sum_exp(z_);
      const Vector p = softmax(z_);
      for (std::size_t i = 0; i < n_; ++i) change[i] -= 2 * q_.z_loss * lse * p[i];
    }
    if (q_.balance == Balance::bias) {
      for (std::size_t i = 0; i < n_; ++i)
        bias_[i] -= q_.bias_rate * static_cast<double>((load[i] > even) - (load[i] < even));
    }
    for (std::size_t i = 0; i < n_; ++i) z_[i] += change[i];
  }

  const RouterQuestion& q_;
  std::size_t n_;
  Vector z_, bias_, load_;
  std::vector<Vector> domains_;  // offset of each micro-batch's logits; empty where all are alike
  Vector frequency_;             // hash: cumulative
  double largest_pull_ = 0;
};

void check_range(bool good, const char* option, const std::string& what) {
  if (!good) throw InputError(option, what);
}

void check(const RouterQuestion& q) {
  check_range(q.experts >= 2 && q.experts <= 65536, "--experts", "needs 2 to 65,536 experts");
  check_range(q.top_k >= 1 && q.top_k < q.experts, "--top-k", "needs 1 to experts - 1");
  check_range(q.steps >= 1 && q.steps <= 1000000, "--steps", "needs 1 to 1,000,000 steps");
  check_range(q.tokens >= 0 && q.tokens <= (1 << 24), "--tokens", "at most 16,777,216 tokens a step");
  const double work = static_cast<double>(std::max<std::int64_t>(q.tokens, 1)) * static_cast<double>(q.experts) *
                      static_cast<double>(q.steps);
  check_range(work <= 2e11, "--tokens", "tokens x experts x steps exceeds 2e11 draws (about an hour)");
  check_range(q.tokens == 0 || q.tokens % q.micro_batches == 0, "--micro-batches",
              "does not divide the tokens of a step");
  const bool mean_field = q.tokens == 0;
  check_range(!mean_field || (q.balance != Balance::expert_choice && q.balance != Balance::hash), "--tokens",
              std::string(balance_name(q.balance)) + " chooses tokens: the mean-field law has none");
  check_range(!mean_field || (q.micro_batches == 1 && q.domain_spread == 0), "--micro-batches",
              "the mean-field law has no tokens");
}

std::string law_of(const RouterQuestion& q) {
  std::string law = q.tokens == 0 ? std::string(q.balance == Balance::bias ? "mean-field: load = softmax(z + b)"
                                                                           : "mean-field: load = softmax(z)")
                                  : "tokens: " + text_of_count(q.tokens) + " a step";
  switch (q.balance) {
    case Balance::hash:
      return law + " go to k experts by a hash of their id, ids by Zipf's law; nothing is learned";
    case Balance::expert_choice:
      law += "; every expert takes its T k / N best of softmax(z + Gumbel)";
      break;
    case Balance::bias:
      if (q.tokens > 0) law += " take the top k of z + b + Gumbel, load = counts / (T k)";
      break;
    default:
      if (q.tokens > 0) law += " take the top k of z + Gumbel, load = counts / (T k)";
      break;
  }
  law += "; z += gain (load - 1/N)";
  if (q.balance == Balance::bias) law += "; b -= rate sign(load - 1/N)";
  if (q.balance == Balance::aux_loss) law += "; z_i -= alpha N P_i (f_i - f.P)";
  if (q.balance == Balance::aux_loss && q.micro_batches > 1)
    law += q.global_loss ? ", f of the global batch" : ", f of each micro-batch";
  if (q.domain_spread > 0 && q.balance == Balance::aux_loss) law += ", on each domain's own logits";
  if (q.z_loss > 0) law += "; z_i -= 2 c logsumexp(z) P_i";
  return law;
}

RouterStep mean_of(const std::vector<RouterStep>& steps, std::int64_t window) {
  RouterStep out;
  out.aux_loss = 0;
  const double share = 1.0 / static_cast<double>(window);
  for (auto s = steps.end() - window; s != steps.end(); ++s) {
    out.max_violation += share * s->max_violation;
    out.idle_experts += share * s->idle_experts;
    out.aux_loss += share * s->aux_loss;
    out.logit_spread += share * s->logit_spread;
    out.log_sum_exp += share * s->log_sum_exp;
    out.unchosen_tokens += share * s->unchosen_tokens;
    out.micro_violation += share * s->micro_violation;
  }
  return out;
}

/// Did the rate hold the balance; if not, is it too small or too large?
void judge_rate(const RouterQuestion& q, RouterSeries& out) {
  if (q.balance != Balance::bias && q.balance != Balance::aux_loss) return;
  const double quiet = std::max(5 * out.sampling_noise, 0.2);
  const RouterStep& middle = out.steps[out.steps.size() / 2];
  if (out.final.max_violation <= quiet || out.final.max_violation <= middle.max_violation * 0.8) return;
  if (q.balance == Balance::bias) {
    out.rate_too_small = out.bias_rate_needed > q.bias_rate;
    out.rate_too_large = !out.rate_too_small;
  } else {
    out.rate_too_large = q.alpha > q.gain + 2 * static_cast<double>(q.experts);
    out.rate_too_small = !out.rate_too_large && q.alpha < q.gain;
  }
}

}  // namespace

const char* balance_name(Balance b) { return kBalanceNames[static_cast<std::size_t>(b)]; }

Balance parse_balance(const std::string& text, const std::string& where) {
  for (std::size_t i = 0; i < kBalanceNames.size(); ++i) {
    if (text == kBalanceNames[i]) return static_cast<Balance>(i);
  }
  const std::vector<std::string> names(kBalanceNames.begin(), kBalanceNames.end());
  throw InputError(where, "unknown balance \"" + text + "\"" + did_you_mean(text, names) +
                              "; known: none, aux-loss, bias, expert-choice, hash");
}

double sampling_violation(std::int64_t experts, std::int64_t top_k, std::int64_t tokens) {
  const double n = static_cast<double>(experts), k = static_cast<double>(top_k), t = static_cast<double>(tokens);
  return std::sqrt(2 * std::log(n) * n / (t * k) * (1 - k / n));
}

RouterSeries simulate_router(const RouterQuestion& question) {
  check(question);
  RouterSeries out;
  out.law = law_of(question);
  RouterRun run(question);
  out.window = question.tokens > 0 ? std::min(kFinalWindow, question.steps) : 1;
  for (std::int64_t s = 0; s < question.steps; ++s) {
    out.steps.push_back(run.step(s));
    if (s >= question.steps - out.window) out.bias_rate_needed = std::max(out.bias_rate_needed, run.largest_pull());
  }
  out.loads = run.load();
  out.final = mean_of(out.steps, out.window);
  if (question.tokens > 0) out.sampling_noise = sampling_violation(question.experts, question.top_k, question.tokens);
  judge_rate(question, out);
  return out;
}

}  // namespace shardplan
