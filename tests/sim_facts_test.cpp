// Golden cases and the Zero Bubble paper's Table 5, where the facts are at hand.
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/field.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

std::string facts_file(const char* name) {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    std::printf("skipped: SHARDPLAN_FACTS is unset\n");
    return "";
  }
  return std::string(facts) + "/schedules/" + name;
}

Replay replay_of(const ScheduleRow& row, const ScheduleQuestion& q, const std::vector<double>& scale, double pair) {
  const Order order = row.order(q);
  PassTimes t;
  for (int s = 0; s < order.stages(); ++s) {
    const double by = scale.empty() ? 1 : scale[s];
    t.forward.push_back(q.forward * by);
    t.input_grad.push_back(q.input_grad * by);
    t.weight_grad.push_back(q.weight_grad * by);
    if (pair >= 0) t.overlapped.push_back(pair * by);
  }
  t.hop_forward.assign(order.stages(), q.p2p);
  t.hop_backward.assign(order.stages(), q.p2p);
  return replay(order, t);
}

const std::map<std::string, std::string> kNames = {
    {"GPipe", "gpipe"},        {"1F1B", "1f1b"},         {"Interleaved1F1B", "interleaved-1f1b"},
    {"ZB-H1", "zb-h1"},        {"ZB-H2", "zb-h2"},       {"InterleavedZeroBubble", "interleaved-zb"},
    {"ZB-V", "zb-v"},          {"V-Half", "v-half"},     {"LoopedBFS", "looped-bfs"},
    {"V-Min", "v-min"},        {"1F1B-V", "1f1b-v"},     {"ZB-1p(auto)", "zb-auto"},
    {"Chimera", "chimera"},    {"DualPipe", "dualpipe"}, {"DualPipeV", "dualpipe-v"},
    {"ZB-2p(auto)", "zb-auto"}};

}  // namespace

TEST_CASE("the golden cases are exact, published greedies too", "[sim]") {
  const std::string path = facts_file("golden.json");
  if (path.empty()) return;
  const Field cases = Field::read(path).at("cases");
  CHECK(cases.size() >= 59);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Field c = cases.item(i), expected = c.at("expected");
    const ScheduleRow& row = find_schedule(kNames.at(c.at("schedule").text()));
    ScheduleQuestion q;
    q.ranks = static_cast<int>(c.at("p").count());
    q.microbatches = static_cast<int>(c.at("m").count());
    q.chunks = row.fixed_chunks ? row.default_chunks : static_cast<int>(c.at("v").count());
    q.group = c.has("group") ? static_cast<int>(c.at("group").count()) : 0;
    q.forward = c.at("F").number();
    q.input_grad = c.at("B").number();
    q.weight_grad = c.at("W").number();
    q.p2p = c.at("comm").number();
    if (c.has("memory_limit")) {
      q.memory_limit = c.at("memory_limit").number();
      q.weight_grad_memory = c.at("weight_grad_memory").number();
      q.search = false;
    }
    const auto scale = c.has("stage_scale") ? c.at("stage_scale").numbers() : std::vector<double>{};
    const Replay r = replay_of(row, q, scale, c.has("FB") ? c.at("FB").number() : -1);
    INFO("case " << c.at("id").count() << " " << row.name);
    if (q.memory_limit > 0) {
      CHECK(r.window() == Approx(expected.at("window_bubble_rate").number()).margin(6e-5));
      continue;
    }
    CHECK(r.makespan == Approx(expected.at("makespan").number()).epsilon(1e-9));
    CHECK(r.max_stage_window == Approx(expected.at("max_stage_window").number()).epsilon(1e-9));
    const auto until_b = expected.at("peak_chunks_until_B").numbers();
    const auto until_w = expected.at("peak_chunks_until_W").numbers();
    for (int rank = 0; rank < q.ranks; ++rank) {
      CHECK(r.ranks[rank].peak_chunks_until_input_grad == until_b[rank]);
      CHECK(r.ranks[rank].peak_chunks_until_weight_grad == until_w[rank]);
    }
  }
}

TEST_CASE("the Zero Bubble paper's Table 5 to four decimals, from the times of its Table 9", "[sim]") {
  const std::string path = facts_file("measured.json");
  if (path.empty()) return;
  const Field rows = Field::read(path).at("zero_bubble_main").at("rows");
  int cells = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Field row = rows.item(i);
    const auto cell = [&](const char* column, const char* schedule, double limit) {
      ScheduleQuestion q;
      q.ranks = static_cast<int>(row.at("p").count());
      q.microbatches = static_cast<int>(row.at("m").count());
      q.forward = row.at("T_F_ms").number();
      q.input_grad = row.at("T_B_ms").number();
      q.weight_grad = row.at("T_W_ms").number();
      q.p2p = row.at("T_comm_ms").number();
      // M_B : M_W = (34 h + 5 a s) : 32 h, the paper's Table 1.
      const double h = row.at("hidden").number(), a = row.at("heads").number(), s = row.at("seq").number();
      q.weight_grad_memory = 32 * h / (34 * h + 5 * a * s);
      q.memory_limit = limit * q.ranks;
      q.search = false;
      const Replay r = replay_of(find_schedule(schedule), q, {}, -1);
      INFO(row.at("model").text() << " m=" << q.microbatches << " " << column);
      CHECK(r.window() == Approx(row.at("bubble_rate_calculated").at(column).number()).margin(5.1e-5));
      ++cells;
    };
    cell("1F1B", "1f1b", 0);
    cell("ZB-H1", "zb-h1", 0);
    cell("ZB-H2", "zb-h2", 0);
    cell("ZB-1p", "zb-auto", 1);
    cell("ZB-2p", "zb-auto", 2);
  }
  CHECK(cells == 60);
}
