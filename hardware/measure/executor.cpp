#include "hardware/measure/executor.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "hardware/measure/executor_state.hpp"
#include "hardware/measure/ring.hpp"

namespace shardplan {
namespace {

std::vector<float> random_floats(std::int64_t n, std::uint64_t seed, double scale) {
  Random random(seed);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = static_cast<float>(scale * random.normal());
  return out;
}

void refuse_what_is_not_executed(const Order& order, const ExecutorOptions& options) {
  const auto refuse = [](const std::string& what) { throw InputError("schedule", "the cpu backend executes " + what); };
  if (order.parameter_copies != 1) refuse("no bidirectional schedules");
  if (std::count(order.previous.begin(), order.previous.end(), -1) != 1) refuse("one chain of stages only");
  for (const auto& passes : order.passes) {
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::overlapped) refuse("no overlapped passes");
      if (pass.stage < 0 || pass.stage >= order.stages() || pass.microbatch < 0 ||
          pass.microbatch >= order.microbatches)
        throw InputError("schedule", "a pass names a stage or micro-batch that is not there");
    }
  }
  const BlockShape& s = options.shape;
  if (s.tokens < 1 || s.hidden < 1 || s.inner < 1 || options.blocks_per_slot < 1 || options.replicas < 1)
    throw InputError("shape", "tokens, hidden, inner, blocks and replicas must be at least 1");
}

}  // namespace

std::vector<float> executor_weights(const BlockShape& s, int block) {
  // Scaled so that activations keep their size through ReLU and residual.
  return random_floats(s.weights(), 1000 + static_cast<std::uint64_t>(block),
                       0.5 / std::sqrt(static_cast<double>(s.hidden + s.inner)));
}

std::vector<float> executor_input(const BlockShape& s, int replica, int microbatch) {
  return random_floats(s.tokens * s.hidden,
                       7000000 + static_cast<std::uint64_t>(replica) * 100000 + static_cast<std::uint64_t>(microbatch),
                       1.0);
}

PipelineExecutor::Impl::Impl(const Order& o, const ExecutorOptions& opt)
    : order(o), options(opt), shape(opt.shape), m(o.microbatches) {
  refuse_what_is_not_executed(order, options);
  make_data();
  make_ranks();
  make_channels();
  team = std::make_unique<RankTeam>(transport->local_ranks(), options.pin);
}

void PipelineExecutor::Impl::make_data() {
  for (int b = 0; b < blocks(); ++b) weights.push_back(executor_weights(shape, b));
  for (int d = 0; d < options.replicas; ++d) {
    for (int i = 0; i < m; ++i) inputs.push_back(executor_input(shape, d, i));
  }
}

void PipelineExecutor::Impl::make_ranks() {
  gradient_offset.assign(static_cast<std::size_t>(order.stages()), 0);
  std::vector<std::int64_t> length(static_cast<std::size_t>(order.ranks), 0);
  for (int s = 0; s < order.stages(); ++s) {
    gradient_offset[static_cast<std::size_t>(s)] = length[static_cast<std::size_t>(rank_of(s))];
    length[static_cast<std::size_t>(rank_of(s))] += options.blocks_per_slot * shape.weights();
  }
  for (int d = 0; d < options.replicas; ++d) {
    for (int r = 0; r < order.ranks; ++r) {
      Rank rank;
      rank.replica = d;
      rank.rank = r;
      rank.thread = d * order.ranks + r;
      rank.gradient.assign(static_cast<std::size_t>(length[static_cast<std::size_t>(r)]), 0.0f);
      rank.scratch.assign(static_cast<std::size_t>(shape.weights()), 0.0f);
      rank.first_input_grad.assign(static_cast<std::size_t>(shape.tokens * shape.hidden), 0.0f);
      ranks.push_back(std::move(rank));
    }
  }
}

/// Channels: replica, stage, micro-batch, {activation to next, gradient to previous}; then the rings.
void PipelineExecutor::Impl::make_channels() {
  std::vector<ChannelEnds> channels;
  for (int d = 0; d < options.replicas; ++d) {
    const auto thread_of = [&](int stage) { return d * order.ranks + rank_of(stage); };
    for (int s = 0; s < order.stages(); ++s) {
      for (int i = 0; i < m; ++i) {
        // The first stage has no previous one and the last no next: nothing is sent there.
        for (const int to : {next_of(s), previous_of(s)})
          channels.push_back({thread_of(s), thread_of(to < 0 ? s : to), to < 0 ? 0 : shape.tokens * shape.hidden});
      }
    }
  }
  for (int r = 0; r < order.ranks && options.replicas > 1; ++r) {
    std::vector<int> members;
    for (int d = 0; d < options.replicas; ++d) members.push_back(d * order.ranks + r);
    const auto floats = static_cast<std::int64_t>(ranks[static_cast<std::size_t>(r)].gradient.size());
    ring_first.push_back(add_ring_channels(channels, members, floats));
  }
  transport = options.transport(std::move(channels), order.ranks * options.replicas, options.spin);
}

PipelineExecutor::PipelineExecutor(const Order& order, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(order, options)) {}
PipelineExecutor::~PipelineExecutor() = default;

StepRecord PipelineExecutor::step() { return impl_->step(); }
PipelineExecutor::Samples PipelineExecutor::calibrate(int rounds, bool split, bool cpu) {
  return impl_->calibrate(rounds, split, cpu);
}
int PipelineExecutor::blocks() const { return impl_->blocks(); }
double PipelineExecutor::message_bytes() const { return static_cast<double>(impl_->narrow_bytes()); }

std::vector<float> PipelineExecutor::gradient(int block) const {
  const Impl& e = *impl_;
  for (int s = 0; s < e.order.stages(); ++s) {
    for (int i = 0; i < e.options.blocks_per_slot; ++i) {
      if (e.block_of(s, i) != block) continue;
      const auto& here = e.transport->local_ranks();
      if (std::find(here.begin(), here.end(), e.rank_of(s)) == here.end()) return {};
      const auto& all = e.ranks[static_cast<std::size_t>(e.rank_of(s))].gradient;
      const auto begin = all.begin() + e.gradient_offset[static_cast<std::size_t>(s)] + i * e.shape.weights();
      return {begin, begin + e.shape.weights()};
    }
  }
  throw InputError("block", "there is no block " + std::to_string(block));
}

}  // namespace shardplan
