#include <catch2/catch.hpp>

#include "base/normal.hpp"

using namespace shardplan;

TEST_CASE("normal quantiles are those of the tables, and symmetric") {
  CHECK(normal_quantile(0.5) == Approx(0).margin(1e-12));
  CHECK(normal_quantile(0.9) == Approx(1.2815515655446).epsilon(1e-10));
  CHECK(normal_quantile(0.975) == Approx(1.9599639845401).epsilon(1e-10));
  CHECK(normal_quantile(1e-9) == Approx(-5.9978070150077).epsilon(1e-10));
  CHECK(normal_quantile(0.25) == -normal_quantile(0.75));
}

TEST_CASE("the expected largest of n normal draws: exact values of the tables within 0.03, growing with n") {
  // Exact: 1 / sqrt(pi) for 2, 3 / (2 sqrt(pi)) for 3; Harter 1961 (Biometrika 48), Table 1, for the others.
  struct Row {
    double n, exact;
  };
  for (const Row& r : {Row{1, 0}, Row{2, 0.56419}, Row{3, 0.84628}, Row{8, 1.42360}, Row{20, 1.86748},
                       Row{100, 2.50759}, Row{400, 2.96818}}) {
    INFO(r.n);
    CHECK(expected_largest(r.n) == Approx(r.exact).margin(0.03));
  }
  CHECK(expected_largest(1e5) > expected_largest(1e4));
}
