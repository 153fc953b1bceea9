#include "hardware/measure/predict.hpp"

#include "base/random.hpp"
#include "hardware/measure/samples.hpp"

namespace shardplan {
namespace {

std::vector<double> medians(const std::vector<std::vector<double>>& by_stage) {
  std::vector<double> out;
  for (const auto& samples : by_stage) {
    if (samples.empty()) return {};
    out.push_back(median(samples));
  }
  return out;
}

const std::vector<double>& samples_of(const PipelineExecutor::Samples& s, const Pass& pass) {
  const auto stage = static_cast<std::size_t>(pass.stage);
  switch (pass.kind) {
    case PassKind::forward:
      return s.forward[stage];
    case PassKind::input_grad:
      return s.input_grad[stage];
    case PassKind::weight_grad:
      return s.weight_grad[stage];
    default:
      return s.backward[stage];
  }
}

}  // namespace

std::vector<std::vector<double>> recorded_durations(const StepRecord& step, const Order& order, StepClock clock) {
  std::vector<std::vector<double>> out;
  for (int r = 0; r < order.ranks; ++r) {
    out.emplace_back();
    for (const PassRecord& pass : step.ranks[static_cast<std::size_t>(r)].passes)
      out.back().push_back(clock == StepClock::wall ? pass.wall() : pass.cpu());
  }
  return out;
}

PassTimes median_times(const PipelineExecutor::Samples& samples) {
  PassTimes times;
  times.forward = medians(samples.forward);
  times.backward = medians(samples.backward);
  times.input_grad = medians(samples.input_grad);
  times.weight_grad = medians(samples.weight_grad);
  return times;
}

double sampled_makespan(const Order& order, const PipelineExecutor::Samples& samples, int draws, std::uint64_t seed) {
  Replayer replayer(order);
  Random random(seed);
  std::vector<double> makespans;
  std::vector<std::vector<double>> seconds;
  for (int draw = 0; draw < draws; ++draw) {
    seconds.clear();
    for (const auto& passes : order.passes) {
      seconds.emplace_back();
      for (const Pass& pass : passes) {
        const std::vector<double>& from = samples_of(samples, pass);
        seconds.back().push_back(from[random.below(from.size())]);
      }
    }
    makespans.push_back(replayer.recorded_makespan(seconds));
  }
  return median(makespans);
}

MessageCount expected_messages(const Order& order, double message_bytes) {
  MessageCount count;
  for (const auto& passes : order.passes) {
    for (const Pass& pass : passes) {
      const auto stage = static_cast<std::size_t>(pass.stage);
      if (pass.kind == PassKind::weight_grad) continue;
      const int to = pass.kind == PassKind::forward ? order.next[stage] : order.previous[stage];
      if (to < 0 || order.rank_of_stage[static_cast<std::size_t>(to)] == order.rank_of_stage[stage]) continue;
      ++count.messages;
      count.bytes += static_cast<std::int64_t>(message_bytes);
    }
  }
  return count;
}

bool splits_backward(const Order& order) {
  for (const auto& passes : order.passes) {
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::input_grad) return true;
    }
  }
  return false;
}

}  // namespace shardplan
