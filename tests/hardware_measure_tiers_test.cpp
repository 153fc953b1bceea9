// Simulated against measured, in four tiers (the fourth is exact and stands in hardware_measure_executor_test.cpp):
//   T1 replay of recorded durations against the wall clock: 2 %. The engine and its dependencies are right.
//   T2 replay of calibrated medians against virtual time (CPU time, waiting computed): 15 %, never skipped.
//   T3 sampled replay of calibrated durations against the wall clock: 20 %.
// T1 and T3 need the cores for themselves: where a rank got less than 0.9 of its core the figures are printed and the
// gate is not asked. A failure is tried once more with fresh calibration. On a machine so loaded that a tier would take
// too long it has fewer rounds. Errors are medians over rounds of predicted /
// measured - 1. The gates are those of a study of 117 runs on two loaded cores: T1 worst 0.46 %, T2 9.4 %, T3 10.6 %
// (cpu/wall >= 0.9).
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_step.hpp"
#include "hardware/measure/predict.hpp"
#include "hardware/measure/samples.hpp"
#include "sim/replay.hpp"
#include "tests/measure_tiers.hpp"

using namespace shardplan;

namespace {

constexpr double kT1 = 0.02, kT2 = 0.15, kT3 = 0.20, kQuiet = 0.9;
constexpr double kWallSeconds = 40, kVirtualSeconds = 45;  // of T1 and T3 together, of T2
constexpr int kLeastRounds = 3, kHopelessRounds = 5;

struct Setup {
  const char* schedule;
  int ranks, microbatches, blocks_per_slot;
  int replicas = 1;
};

Order order_of(const Setup& s) { return measured_order(s.schedule, s.ranks, s.microbatches); }

ExecutorOptions options_of(const Setup& s, bool own_cores) {
  ExecutorOptions o;
  const std::int64_t size = kSanitized ? 16 : 128;
  o.shape = {kSanitized ? 8 : 128, size, size};
  o.blocks_per_slot = s.blocks_per_slot;
  o.replicas = s.replicas;
  o.spin = o.pin = own_cores;
  return o;
}

void append(std::vector<std::vector<double>>& to, const std::vector<std::vector<double>>& from) {
  if (to.empty()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i].insert(to[i].end(), from[i].begin(), from[i].end());
}

/// Samples of before and after a step together.
PipelineExecutor::Samples joined(const PipelineExecutor::Samples& a, const PipelineExecutor::Samples& b) {
  PipelineExecutor::Samples out = a;
  append(out.forward, b.forward);
  append(out.backward, b.backward);
  append(out.input_grad, b.input_grad);
  append(out.weight_grad, b.weight_grad);
  return out;
}

struct Verdict {
  double error = 0;          // median over the rounds that counted
  double cpu_over_wall = 1;  // median over all rounds
  int quiet_rounds = 0;
  bool noisy() const { return quiet_rounds < 5; }
};

// ---------------------------------------------------------------------------------------------------------------- T1
// and T3

struct WallVerdicts {
  Verdict traced, sampled;
};

/// More tasks want to run than the cores that the ranks leave over: what their neighbours do to caches and wake-ups
/// shows in wall time even where every rank keeps its core (cpu/wall 1.00). Read while only this thread of ours runs:
/// after a step the ranks take a moment to fall asleep.
bool crowded() {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::ifstream in("/proc/loadavg");
  double one = 0, five = 0, fifteen = 0;
  int running = 0;
  if (!(in >> one >> five >> fifteen >> running)) return false;
  return running > 1 + std::max(0, static_cast<int>(usable_cores()) - 2);
}

/// Rounds of {calibrate, step, calibrate}; a round counts where every rank had its core and nobody else wanted one.
/// After `seconds` no new round begins, nor after five of which none was quiet: what too few rounds say is noise.
WallVerdicts wall_rounds(const Setup& setup, int rounds, double seconds) {
  const TimeLimit limit(seconds);
  const Order order = order_of(setup);
  PipelineExecutor executor(order, options_of(setup, true));
  Replayer replayer(order);
  executor.step();
  std::vector<double> traced, sampled, traced_quiet, sampled_quiet, share;
  for (int round = 0; round < rounds && (round < kLeastRounds || !limit.over()); ++round) {
    if (round >= kHopelessRounds && traced_quiet.empty()) break;
    const bool shared = crowded();
    const auto before = executor.calibrate(1, splits_backward(order), false);
    const StepRecord step = executor.step();
    const auto after = executor.calibrate(1, splits_backward(order), false);
    const double by_trace =
        replayer.recorded_makespan(recorded_durations(step, order, StepClock::wall)) / step.wall_makespan - 1;
    const double by_samples =
        sampled_makespan(order, joined(before, after), 101, static_cast<std::uint64_t>(round)) / step.wall_makespan - 1;
    traced.push_back(by_trace);
    sampled.push_back(by_samples);
    share.push_back(step.cpu_over_wall);
    if (step.cpu_over_wall < kQuiet || shared || crowded()) continue;
    traced_quiet.push_back(by_trace);
    sampled_quiet.push_back(by_samples);
  }
  const auto verdict = [&](const std::vector<double>& all, const std::vector<double>& quiet) {
    Verdict v;
    v.quiet_rounds = static_cast<int>(quiet.size());
    v.cpu_over_wall = median(share);
    v.error = median(v.noisy() ? all : quiet);
    return v;
  };
  return {verdict(traced, traced_quiet), verdict(sampled, sampled_quiet)};
}

// ----------------------------------------------------------------------------------------------------------------------
// T2

/// The slowest stage's ring starts where its replicas meet: predicted end of each rank plus its ring, the latest of
/// all.
double with_all_reduce(const Replay& pipeline, const std::vector<double>& ring) {
  double last = 0;
  for (std::size_t r = 0; r < pipeline.ranks.size(); ++r) last = std::max(last, pipeline.ranks[r].last_end + ring[r]);
  return last;
}

double virtual_error(const Setup& setup, int rounds, double seconds) {
  const TimeLimit limit(seconds);
  const Order order = order_of(setup);
  PipelineExecutor executor(order, options_of(setup, false));
  // The ring's cost is calibrated in steps of its own: one micro-batch, then the all-reduce.
  executor.step();
  std::vector<double> errors;
  for (int round = 0; round < rounds && (round < kLeastRounds || !limit.over()); ++round) {
    const auto before = executor.calibrate(1, splits_backward(order), true);
    std::vector<double> ring(static_cast<std::size_t>(order.ranks), 0.0);
    if (setup.replicas > 1) {
      const StepRecord rehearsal = executor.step();
      for (std::size_t t = 0; t < rehearsal.ranks.size(); ++t) {
        double& own = ring[t % ring.size()];
        own = std::max(own, rehearsal.ranks[t].all_reduce_cpu);
      }
    }
    const StepRecord step = executor.step();
    const auto after = executor.calibrate(1, splits_backward(order), true);
    const Replay predicted = replay(order, median_times(joined(before, after)));
    errors.push_back(with_all_reduce(predicted, ring) / step.virtual_makespan - 1);
  }
  return median(errors);
}

double expert_error(int ranks, int rounds, double seconds) {
  const TimeLimit limit(seconds);
  ExpertStepShape shape;
  shape.ranks = ranks;
  shape.experts_per_rank = 2;
  shape.layers = 2;
  shape.skew = 0.5;
  shape.block = kSanitized ? BlockShape{8, 8, 8} : BlockShape{128, 128, 128};
  ExpertStep experts(shape);
  experts.step();
  std::vector<double> errors;
  for (int round = 0; round < rounds && (round < kLeastRounds || !limit.over()); ++round) {
    const auto before = experts.step(), step = experts.step(), after = experts.step();
    auto phases = before.phases;
    for (std::size_t r = 0; r < phases.size(); ++r) {
      for (std::size_t p = 0; p < phases[r].size(); ++p)
        phases[r][p] = 0.5 * (before.phases[r][p] + after.phases[r][p]);
    }
    double ring = 0;  // the routers' gradients
    for (std::size_t r = 0; r < phases.size(); ++r)
      ring = std::max(ring, 0.5 * (before.all_reduce_cpu[r] + after.all_reduce_cpu[r]));
    errors.push_back((exchange_makespan(phases) + ring) / step.virtual_makespan - 1);
  }
  return median(errors);
}

/// Once more with fresh calibration where the first try is outside the gate. measure(seconds that it may take).
template <class Measure>
double retried(Measure&& measure, double gate, double seconds) {
  const double first = measure(seconds);
  return kSanitized || std::abs(first) <= gate ? first : measure(seconds);
}

std::string name_of(const Setup& s) {
  return std::string(s.schedule) + " p" + std::to_string(s.ranks) +
         (s.replicas > 1 ? " dp" + std::to_string(s.replicas) : "");
}

}  // namespace

