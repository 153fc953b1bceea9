#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "models/router.hpp"

using namespace shardplan;

namespace {

RouterQuestion tokens_question(Balance balance, std::uint64_t seed = 7) {
  RouterQuestion q;
  q.experts = 16;
  q.top_k = 2;
  q.steps = 400;
  q.tokens = 4096;
  q.balance = balance;
  q.seed = seed;
  return q;
}

}  // namespace

TEST_CASE("a mean-field router of 16 experts drifts to step 70 and collapses by step 100", "[router]") {
  double at40 = 0, at70 = 0, at100 = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    RouterQuestion q;
    q.steps = 101;
    q.seed = seed;
    const RouterSeries r = simulate_router(q);
    REQUIRE(r.steps.size() == 101);
    at40 += r.steps[40].max_violation / 100;
    at70 += r.steps[70].max_violation / 100;
    at100 += r.steps[100].max_violation / 100;
  }
  CHECK(at40 > 0.12);
  CHECK(at40 < 0.15);
  CHECK(at70 > 0.85);
  CHECK(at70 < 1.05);
  CHECK(at100 > 12.5);
  CHECK(at100 < 14.5);
}

TEST_CASE("full collapse is the expert count less one, and the balance loss its count", "[router]") {
  RouterQuestion q;
  q.steps = 400;
  const RouterSeries r = simulate_router(q);
  CHECK(r.final.max_violation == Approx(15).epsilon(1e-6));
  CHECK(r.final.aux_loss == Approx(16).epsilon(1e-6));
  CHECK(r.final.idle_experts == Approx(15).epsilon(1e-12));
  CHECK(r.steps[0].aux_loss == Approx(1).epsilon(1e-3));
}

TEST_CASE("with tokens: none collapses, the auxiliary loss halves it, the bias leaves sampling noise", "[router]") {
  for (const std::uint64_t seed : {1, 7}) {
    const double none = simulate_router(tokens_question(Balance::none, seed)).final.max_violation;
    const double aux = simulate_router(tokens_question(Balance::aux_loss, seed)).final.max_violation;
    const RouterSeries bias = simulate_router(tokens_question(Balance::bias, seed));
    CHECK(none == Approx(7.0).epsilon(0.02));
    CHECK(aux == Approx(1.1).epsilon(0.15));
    CHECK(bias.final.max_violation == Approx(0.08).margin(0.03));
    CHECK(bias.final.max_violation < 1.2 * bias.sampling_noise);
    CHECK_FALSE(bias.rate_too_small);
  }
}

TEST_CASE("a bias rate of 0.001 does not hold and the answer says so", "[router]") {
  RouterQuestion q = tokens_question(Balance::bias);
  q.bias_rate = 0.001;
  const RouterSeries r = simulate_router(q);
  CHECK(r.final.max_violation > 6);
  CHECK(r.rate_too_small);
  CHECK(r.bias_rate_needed > q.bias_rate);
}

TEST_CASE("every method of one seed sees the same tokens", "[router]") {
  // Before any update, selection is by z + Gumbel alone: the first step of none, bias and aux-loss must agree exactly.
  std::vector<double> first;
  for (const Balance b : {Balance::none, Balance::bias, Balance::aux_loss}) {
    RouterQuestion q = tokens_question(b);
    q.steps = 2;
    first.push_back(simulate_router(q).steps[0].max_violation);
  }
  CHECK(first[0] == first[1]);
  CHECK(first[0] == first[2]);
  RouterQuestion q = tokens_question(Balance::none, 8);
  q.steps = 1;
  CHECK(simulate_router(q).steps[0].max_violation != first[0]);
}

TEST_CASE("expert choice is balanced by construction and leaves tokens unchosen", "[router]") {
  RouterQuestion q = tokens_question(Balance::expert_choice);
  q.steps = 20;
  const RouterSeries r = simulate_router(q);
  CHECK(r.final.max_violation == Approx(0).margin(1e-12));
  CHECK(r.final.unchosen_tokens > 0);
  CHECK(r.final.unchosen_tokens < 0.05);
}

TEST_CASE("hash routing is as uneven as the token frequencies", "[router]") {
  RouterQuestion q = tokens_question(Balance::hash);
  q.steps = 50;
  const double zipf = simulate_router(q).final.max_violation;
  q.token_zipf = 0;  // every id as likely: sampling noise alone is left
  const RouterSeries even = simulate_router(q);
  CHECK(zipf > 0.3);
  CHECK(even.final.max_violation < 1.5 * even.sampling_noise);
}

TEST_CASE("with equal domains the micro-batch loss is the global one, step for step", "[router]") {
  RouterQuestion q = tokens_question(Balance::aux_loss);
  q.alpha = 2;
  q.steps = 60;
  q.micro_batches = 8;
  const RouterSeries micro = simulate_router(q);
  q.global_loss = true;
  const RouterSeries global = simulate_router(q);
  for (std::size_t s = 0; s < micro.steps.size(); ++s)
    CHECK(global.steps[s].max_violation == Approx(micro.steps[s].max_violation).epsilon(1e-9));
}

TEST_CASE("the micro-batch loss takes domains their own experts, the global-batch loss only evens their sum",
          "[router]") {
  RouterQuestion q = tokens_question(Balance::aux_loss);
  q.alpha = 2;
  q.steps = 200;
  q.micro_batches = 8;
  q.domain_spread = 1;
  const RouterSeries micro = simulate_router(q);
  q.global_loss = true;
  const RouterSeries global = simulate_router(q);
  CHECK(micro.steps[0].max_violation == global.steps[0].max_violation);  // the same tokens
  CHECK(global.final.max_violation < 0.2);
  CHECK(micro.final.max_violation < 0.2);
  CHECK(global.final.micro_violation > 1);
  CHECK(micro.final.micro_violation < 0.5);
}

TEST_CASE("a rate beyond gain + 2 N overshoots and is not called too small", "[router]") {
  RouterQuestion q = tokens_question(Balance::aux_loss);
  q.alpha = 30;  // 0.8 + 32 is the edge
  CHECK(simulate_router(q).final.max_violation < 0.5);
  q.alpha = 40;
  const RouterSeries large = simulate_router(q);
  CHECK(large.final.max_violation > 5);
  CHECK(large.rate_too_large);
  CHECK_FALSE(large.rate_too_small);
  q.balance = Balance::bias;
  q.bias_rate = 1;
  CHECK(simulate_router(q).rate_too_large);
}

TEST_CASE("the z-loss bounds the logits and leaves their order", "[router]") {
  RouterQuestion q;
  q.steps = 60;
  const RouterSeries free = simulate_router(q);
  q.z_loss = 0.05;
  const RouterSeries held = simulate_router(q);
  CHECK(std::abs(held.final.log_sum_exp) < std::abs(free.final.log_sum_exp));
  CHECK(std::max_element(held.loads.begin(), held.loads.end()) - held.loads.begin() ==
        std::max_element(free.loads.begin(), free.loads.end()) - free.loads.begin());
}

TEST_CASE("a router question that no law covers is refused by its option", "[router]") {
  RouterQuestion q;
  q.balance = Balance::hash;  // mean-field has no tokens to hash
  CHECK_THROWS_AS(simulate_router(q), InputError);
  q.balance = Balance::none;
  q.top_k = 16;
  CHECK_THROWS_AS(simulate_router(q), InputError);
  CHECK_THROWS_WITH(parse_balance("auxloss", "--balance"), Catch::Contains("did you mean \"aux-loss\""));
}
