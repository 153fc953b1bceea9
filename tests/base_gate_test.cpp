// Limits on accuracy and rows that moved, on figures that are checked by hand.
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "base/gate.hpp"

namespace shardplan {
namespace {

FamilyAccuracy accuracy(int n, double mape, std::optional<double> tau = {}) {
  FamilyAccuracy a;
  a.n = n, a.mape = mape, a.bias = -mape, a.kendall_tau = tau;
  return a;
}

std::vector<std::string> broken(const std::string& text, const AccuracyByFamily& now,
                                const AccuracyByFamily* then = nullptr) {
  const auto limits = parse_gate_limits(text, "--fail-if");
  std::vector<std::string> out;
  for (const BrokenLimit& b : broken_limits(limits, now, then, "--fail-if"))
    out.push_back(b.family + " " + b.limit->text);
  return out;
}

using Names = std::vector<std::string>;

TEST_CASE("A limit reads figure, direction and number; percent figures become fractions", "[gate]") {
  const auto limits =
      parse_gate_limits("mape>7,tau<0.8,bf16 >=512:p90>+1.5,bias>2,overall:coverage<-0.05", "--fail-if");
  REQUIRE(limits.size() == 5);
  CHECK(limits[0].figure->name == "mape");
  CHECK(limits[0].above);
  CHECK_FALSE(limits[0].change);
  CHECK(limits[0].number == Approx(0.07).epsilon(1e-12));
  CHECK_FALSE(limits[1].above);
  CHECK(limits[1].number == Approx(0.8).epsilon(1e-12));
  CHECK(limits[2].family == "bf16 >=512");
  CHECK(limits[2].change);
  CHECK(limits[2].number == Approx(0.015).epsilon(1e-12));
  CHECK(limits[4].family == "overall");
  CHECK(limits[4].number == Approx(-0.05).epsilon(1e-12));
}

TEST_CASE("A malformed limit says which part is wrong", "[gate]") {
  const std::pair<const char*, const char*> rows[] = {
      {"mape=3", "\"mape=3\": expected [FAMILY:]FIGURE>NUMBER or [FAMILY:]FIGURE<NUMBER"},
      {"mape", "\"mape\": expected [FAMILY:]FIGURE>NUMBER or [FAMILY:]FIGURE<NUMBER"},
      {"mpae>3", "\"mpae>3\": unknown figure \"mpae\" (did you mean \"mape\"?)"},
      {"mape>", "\"mape>\": no number after >"},
      {"mape>=3", "\"mape>=3\": expected a plain number after >, got \"=3\""},
      {"mape>3%", "\"mape>3%\": expected a plain number after >, got \"3%\""},
      {"mape>nan", "\"mape>nan\": expected a plain number after >, got \"nan\""},
      {"mape>+-3", "\"mape>+-3\": expected a plain number after >, got \"+-3\""},
      {":mape>3", "\":mape>3\": no family before the colon"},
      {"mape>3,", "\"mape>3,\": an empty limit"},
      {"mape>3,,tau<1", "\"mape>3,,tau<1\": an empty limit"},
      {"zzzzzzz>3",
       "\"zzzzzzz>3\": unknown figure \"zzzzzzz\"; known: mape, median, p90, max, bias, coverage, tau, regret, memory, "
       "rows, skipped"},
  };
  for (const auto& [text, what] : rows) {
    INFO(text);
    try {
      parse_gate_limits(text, "--fail-if");
      FAIL("was read");
    } catch (const InputError& error) {
      CHECK(error.where() == "--fail-if");
      CHECK(std::string(error.what()) == what);
    }
  }
}

TEST_CASE("A limit is broken beyond its number, not at it", "[gate]") {
  const AccuracyByFamily now{
      {"a", accuracy(9, 0.05, 0.9)}, {"b", accuracy(4, 0.09)}, {"overall", accuracy(13, 0.06, 0.9)}};
  CHECK(broken("mape>9", now) == Names{});
  CHECK(broken("mape>8.99", now) == Names{"b mape>8.99"});
  CHECK(broken("mape>4", now) == Names{"a mape>4", "b mape>4"});  // overall only where it is asked for
  CHECK(broken("overall:mape>5,a:mape>6", now) == Names{"overall overall:mape>5"});
  CHECK(broken("bias>8", now) == Names{"b bias>8"});  // its size, whichever the sign
  CHECK(broken("tau<0.95", now) == Names{"a tau<0.95"});
  CHECK(broken("rows<5", now) == Names{"b rows<5"});
}

TEST_CASE("Signed numbers are changes against the baseline", "[gate]") {
  const AccuracyByFamily then{{"a", accuracy(9, 0.05, 0.9)}, {"b", accuracy(4, 0.09)}};
  const AccuracyByFamily now{{"a", accuracy(9, 0.062, 0.84)}, {"b", accuracy(4, 0.08)}, {"new", accuracy(1, 0.5)}};
  CHECK(broken("mape>+1", now, &then) == Names{"a mape>+1"});
  CHECK(broken("mape>+1.3", now, &then) == Names{});
  CHECK(broken("tau<-0.05", now, &then) == Names{"a tau<-0.05"});
  CHECK(broken("mape>-2", now, &then) == Names{"a mape>-2", "b mape>-2"});  // neither improved by two points
}

TEST_CASE("A limit that can be held against nothing is an error, not a pass", "[gate]") {
  const AccuracyByFamily now{{"alpha", accuracy(9, 0.05)}};
  CHECK_THROWS_WITH(broken("tau<0.8", now), "\"tau<0.8\": no family has tau");
  CHECK_THROWS_WITH(broken("alpha:tau<0.8", now), "\"alpha:tau<0.8\": family \"alpha\" has no tau");
  CHECK_THROWS_WITH(broken("alhpa:mape>1", now),
                    "\"alhpa:mape>1\": no row is of family \"alhpa\" (did you mean \"alpha\"?)");
  CHECK_THROWS_WITH(broken("mape>+1", now), "\"mape>+1\": a signed number is a change: it needs --baseline");
  const AccuracyByFamily other{{"beta", accuracy(1, 0.1)}};
  CHECK_THROWS_WITH(broken("mape>+1", now, &other), "\"mape>+1\": no family has mape both now and in the baseline");
}

ScoredRow scored(const char* id, double measured, double predicted, const char* skipped = "") {
  ScoredRow r;
  r.id = id, r.family = "f", r.measured_s = measured, r.predicted_s = predicted, r.skipped = skipped;
  return r;
}
SavedRow saved(const char* id, double measured, double predicted, const char* skipped = "") {
  return {id, "f", measured, predicted, {}, skipped};
}

TEST_CASE("Rows that moved: largest change first, then rows that came and went", "[gate]") {
  const std::vector<SavedRow> then{saved("same", 1, 1),       saved("a little", 1, 1), saved("up", 1, 1),
                                   saved("down", 1, 1),       saved("lost", 1, 1),     saved("found", 1, 0, "why"),
                                   saved("remeasured", 1, 1), saved("gone", 1, 1),     saved("both", 1, 0, "why")};
  const std::vector<ScoredRow> now{scored("same", 1, 1),           scored("a little", 1, 1.009),
                                   scored("up", 1, 1.02),          scored("down", 1, 0.9),
                                   scored("lost", 1, 0, "no GPU"), scored("found", 1, 2),
                                   scored("remeasured", 1.1, 1),   scored("new", 1, 3),
                                   scored("both", 1, 0, "other")};
  const auto moved = moved_rows(then, now, 0.01);
  Names seen;
  for (const MovedRow& row : moved)
    seen.push_back(row.id + ": " + std::string(kMovedNames[static_cast<std::size_t>(row.kind)]));
  CHECK(seen == Names{"down: prediction", "up: prediction", "remeasured: measurement", "lost: now skipped",
                      "found: now predicted", "gone: gone", "new: added"});
  CHECK(moved[0].change() == Approx(-0.1).epsilon(1e-12));
  CHECK(moved[3].reason == "no GPU");
  CHECK(moved_rows(then, now, 0.2).size() == 5);
  CHECK(moved_rows(then, now, 0).size() == 8);
}

TEST_CASE("Memory that moved is told where the time did not", "[gate]") {
  SavedRow then = saved("a", 1, 1);
  ScoredRow now = scored("a", 1, 1);
  then.predicted_memory = 50e9, now.predicted_memory = 55e9;
  const auto moved = moved_rows(std::vector{then}, std::vector{now}, 0.01);
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].kind == MovedRow::Kind::memory);
  CHECK(moved[0].change() == Approx(0.1).epsilon(1e-12));
}

TEST_CASE("Repeated ids are paired in their order", "[gate]") {
  const std::vector<SavedRow> then{saved("a", 1, 1), saved("a", 1, 2)};
  CHECK(moved_rows(then, std::vector{scored("a", 1, 1), scored("a", 1, 2)}, 0.01).empty());
  CHECK(moved_rows(then, std::vector{scored("a", 1, 1), scored("a", 1, 3)}, 0.01).size() == 1);
}

}  // namespace
}  // namespace shardplan
