// shardplan router: how a router's balance moves under each rule, as a series and a plot.
#include "models/router.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/output.hpp"

namespace shardplan {

namespace {

struct Options {
  std::string experts = "16", top_k = "1", steps = "101", tokens, micro_batches = "1", seed = "1";
  std::string balance = "none", aux_scope = "micro-batch";
  std::string gain = "0.8", noise = "0.01", bias_rate = "0.01", alpha = "0.5", z_loss = "0", domain_spread = "0";
  std::string format = "text";
};

double number_of(const std::string& text, const char* option, double least, double most) {
  const double value = parse_number(text, option);
  if (value < least || value > most) {
    throw InputError(option, "takes a number from " + text_of_number(least, 4) + " to " + text_of_number(most, 4));
  }
  return value;
}

RouterQuestion question_of(const Options& o) {
  RouterQuestion q;
  q.experts = parse_count(o.experts, "--experts");
  q.top_k = parse_count(o.top_k, "--top-k");
  q.steps = parse_count(o.steps, "--steps");
  q.balance = parse_balance(o.balance, "--balance");
  if (o.tokens.empty()) {
    q.tokens = q.balance == Balance::none ? 0 : 4096;
  } else if (o.tokens != "mean-field") {
    q.tokens = parse_binary_count(o.tokens, "--tokens");
    if (q.tokens == 0) throw InputError("--tokens", "needs at least one token a step, or the word mean-field");
  }
  q.micro_batches = parse_count(o.micro_batches, "--micro-batches");
  if (q.micro_batches < 1) throw InputError("--micro-batches", "needs at least 1");
  q.global_loss = o.aux_scope == "global-batch";
  if (!q.global_loss && o.aux_scope != "micro-batch")
    throw InputError("--aux-scope", "\"" + o.aux_scope + "\" is not one of micro-batch, global-batch");
  q.gain = number_of(o.gain, "--gain", 0, 100);
  q.noise = number_of(o.noise, "--noise", 0, 100);
  q.bias_rate = number_of(o.bias_rate, "--bias-rate", 0, 100);
  q.alpha = number_of(o.alpha, "--alpha", 0, 1000);
  q.z_loss = number_of(o.z_loss, "--z-loss", 0, 100);
  q.domain_spread = number_of(o.domain_spread, "--domain-spread", 0, 100);
  q.seed = static_cast<std::uint64_t>(parse_count(o.seed, "--seed"));
  return q;
}

nlohmann::ordered_json json_of(const RouterStep& s, const RouterQuestion& q) {
  nlohmann::ordered_json out;
  out["max_violation"] = s.max_violation;
  out["idle_experts"] = s.idle_experts;
  out["aux_loss"] = s.aux_loss;
  out["logit_spread"] = s.logit_spread;
  out["log_sum_exp"] = s.log_sum_exp;
  if (q.balance == Balance::expert_choice) out["unchosen_tokens"] = s.unchosen_tokens;
  if (q.micro_batches > 1) out["max_violation_in_micro_batch"] = s.micro_violation;
  return out;
}

/// What the reader should take from the run, one sentence each.
std::vector<std::string> remarks(const RouterQuestion& q, const RouterSeries& r) {
  std::vector<std::string> out;
  const std::string violation = text_of_number(r.final.max_violation, 3);
  if (r.rate_too_large && q.balance == Balance::bias) {
    out.push_back("bias rate " + text_of_number(q.bias_rate, 3) +
                  " is too large to settle: every step moves a selection logit by the whole rate past the balance (max "
                  "violation " +
                  violation + ")");
  } else if (r.rate_too_large) {
    out.push_back("alpha " + text_of_number(q.alpha, 3) + " is too large: beyond gain + 2 N = " +
                  text_of_number(q.gain + 2 * static_cast<double>(q.experts), 3) +
                  " a step overshoots the balance by more than it was off (max violation " + violation + ")");
  } else if (r.rate_too_small && q.balance == Balance::bias) {
    out.push_back(
        "bias rate " + text_of_number(q.bias_rate, 3) +
        " is too small to hold: z grows by up to gain x (load - 1/N) = " + text_of_number(r.bias_rate_needed, 3) +
        " a step, the bias undoes at most its rate (max violation " + violation + ")");
  } else if (r.rate_too_small) {
    out.push_back("alpha " + text_of_number(q.alpha, 3) + " is too small to hold the balance against gain " +
                  text_of_number(q.gain, 3) + ": max violation settles at " + violation);
  }
  if (r.sampling_noise > 0 && q.balance != Balance::expert_choice && r.final.max_violation < 2 * r.sampling_noise) {
    out.push_back("what is left is mostly sampling noise: even loads would show a max violation of up to about " +
                  text_of_number(r.sampling_noise, 2) + " at T k = " + text_of_count(q.tokens * q.top_k) + " draws");
  }
  if (q.balance == Balance::expert_choice) {
    out.push_back("loads are even by construction; " + text_of_percent(r.final.unchosen_tokens) +
                  " of the tokens are chosen by no expert, and whether an earlier token is chosen depends on later "
                  "ones (a causal leak)");
  }
  if (q.balance == Balance::hash) {
    out.push_back(
        "the imbalance is that of the token frequencies: the commonest token keeps its experts busy whatever is "
        "trained");
  }
  if (q.balance == Balance::aux_loss && q.domain_spread == 0 && q.micro_batches > 1) {
    out.push_back(
        "with equal domains the micro-batch loss acts as the global one: its gradient is linear in f (see "
        "--domain-spread)");
  }
  if (q.micro_batches > 1 && q.domain_spread > 0 && q.balance != Balance::hash) {
    out.push_back("inside one micro-batch (one domain) the max violation is " +
                  text_of_number(r.final.micro_violation, 3) + ", over the global batch " + violation +
                  (q.balance != Balance::aux_loss ? ""
                   : q.global_loss                ? ": the global-batch loss lets domains keep experts of their own"
                                                  : ": the micro-batch loss spreads every domain over all experts"));
  }
  if (q.domain_spread > 0 && q.micro_batches == 1)
    out.push_back("one micro-batch is one domain: --domain-spread adds to the noise of step 0 alone");
  if (q.z_loss > 0) {
    out.push_back("z-loss: log-sum-exp of the logits " + text_of_number(r.steps.front().log_sum_exp, 4) +
                  " at step 0, " + text_of_number(r.final.log_sum_exp, 4) +
                  " at the end; it bounds their size and does not see which expert wins");
  }
  return out;
}

nlohmann::ordered_json answer_json(const RouterQuestion& q, const RouterSeries& r) {
  nlohmann::ordered_json out;
  out["law"] = r.law;
  out["experts"] = q.experts;
  out["top_k"] = q.top_k;
  out["balance"] = balance_name(q.balance);
  if (q.tokens > 0) out["tokens"] = q.tokens;
  if (q.balance == Balance::aux_loss && q.micro_batches > 1)
    out["aux_scope"] = q.global_loss ? "global-batch" : "micro-batch";
  out["seed"] = q.seed;
  out["steps"] = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < r.steps.size(); ++s) {
    nlohmann::ordered_json step{{"step", s}};
    step.update(json_of(r.steps[s], q));
    out["steps"].push_back(std::move(step));
  }
  out["final"] = json_of(r.final, q);
  out["final"]["window"] = r.window;
  out["final"]["loads"] = r.loads;
  if (q.tokens > 0) out["final"]["sampling_noise"] = r.sampling_noise;
  if (q.balance == Balance::bias || q.balance == Balance::aux_loss) {
    out["final"]["rate_too_small"] = r.rate_too_small;
    out["final"]["rate_too_large"] = r.rate_too_large;
  }
  if (q.balance == Balance::bias) out["final"]["bias_rate_needed"] = r.bias_rate_needed;
  out["remarks"] = remarks(q, r);
  return out;
}

/// Max violation over steps, 64 columns x 12 rows; each column shows the largest of its steps.
void plot(const RouterSeries& r) {
  constexpr std::size_t kColumns = 64, kRows = 12;
  const std::size_t n = r.steps.size(), columns = std::min(kColumns, n);
  std::vector<double> column(columns, 0.0);
  for (std::size_t s = 0; s < n; ++s)
    column[s * columns / n] = std::max(column[s * columns / n], r.steps[s].max_violation);
  const double top = *std::max_element(column.begin(), column.end());
  if (top <= 0) {
    std::printf("  0 at every step\n");
    return;
  }
  for (std::size_t row = kRows; row > 0; --row) {
    std::string line;
    for (const double v : column)
      line += v / top * static_cast<double>(kRows) > static_cast<double>(row) - 0.5 ? '*' : ' ';
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string mark = row == kRows ? text_of_number(top, 3) : (row == 1 ? "0" : "");
    std::printf("  %8s |%s\n", mark.c_str(), line.c_str());
  }
  std::printf("  %8s +%s\n  %8s 0%*zu\n", "", std::string(columns, '-').c_str(), "step", static_cast<int>(columns) - 1,
              n - 1);
}

void print_text(const RouterQuestion& q, const RouterSeries& r) {
  std::printf("router: %s experts, top-%s, balance %s, seed %llu\nlaw: %s\n", text_of_count(q.experts).c_str(),
              text_of_count(q.top_k).c_str(), balance_name(q.balance), static_cast<unsigned long long>(q.seed),
              r.law.c_str());
  std::printf("gain %s, noise %s at step 0", text_of_number(q.gain, 3).c_str(), text_of_number(q.noise, 3).c_str());
  if (q.balance == Balance::bias) std::printf(", bias rate %s", text_of_number(q.bias_rate, 3).c_str());
  if (q.balance == Balance::aux_loss) {
    std::printf(", alpha %s, f of %s", text_of_number(q.alpha, 3).c_str(),
                q.micro_batches == 1 || q.global_loss
                    ? "the global batch"
                    : ("each of " + text_of_count(q.micro_batches) + " micro-batches").c_str());
  }
  std::printf("\n\nmax violation (busiest load / even load - 1; full collapse = %s):\n",
              text_of_number(static_cast<double>(q.experts) / static_cast<double>(q.top_k) - 1, 4).c_str());
  plot(r);
  std::printf("\n  %6s %14s %13s %9s %12s %12s\n", "step", "max violation", "idle experts", "aux loss", "logit spread",
              "log-sum-exp");
  const std::size_t n = r.steps.size(), every = std::max<std::size_t>(1, (n + 9) / 10);
  for (std::size_t s = 0; s < n; ++s) {
    if (s % every != 0 && s + 1 != n) continue;
    const RouterStep& v = r.steps[s];
    std::printf("  %6zu %14.3f %13.0f %9.3f %12.3f %12.3f\n", s, v.max_violation, v.idle_experts, v.aux_loss,
                v.logit_spread, v.log_sum_exp);
  }
  std::printf("final (%s): max violation %s, %s idle experts, aux loss %s\n",
              r.window > 1 ? ("mean of the last " + std::to_string(r.window) + " steps").c_str() : "the last step",
              text_of_number(r.final.max_violation, 3).c_str(), text_of_number(r.final.idle_experts, 2).c_str(),
              text_of_number(r.final.aux_loss, 4).c_str());
  for (const std::string& remark : remarks(q, r)) std::printf("note: %s\n", remark.c_str());
}

}  // namespace