TEST_CASE("T1 and T3: replayed and predicted steps against the wall clock on two cores", "[measure]") {
  const int rounds = kSanitized ? 1 : 15;
  if (usable_cores() < 2) {
    std::printf("T1 replayed trace: skipped: one core for two ranks\nT3 wall clock: skipped: one core for two ranks\n");
    return;
  }
  const TimeLimit limit(kWallSeconds);
  std::string t1, t3;
  bool t1_noisy = false, t3_noisy = false;
  for (const Setup& setup :
       {Setup{"gpipe", 2, 2, 2}, Setup{"1f1b", 2, 4, 2}, Setup{"interleaved-1f1b", 2, 4, 1}, Setup{"zb-h1", 2, 2, 2}}) {
    constexpr double kShare = kWallSeconds / 4;
    WallVerdicts v = wall_rounds(setup, rounds, kShare);
    if (!kSanitized && ((!v.traced.noisy() && std::abs(v.traced.error) > kT1) ||
                        (!v.sampled.noisy() && std::abs(v.sampled.error) > kT3)))
      v = wall_rounds(setup, rounds, std::min(kShare, std::max(0.0, limit.left())));
    char line[160];
    std::snprintf(line, sizeof line, "%s %s %+.2f %%%s", t1.empty() ? "" : ",", setup.schedule, 100 * v.traced.error,
                  v.traced.noisy() ? " (noisy)" : "");
    t1 += line;
    std::snprintf(line, sizeof line, "%s %s %+.1f %%%s", t3.empty() ? "" : ",", setup.schedule, 100 * v.sampled.error,
                  v.sampled.noisy() ? " (noisy)" : "");
    t3 += line;
    t1_noisy = t1_noisy || v.traced.noisy();
    t3_noisy = t3_noisy || v.sampled.noisy();
    std::snprintf(line, sizeof line, " [cpu/wall %.2f]", v.traced.cpu_over_wall);
    t1 += line;
    INFO(setup.schedule);
    if (!kSanitized && !v.traced.noisy()) CHECK(std::abs(v.traced.error) <= kT1);
    if (!kSanitized && !v.sampled.noisy()) CHECK(std::abs(v.sampled.error) <= kT3);
  }
  std::printf("T1 replayed trace, gate 2 %%:%s%s\n", t1.c_str(),
              t1_noisy ? "; noisy ones skipped (cpu/wall < 0.9, or other tasks waiting for a core)" : "");
  std::printf("T3 wall clock, gate 20 %%:%s%s\n", t3.c_str(),
              t3_noisy ? "; noisy ones skipped (cpu/wall < 0.9, or other tasks waiting for a core)" : "");
}

