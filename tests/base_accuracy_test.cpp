// The figures that sum a family of scored rows up, on rows that are checked by hand.
#include <catch2/catch.hpp>

#include "base/accuracy.hpp"

namespace shardplan {
namespace {

ScoredRow row(const char* id, double measured, double predicted) {
  ScoredRow r;
  r.id = id, r.family = "f", r.measured_s = measured, r.predicted_s = predicted;
  r.low_s = predicted * 0.9, r.high_s = predicted * 1.1;
  r.question = "q";
  return r;
}

TEST_CASE("Errors, bias and coverage of three rows", "[accuracy]") {
  ScoredRow skipped = row("4", 1, 0);
  skipped.skipped = "no such GPU";
  const std::vector<ScoredRow> rows{row("1", 1.0, 1.1), row("2", 2.0, 1.6), row("3", 3.0, 3.0), skipped};
  const FamilyAccuracy a = accuracy_of(rows);
  CHECK(a.n == 3);
  CHECK(a.skipped == 1);
  CHECK(*a.mape == Approx((0.1 + 0.2 + 0.0) / 3).epsilon(1e-12));
  CHECK(*a.median_ape == Approx(0.1).epsilon(1e-12));
  CHECK(*a.max_ape == Approx(0.2).epsilon(1e-12));
  CHECK(*a.bias == Approx(-0.1 / 3).epsilon(1e-12));
  CHECK(*a.coverage_80 == Approx(2.0 / 3).epsilon(1e-12));
}

TEST_CASE("Ranking counts pairs at least 5 percent apart, regret what the predicted best costs", "[accuracy]") {
  // Measured 1.00 and 1.04 are a tie; predicted best is row 2: regret 4 %.
  const std::vector<ScoredRow> rows{row("1", 1.00, 1.2), row("2", 1.04, 1.1), row("3", 2.0, 1.15)};
  const FamilyAccuracy a = accuracy_of(rows);
  CHECK(*a.kendall_tau == Approx(0.0).margin(1e-12));  // (3 after 2) right, (3 after 1) wrong
  CHECK(*a.regret == Approx(0.04).epsilon(1e-9));
}

TEST_CASE("A family without scored rows has no figures, not zeros", "[accuracy]") {
  const FamilyAccuracy a = accuracy_of({});
  CHECK(a.n == 0);
  CHECK_FALSE(a.mape);
  CHECK_FALSE(a.kendall_tau);
}

}  // namespace
}  // namespace shardplan
