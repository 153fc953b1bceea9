#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "sim/in_flight.hpp"
#include "sim/optimizer_step.hpp"
#include "sim/schedules.hpp"
#include "sim/timeline.hpp"
#include "sim/trace.hpp"

using namespace shardplan;

namespace {

struct Run {
  Order order;
  Replay replay;
};

Run run_of(const char* schedule, int p, int m, double hop = 0, ReplayOptions options = {}) {
  ScheduleQuestion q;
  q.ranks = p;
  q.microbatches = m;
  q.chunks = find_schedule(schedule).default_chunks;
  Run run;
  run.order = find_schedule(schedule).order(q);
  PassTimes t;
  for (auto* list : {&t.forward, &t.input_grad, &t.weight_grad}) list->assign(run.order.stages(), 1);
  t.hop_forward.assign(run.order.stages(), hop);
  t.hop_backward.assign(run.order.stages(), hop);
  options.keep_pass_times = true;
  run.replay = replay(run.order, t, options);
  return run;
}

}  // namespace

TEST_CASE("a trace is JSON with a slice a pass and an arrow a message", "[sim]") {
  for (const P2pMode mode : {P2pMode::async, P2pMode::rendezvous}) {
    ReplayOptions options;
    options.p2p = mode;
    const Run run = run_of("1f1b", 3, 4, 0.25, options);
    const auto json = nlohmann::json::parse(chrome_trace(trace_of(run.order, run.replay)));
    int slices = 0, messages = 0, begins = 0, ends = 0;
    for (const auto& event : json.at("traceEvents")) {
      const auto phase = event.at("ph").get<std::string>();
      if (phase == "X") ++(event.at("cat") == "message" ? messages : slices);
      begins += phase == "s" ? 1 : 0;
      ends += phase == "f" ? 1 : 0;
    }
    CHECK(slices == 3 * 4 * 2);
    CHECK(messages == 2 * 2 * 4);
    CHECK(begins == messages);
    CHECK(ends == messages);
  }
  Trace odd;
  odd.slices.push_back({0, 0, 0, 1e-9, "a \"quote\"\n", "c\\d"});
  CHECK(nlohmann::json::parse(chrome_trace(odd)).at("traceEvents").at(0).at("name") == "a \"quote\"\n");
  CHECK(nlohmann::json::parse(chrome_trace(Trace{})).at("traceEvents").empty());
}

TEST_CASE("every message leaves when its pass ends and arrives before the pass that waits for it", "[sim]") {
  const Run run = run_of("zb-v", 4, 8, 0.5);
  CHECK(run.replay.messages.size() ==
        2 * 6 * 8);  // 7 borders in the chain of 8 stages, the turn of the V is on one rank
  for (const ReplayMessage& m : run.replay.messages) {
    CHECK(m.start == run.replay.end[m.from_rank][m.from_position]);
    CHECK(m.end == m.start + 0.5);
    CHECK(m.end <= run.replay.start[m.to_rank][m.to_position]);
  }
}

TEST_CASE("a timeline has a line a rank, fits its columns and says what runs when", "[sim]") {
  const Run run = run_of("1f1b", 2, 2);
  TimelineOptions options;
  options.columns = 30;
  CHECK(timeline_text(run.order, run.replay, options) ==
        "   0 |F0F1....B0--..B1--|\n"
        "   1 |..F0B0--F1B1--....|\n");
  // Micro-batches of two digits in two columns: the last digit tells them apart.
  const std::string narrow = timeline_text(run_of("1f1b", 1, 14).order, run_of("1f1b", 1, 14).replay);
  CHECK(narrow.find("F9B9--F0B10-F1B11-F2B12-F3B13-|") != std::string::npos);
  for (const char* name : {"dualpipe", "zb-h2", "interleaved-1f1b"}) {
    const Run wide = run_of(name, 8, 64);
    const std::string text = timeline_text(wide.order, wide.replay);
    std::size_t lines = 0, begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      CHECK(end - begin <= 120);
      ++lines;
    }
    CHECK(lines == 8);
    CHECK(text.find('\x1b') == std::string::npos);
  }
  options.colour = true;
  CHECK(timeline_text(run.order, run.replay, options).find("\x1b[37;44mF0F1\x1b[0m....") != std::string::npos);
}

TEST_CASE("a barrier makes the makespan the step, post-hoc validation the window", "[sim]") {
  const Run run = run_of("zb-h2", 4, 16);
  CHECK(run.replay.makespan == 51);
  CHECK(run.replay.max_stage_window == 48);
  OptimizerStep o;
  o.optimizer_seconds = 2;
  o.norm_seconds = 0.5;
  CHECK(step_time(run.replay, o).seconds == 53.5);
  CHECK(step_time(run.replay, o).over_window == 3.5);
  o.sync = OptimizerSync::post_validation;
  CHECK(step_time(run.replay, o).seconds == 50);
  o.rollback_share = 0.1;
  CHECK(step_time(run.replay, o).seconds == Approx(50 + 0.1 * (3 + 0.5 + 4)).epsilon(1e-12));
}

TEST_CASE("bytes in flight: 91.3 GB in GPipe, 22.8 GB in 1F1B, and the paper's p M_B for ZB-H1", "[sim]") {
  // 16 micro-batches, 4 stages: 80/4 layers x 34 s h bytes / tp 8 = 5.704 GB a micro-batch on a stage (h = s = 8192).
  const double chunk = 80.0 / 4 * 34 * 8192 * 8192 / 8;
  const std::vector<double> chunks(4, chunk), none(4, 0.0), half(4, chunk / 2);
  CHECK(in_flight_bytes(run_of("gpipe", 4, 16).order, chunks, none)[0].until_input_grad ==
        Approx(91.268e9).epsilon(1e-4));
  CHECK(in_flight_bytes(run_of("1f1b", 4, 16).order, chunks, none)[0].until_input_grad ==
        Approx(22.817e9).epsilon(1e-4));
  const auto h1 = in_flight_bytes(run_of("zb-h1", 4, 16).order, chunks, half);
  for (int r = 0; r < 4; ++r) {
    CHECK(h1[r].until_input_grad == (4 - r) * chunk);
    CHECK(h1[r].until_weight_grad == 4 * chunk);
    CHECK(h1[r].split == Approx((4 - r) * chunk + r * chunk / 2).epsilon(1e-12));  // (p - i) M_B + i M_W
  }
}