TEST_CASE("T2: predicted steps against virtual time, up to 8 ranks, data-parallel and expert steps", "[measure]") {
  const int rounds = kSanitized ? 1 : 9;
  constexpr double kShare = kVirtualSeconds / 10;  // of each of the setups
  std::string figures;
  const auto judge = [&](const std::string& name, double error) {
    char line[120];
    std::snprintf(line, sizeof line, "%s %s %+.1f %%", figures.empty() ? "" : ",", name.c_str(), 100 * error);
    figures += line;
    INFO(name);
    if (!kSanitized) CHECK(std::abs(error) <= kT2);
  };
  for (const Setup& setup :
       {Setup{"gpipe", 2, 4, 2}, Setup{"1f1b", 2, 4, 2}, Setup{"interleaved-1f1b", 2, 4, 1}, Setup{"zb-h1", 2, 4, 2},
        Setup{"1f1b", 4, 8, 1}, Setup{"zb-h1", 4, 8, 1}, Setup{"1f1b", 8, 8, 1}, Setup{"1f1b", 2, 2, 2, 2}}) {
    judge(name_of(setup), retried([&](double s) { return virtual_error(setup, rounds, s); }, kT2, kShare));
  }
  for (const int ranks : {2, 4}) {
    judge("experts ep" + std::to_string(ranks),
          retried([&](double s) { return expert_error(ranks, rounds, s); }, kT2, kShare));
  }
  std::printf("T2 virtual time, gate 15 %%:%s\n", figures.c_str());
}

TEST_CASE("a swapped pair in an order is outside the gate of T1", "[measure]") {
  // Executed: 1F1B whose first rank takes its second backward pass before its third forward pass. Simulated: 1F1B with
  // the very durations of the executed passes. On the virtual clock, so that no noise can hide or fake it.
  const Setup setup{"1f1b", 2, 4, 2};
  const Order right = order_of(setup);
  Order wrong = right;
  REQUIRE(wrong.passes[0][3].kind == PassKind::forward);
  REQUIRE(wrong.passes[0][4].kind == PassKind::backward);
  std::swap(wrong.passes[0][3], wrong.passes[0][4]);
  PipelineExecutor executor(wrong, options_of(setup, false));
  executor.step();
  const StepRecord step = executor.step();
  auto durations = recorded_durations(step, wrong, StepClock::cpu);
  CHECK(Replayer(wrong).recorded_makespan(durations) == Approx(step.virtual_makespan).epsilon(1e-9));
  std::swap(durations[0][3], durations[0][4]);
  CHECK(std::abs(Replayer(right).recorded_makespan(durations) / step.virtual_makespan - 1) > kT1);
}
