#include <algorithm>
#include <limits>

#include "base/errors.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_state.hpp"
#include "hardware/measure/ring.hpp"

namespace shardplan {
namespace {

constexpr int kPhasesOfDirection = 3;

using Floats = std::vector<float>;

Floats floats(std::int64_t n) { return Floats(static_cast<std::size_t>(n)); }

}  // namespace

std::vector<float> expert_weights(const ExpertStepShape& s, int layer, int expert) {
  return executor_weights(s.block, layer * s.experts() + expert);
}

std::vector<float> router_weights(const ExpertStepShape& s, int layer) {
  std::vector<float> both = executor_weights({1, s.block.hidden, s.experts()}, 500000 + layer);
  both.resize(static_cast<std::size_t>(s.block.hidden * s.experts()));
  return both;
}

double exchange_makespan(const std::vector<std::vector<double>>& phases) {
  if (phases.empty()) return 0;
  std::vector<double> now(phases.size(), 0.0);
  for (std::size_t p = 0; p < phases.front().size(); ++p) {
    for (std::size_t r = 0; r < now.size(); ++r) now[r] += phases[r][p];
    const bool meets = p % kPhasesOfDirection != kPhasesOfDirection - 1;
    if (meets) std::fill(now.begin(), now.end(), *std::max_element(now.begin(), now.end()));
  }
  return *std::max_element(now.begin(), now.end());
}

ExpertStep::Impl::Impl(const ExpertStepShape& s, const RankTransportMaker& maker)
    : shape(s), routing(s), h(s.block.hidden), tokens(s.block.tokens) {
  for (int l = 0; l < shape.layers; ++l) {
    routers.push_back(router_weights(shape, l));
    for (int e = 0; e < shape.experts(); ++e) weights.push_back(expert_weights(shape, l, e));
  }
  for (int r = 0; r < shape.ranks; ++r) ranks.push_back(make_rank(r));
  make_channels(maker);
  team = std::make_unique<RankTeam>(transport->local_ranks(), shape.pin);
}

ExpertStep::Impl::Rank ExpertStep::Impl::make_rank(int r) const {
  Rank rank;
  rank.id = r;
  rank.x.assign(static_cast<std::size_t>(shape.layers) + 1, executor_input(shape.block, r, 0));
  rank.dy = rank.dx = rank.x[0];
  const std::int64_t copies = tokens * shape.top_k, rows = routing.received(r);
  rank.dlogits = floats(tokens * shape.experts());
  rank.sent = floats(copies * h);
  rank.piece = floats(rows * h);
  const LayerState state{rank.dlogits,
                         floats(copies),
                         floats(copies * h),
                         floats(rows * h),
                         floats(rows * shape.block.inner),
                         floats(rows * h),
                         floats(rows * h),
                         floats(rows * shape.block.inner),
                         floats(rows * h)};
  rank.layers.assign(static_cast<std::size_t>(shape.layers), state);
  rank.expert_gradient = floats(std::int64_t{shape.layers} * shape.experts_per_rank * shape.block.weights());
  rank.router_gradient = floats(shape.layers * h * shape.experts());
  return rank;
}

/// Channels: exchange, source, destination; then the ring of the routers' gradients.
void ExpertStep::Impl::make_channels(const RankTransportMaker& maker) {
  std::vector<ChannelEnds> channels;
  for (int x = 0; x < kExchangesOfLayer * shape.layers; ++x) {
    for (int s = 0; s < shape.ranks; ++s) {
      for (int d = 0; d < shape.ranks; ++d)
        channels.push_back({s, d, (x % 2 == 0 ? routing.rows_between(s, d) : routing.rows_between(d, s)) * h});
    }
  }
  if (shape.ranks > 1)
    ring_first = add_ring_channels(channels, ranks_up_to(shape.ranks), shape.layers * h * shape.experts());
  transport = maker(std::move(channels), shape.ranks, shape.spin);
}

void ExpertStep::Impl::run_rank(int r) {
  Rank& rank = ranks[static_cast<std::size_t>(r)];
  const auto layers = static_cast<std::size_t>(shape.layers);
  for (std::size_t l = 0; l < layers; ++l) forward(rank, l);
  rank.dy = rank.x.back();
  for (std::size_t l = layers; l-- > 0;) backward(rank, l);
  rank.exchanged = rank.clock.virtual_now();
  const double before = rank.clock.cpu();
  if (shape.ranks > 1) ring_all_reduce(*transport, r, r, ring_first, rank.router_gradient, rank.clock);
  rank.all_reduce_cpu = rank.clock.cpu() - before;
  transport->finish(r);
}

void ExpertStep::Impl::report_stuck() const {
  std::string what = "the step is stuck:";
  for (int r = 0; r < shape.ranks; ++r) {
    const int c = transport->stuck_on()[static_cast<std::size_t>(r)];
    if (c < 0) continue;
    const int exchange = c / shape.ranks / shape.ranks;
    what += " rank " + std::to_string(r) + " waits for ";
    what += exchange >= kExchangesOfLayer * shape.layers ? std::string("the all-reduce of the routers' gradients")
                                                         : "exchange " + std::to_string(exchange) + " from rank " +
                                                               std::to_string(c / shape.ranks % shape.ranks);
    what += ';';
  }
  what.pop_back();
  throw InputError("experts", what);
}

ExpertStepRecord ExpertStep::Impl::step(int dropped) {
  drop_message = dropped;
  for (Rank& rank : ranks) {
    rank.clock = RankClock();
    rank.phases.clear();
    std::fill(rank.expert_gradient.begin(), rank.expert_gradient.end(), 0.0f);
    std::fill(rank.router_gradient.begin(), rank.router_gradient.end(), 0.0f);
  }
  transport->begin_step();
  const auto usage = team->run([&](int r) { run_rank(r); }, [&] { transport->abort(); });
  if (transport->stuck()) report_stuck();
  return record(usage);
}

ExpertStepRecord ExpertStep::Impl::record(const std::vector<RankUsage>& usage) const {
  ExpertStepRecord out;
  out.cpu_over_wall = 1;
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (std::size_t i = 0; i < usage.size(); ++i) {
    const Rank& rank = ranks[static_cast<std::size_t>(transport->local_ranks()[i])];
    out.exchanged_makespan = std::max(out.exchanged_makespan, rank.exchanged);
    out.virtual_makespan = std::max(out.virtual_makespan, rank.clock.virtual_now());
    out.cpu_over_wall = std::min(out.cpu_over_wall, rank.clock.cpu() / rank.clock.wall());
    begin = std::min(begin, usage[i].wall_start);
    end = std::max(end, usage[i].wall_end);
  }
  for (const Rank& rank : ranks) {
    out.phases.push_back(rank.phases);
    out.all_reduce_cpu.push_back(rank.all_reduce_cpu);
  }
  out.wall_makespan = end - begin;
  for (int s = 0; s < shape.ranks; ++s) {
    for (int d = 0; d < shape.ranks; ++d) {
      if (s == d) continue;
      const std::int64_t exchanges = std::int64_t{kExchangesOfLayer} * shape.layers;
      out.messages += exchanges;
      out.bytes += exchanges * routing.rows_between(s, d) * h * static_cast<std::int64_t>(sizeof(float));
    }
  }
  return out;
}

ExpertStep::ExpertStep(const ExpertStepShape& shape, const RankTransportMaker& maker)
    : impl_(std::make_unique<Impl>(shape, maker)) {}
ExpertStep::~ExpertStep() = default;
ExpertStepRecord ExpertStep::step(int drop_message) { return impl_->step(drop_message); }
const ExpertRouting& ExpertStep::routing() const { return impl_->routing; }
const std::vector<int>& ExpertStep::local_ranks() const { return impl_->transport->local_ranks(); }
const std::vector<float>& ExpertStep::output(int rank) const {
  return impl_->ranks[static_cast<std::size_t>(rank)].x.back();
}
const std::vector<float>& ExpertStep::input_gradient(int rank) const {
  return impl_->ranks[static_cast<std::size_t>(rank)].dy;
}
const std::vector<float>& ExpertStep::expert_gradient(int rank) const {
  return impl_->ranks[static_cast<std::size_t>(rank)].expert_gradient;
}
const std::vector<float>& ExpertStep::router_gradient(int rank) const {
  return impl_->ranks[static_cast<std::size_t>(rank)].router_gradient;
}

}  // namespace shardplan