void add_router(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("router", "How a router's balance moves from step to step");
  verb->add_option("--experts", o->experts, "routed experts N")->default_str(o->experts);
  verb->add_option("--top-k", o->top_k, "experts a token")->default_str(o->top_k);
  verb->add_option("--steps", o->steps, "loads to show: step 0 to steps-1, step s after s updates")
      ->default_str(o->steps);
  verb->add_option("--balance", o->balance, "none | aux-loss | bias | expert-choice | hash")->default_str(o->balance);
  verb->add_option("--tokens", o->tokens,
                   "tokens a step, or mean-field (default: mean-field for none, 4096 otherwise)");
  verb->add_option("--gain", o->gain, "growth of a logit per unit of load above 1/N")->default_str(o->gain);
  verb->add_option("--noise", o->noise, "standard deviation of the logits before step 0")->default_str(o->noise);
  verb->add_option("--bias-rate", o->bias_rate, "bias: step of the selection bias")->default_str(o->bias_rate);
  verb->add_option("--alpha", o->alpha, "aux-loss: coefficient")->default_str(o->alpha);
  verb->add_option("--z-loss", o->z_loss, "coefficient of the squared log-sum-exp; 0 = none")->default_str(o->z_loss);
  verb->add_option("--micro-batches", o->micro_batches, "micro-batches of a step, each of its own domain")
      ->default_str(o->micro_batches);
  verb->add_option("--aux-scope", o->aux_scope, "aux-loss: shares f of each micro-batch, or of the global-batch")
      ->default_str(o->aux_scope);
  verb->add_option("--domain-spread", o->domain_spread,
                   "logit deviation of each micro-batch's domain; 0 = equal domains")
      ->default_str(o->domain_spread);
  verb->add_option("--seed", o->seed, "the same tokens for every method of one seed")->default_str(o->seed);
  add_format_option(*verb, o->format);
  verb->footer("Example:\n  shardplan router --experts 16 --top-k 2 --steps 400 --balance bias --tokens 4096 --seed 7");
  verb->callback([o] {
    const RouterQuestion q = question_of(*o);
    const RouterSeries r = simulate_router(q);
    if (o->format == "json")
      print_json(answer_json(q, r));
    else
      print_text(q, r);
  });
}

}  // namespace shardplan
