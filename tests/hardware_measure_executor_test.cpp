#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/errors.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_step.hpp"
#include "hardware/measure/predict.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"
#include "tests/measure_tiers.hpp"

using namespace shardplan;

namespace {

const BlockShape kTiny{6, 8, 12};

struct Case {
  const char* schedule;
  int blocks_per_slot;  // so that every schedule holds 4 blocks on 2 ranks
};
constexpr Case kCases[] = {{"gpipe", 2}, {"1f1b", 2}, {"interleaved-1f1b", 1}, {"zb-h1", 2}};

ExecutorOptions tiny_options(const Case& c) {
  ExecutorOptions o;
  o.shape = kTiny;
  o.blocks_per_slot = c.blocks_per_slot;
  o.digest = true;
  return o;
}

/// The largest difference of the executor's gradients from FP64 ones, over the largest gradient of the block.
double worst_gradient_error(const PipelineExecutor& executor, const std::vector<std::vector<double>>& expected) {
  double worst = 0;
  for (int b = 0; b < executor.blocks(); ++b) {
    const std::vector<float> got = executor.gradient(b);
    const std::vector<double>& want = expected[static_cast<std::size_t>(b)];
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      difference = std::max(difference, std::abs(want[i] - got[i]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

std::string error_of_step(const Order& order, const ExecutorOptions& options) {
  try {
    PipelineExecutor(order, options).step();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("T4: gradients, live activations, message counts and bytes of an executed step equal the simulator's",
          "[measure]") {
  const auto expected = reference_gradients(kTiny, 4, 4, 1);
  std::uint64_t checksum = 0;
  for (const Case& c : kCases) {
    INFO(c.schedule);
    const Order order = measured_order(c.schedule, 2, 4);
    PipelineExecutor executor(order, tiny_options(c));
    const StepRecord step = executor.step();
    // The same products give the same bits whatever the order; their sum differs by rounding.
    if (checksum == 0) checksum = step.checksum;
    CHECK(step.checksum == checksum);
    CHECK(worst_gradient_error(executor, expected) < 1e-5);

    PassTimes unit;
    unit.forward = unit.input_grad = unit.weight_grad =
        std::vector<double>(static_cast<std::size_t>(order.stages()), 1);
    const Replay simulated = replay(order, unit);
    const MessageCount messages = expected_messages(order, executor.message_bytes());
    std::int64_t sent = 0, bytes = 0;
    for (int r = 0; r < order.ranks; ++r) {
      const RankRecord& got = step.ranks[static_cast<std::size_t>(r)];
      CHECK(got.peak_chunks_until_input_grad ==
            simulated.ranks[static_cast<std::size_t>(r)].peak_chunks_until_input_grad);
      CHECK(got.peak_chunks_until_weight_grad ==
            simulated.ranks[static_cast<std::size_t>(r)].peak_chunks_until_weight_grad);
      // Not only counted: so many buffers were really allocated.
      CHECK(got.activation_buffers == got.peak_chunks_until_weight_grad);
      sent += got.messages;
      bytes += got.message_bytes;
    }
    CHECK(sent == messages.messages);
    CHECK(bytes == messages.bytes);
    if (&c == &kCases[3])
      std::printf(
          "T4 exact: 4 schedules, gradients equal (checksum %016llx), live activations, %lld messages and %lld bytes "
          "as simulated\n",
          static_cast<unsigned long long>(checksum), static_cast<long long>(sent), static_cast<long long>(bytes));
  }
}

TEST_CASE("T4: replicas end with the summed gradient, by a ring of 2 (n - 1) messages a rank", "[measure]") {
  ExecutorOptions options = tiny_options(kCases[1]);
  options.replicas = 3;
  const Order order = measured_order("1f1b", 2, 3);
  PipelineExecutor executor(order, options);
  const StepRecord step = executor.step();
  CHECK(worst_gradient_error(executor, reference_gradients(kTiny, 4, 3, 3)) < 1e-5);
  std::int64_t messages = 0, bytes = 0;
  for (const RankRecord& rank : step.ranks) {
    messages += rank.all_reduce_messages;
    bytes += rank.all_reduce_bytes;
  }
  CHECK(messages == 6 * 4);
  // 2 (n - 1) / n of the gradient from each of n members, of both stages (2 blocks each).
  CHECK(bytes == 2 * 2 * (2 * 2 * kTiny.weights() * 4));
}

TEST_CASE("the virtual clock of a step is exactly the replay of its recorded pass times", "[measure]") {
  for (const Case& c : kCases) {
    for (const int ranks : {2, 4}) {
      INFO(c.schedule << " on " << ranks);
      const Order order = measured_order(c.schedule, ranks, 8);
      PipelineExecutor executor(order, tiny_options(c));
      const StepRecord step = executor.step();
      Replayer replayer(order);
      const double replayed = replayer.recorded_makespan(recorded_durations(step, order, StepClock::cpu));
      CHECK(replayed == Approx(step.virtual_makespan).epsilon(1e-9));
    }
  }
}

TEST_CASE("a wrong order or a lost message is named, not waited for", "[measure]") {
  const Case one_f_one_b = kCases[1], zero_bubble = kCases[3];
  SECTION("a backward pass before its forward pass") {
    Order order = measured_order("1f1b", 2, 4);
    std::swap(order.passes[1][0], order.passes[1][1]);
    CHECK(error_of_step(order, tiny_options(one_f_one_b)).find("comes before its forward pass") != std::string::npos);
  }
  SECTION("a weight gradient before its input gradient") {
    Order order = measured_order("zb-h1", 2, 4);
    auto& passes = order.passes[1];
    const auto input =
        std::find_if(passes.begin(), passes.end(), [](const Pass& p) { return p.kind == PassKind::input_grad; });
    const auto weight =
        std::find_if(passes.begin(), passes.end(), [](const Pass& p) { return p.kind == PassKind::weight_grad; });
    std::iter_swap(input, weight);
    CHECK(error_of_step(order, tiny_options(zero_bubble)).find("comes before its input gradient") != std::string::npos);
  }
  SECTION("a pass that is missing") {
    Order order = measured_order("1f1b", 2, 4);
    order.passes[0].pop_back();
    CHECK(error_of_step(order, tiny_options(one_f_one_b)).find("never finishes micro-batch 3 on stage 0") !=
          std::string::npos);
  }
  SECTION("a lost message") {
    ExecutorOptions options = tiny_options(one_f_one_b);
    options.drop_message = 2 * 2;  // stage 0, micro-batch 2, its activation
    const std::string error = error_of_step(measured_order("1f1b", 2, 4), options);
    CHECK(error.find("stuck") != std::string::npos);
    CHECK(error.find("rank 1 waits for the activation of micro-batch 2 from stage 0") != std::string::npos);
  }
  SECTION("what the backend does not execute") {
    Order order = measured_order("1f1b", 2, 4);
    order.passes[0][0].kind = PassKind::overlapped;
    CHECK(error_of_step(order, tiny_options(one_f_one_b)) == "the cpu backend executes no overlapped passes");
  }
}

namespace {

/// The largest difference over the largest value.
double worst_difference(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    difference = std::max(difference, std::abs(want[i] - got[i]));
  }
  REQUIRE(largest > 0);
  return difference / largest;
}

ExpertStepShape small_experts() {
  ExpertStepShape shape;
  shape.ranks = 3;
  shape.experts_per_rank = 2;
  shape.top_k = 2;
  shape.layers = 2;
  shape.block = {10, 8, 12};
  shape.skew = 1;
  return shape;
}

}  // namespace

TEST_CASE("T4: an expert step sends the routed rows, has the right gradients and leaves its exchanges together",
          "[measure]") {
  const ExpertStepShape shape = small_experts();
  ExpertStep experts(shape);
  experts.step();
  const ExpertStepRecord step = experts.step();  // a second one: nothing is left over from the first
  const ExpertReference expected = reference_expert_step(shape);
  const ExpertRouting& routing = experts.routing();
  std::int64_t rows = 0, away = 0, loads = 0;
  for (int s = 0; s < 3; ++s) {
    for (int d = 0; d < 3; ++d) {
      rows += routing.rows_between(s, d);
      if (s != d) away += routing.rows_between(s, d);
    }
    std::int64_t own = 0;
    for (const std::int64_t n : routing.expert_rows(s)) own += n;
    CHECK(own == routing.received(s));
    const auto r = static_cast<std::size_t>(s);
    CHECK(worst_difference(experts.output(s), expected.output[r]) < 1e-5);
    CHECK(worst_difference(experts.input_gradient(s), expected.input_gradient[r]) < 1e-5);
    CHECK(worst_difference(experts.expert_gradient(s), expected.expert_gradient[r]) < 1e-5);
    CHECK(worst_difference(experts.router_gradient(s), expected.router_gradient) < 1e-5);
  }
  for (const std::int64_t n : routing.loads()) loads += n;
  CHECK(rows == 3 * 10 * 2);
  CHECK(loads == rows);
  CHECK(step.messages == 2 * 4 * 6);
  CHECK(step.bytes == 2 * 4 * away * 8 * 4);
  CHECK(exchange_makespan(step.phases) == Approx(step.exchanged_makespan).epsilon(1e-9));
  CHECK(step.virtual_makespan > step.exchanged_makespan);
}

TEST_CASE("a lost message of an expert step is named, and the step after it is right again", "[measure]") {
  ExpertStep experts(small_experts());
  std::string error;
  try {
    experts.step((1 * 3 + 2) * 3 + 0);  // exchange 1, from rank 2 to rank 0
  } catch (const InputError& e) {
    error = e.where() + ": " + e.what();
  }
  CHECK(error.find("experts: the step is stuck:") == 0);
  CHECK(error.find("rank 0 waits for exchange 1 from rank 2") != std::string::npos);
  experts.step();
  CHECK(worst_difference(experts.output(0), reference_expert_step(small_experts()).output[0]) < 1e-5);
}
