#include "hardware/measure/expert_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/rank_threads.hpp"
#include "hardware/measure/ring.hpp"

namespace shardplan {
namespace {

constexpr int kPhasesOfDirection = 3;
constexpr int kExchangesOfLayer = 4;  // out and back, forward then backward

using Floats = std::vector<float>;

Floats floats(std::int64_t n) { return Floats(static_cast<std::size_t>(n)); }

/// Gates of one token: softmax over its chosen experts' logits.
void softmax_of_chosen(const float* logits, const std::vector<ExpertRouting::Copy>& sent, const std::int64_t* places,
                       int top_k, Floats& gates) {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int i = 0; i < top_k; ++i) largest = std::max(largest, logits[sent[static_cast<std::size_t>(places[i])].expert]);
  for (int i = 0; i < top_k; ++i) {
    float& gate = gates[static_cast<std::size_t>(places[i])];
    gate = std::exp(logits[sent[static_cast<std::size_t>(places[i])].expert] - largest);
    sum += gate;
  }
  for (int i = 0; i < top_k; ++i) gates[static_cast<std::size_t>(places[i])] /= sum;
}

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

struct ExpertStep::Impl {
  /// What a layer keeps from its forward pass, and works in. Rows of a rank's own tokens; copies in the order sent;
  /// rows received, expert after expert.
  struct LayerState {
    Floats logits, gates, returned;
    Floats in, a, out, dout, du, din;
  };
  struct Rank {
    int id = 0;
    std::vector<Floats> x;  // input of each layer, and the last one's output: [tokens, hidden]
    Floats dy, dx, dlogits;
    Floats sent, piece;  // copies in the order sent; one destination's rows
    std::vector<LayerState> layers;
    Floats expert_gradient, router_gradient;
    RankClock clock;
    std::vector<double> phases;
    double exchanged = 0, all_reduce_cpu = 0;
  };

  const ExpertStepShape shape;
  const ExpertRouting routing;
  const std::int64_t h, tokens;
  std::vector<Floats> weights, routers;  // [layer * experts + expert], [layer]
  std::vector<Rank> ranks;
  std::vector<int> ring_first;
  std::unique_ptr<RankTransport> transport;
  std::unique_ptr<RankTeam> team;
  int drop_message = -1;

  Impl(const ExpertStepShape& s, const RankTransportMaker& maker)
      : shape(s), routing(s), h(s.block.hidden), tokens(s.block.tokens) {
    for (int l = 0; l < shape.layers; ++l) {
      routers.push_back(router_weights(shape, l));
      for (int e = 0; e < shape.experts(); ++e) weights.push_back(expert_weights(shape, l, e));
    }
    for (int r = 0; r < shape.ranks; ++r) ranks.push_back(make_rank(r));
    make_channels(maker);
    team = std::make_unique<RankTeam>(transport->local_ranks(), shape.pin);
  }

  Rank make_rank(int r) const {
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
    rank.expert_gradient = floats(shape.layers * shape.experts_per_rank * shape.block.weights());
    rank.router_gradient = floats(shape.layers * h * shape.experts());
    return rank;
  }

  /// Channels: exchange, source, destination; then the ring of the routers' gradients.
  void make_channels(const RankTransportMaker& maker) {
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
  int channel(int exchange, int s, int d) const { return (exchange * shape.ranks + s) * shape.ranks + d; }

  // ------------------------------------------------------------------------------------------------ own tokens

  /// Gates of all copies, from the router's product.
  void route(const Rank& rank, std::size_t l, LayerState& state) const {
    gemm_forward(tokens, shape.experts(), h, rank.x[l].data(), routers[l].data(), state.logits.data());
    const auto& places = routing.places(rank.id);
    for (std::int64_t t = 0; t < tokens; ++t)
      softmax_of_chosen(state.logits.data() + t * shape.experts(), routing.sent(rank.id),
                        places.data() + t * shape.top_k, shape.top_k, state.gates);
  }

  /// The gradient of every copy's output is gate x dY; of its gate, its output times dY; of the logits, through the
  /// softmax: gate_i (dgate_i - sum_j gate_j dgate_j).
  void scatter_gradient(Rank& rank, const LayerState& state) const {
    const auto& sent = routing.sent(rank.id);
    const auto& places = routing.places(rank.id);
    std::fill(rank.dlogits.begin(), rank.dlogits.end(), 0.0f);
    std::vector<float> slope(static_cast<std::size_t>(shape.top_k));
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* dy = rank.dy.data() + t * h;
      float mean = 0;
      for (int i = 0; i < shape.top_k; ++i) {
        const std::int64_t at = places[static_cast<std::size_t>(t * shape.top_k + i)];
        const float gate = state.gates[static_cast<std::size_t>(at)];
        slope[static_cast<std::size_t>(i)] = dot(h, dy, state.returned.data() + at * h);
        mean += gate * slope[static_cast<std::size_t>(i)];
        copy_scaled(h, gate, dy, rank.sent.data() + at * h);
      }
      for (int i = 0; i < shape.top_k; ++i) {
        const auto at = static_cast<std::size_t>(places[static_cast<std::size_t>(t * shape.top_k + i)]);
        rank.dlogits[static_cast<std::size_t>(t * shape.experts() + sent[at].expert)] =
            state.gates[at] * (slope[static_cast<std::size_t>(i)] - mean);
      }
    }
  }

  void send(const Rank& rank, int exchange) {
    const float* at = rank.sent.data();
    for (int d = 0; d < shape.ranks; ++d) {
      transport->copy_in(channel(exchange, rank.id, d), at);
      at += routing.rows_between(rank.id, d) * h;
    }
  }
  void take_back(const Rank& rank, int exchange, Floats& into) {
    float* at = into.data();
    for (int d = 0; d < shape.ranks; ++d) {
      transport->copy_out(channel(exchange, d, rank.id), at);
      at += routing.rows_between(rank.id, d) * h;
    }
  }

  // --------------------------------------------------------------------------------------------------- own experts

  std::int64_t rows_of(int s, int r, int e) const { return routing.rows(s, r * shape.experts_per_rank + e); }

  /// Moves between the received order (source, then expert) and the experts' order (expert, then source).
  template <class Move>
  void for_each_piece(int r, Move&& move) const {
    std::int64_t grouped = 0;
    for (int e = 0; e < shape.experts_per_rank; ++e) {
      for (int s = 0; s < shape.ranks; ++s) {
        std::int64_t within = 0;
        for (int before = 0; before < e; ++before) within += rows_of(s, r, before);
        move(s, within, grouped, rows_of(s, r, e));
        grouped += rows_of(s, r, e);
      }
    }
  }

  void receive_rows(int r, int exchange, Floats& into) {
    for_each_piece(r, [&](int s, std::int64_t within, std::int64_t grouped, std::int64_t n) {
      if (n > 0)
        std::memcpy(into.data() + grouped * h, transport->peek(channel(exchange, s, r)) + within * h,
                    static_cast<std::size_t>(n * h) * sizeof(float));
    });
  }

  void send_back(Rank& rank, const Floats& rows, int exchange) {
    for (int s = 0; s < shape.ranks; ++s) {
      for_each_piece(rank.id, [&](int source, std::int64_t within, std::int64_t grouped, std::int64_t n) {
        if (source == s && n > 0)
          std::memcpy(rank.piece.data() + within * h, rows.data() + grouped * h,
                      static_cast<std::size_t>(n * h) * sizeof(float));
      });
      transport->copy_in(channel(exchange, rank.id, s), rank.piece.data());
    }
  }

  /// run(local expert, its shape with its rows, its first row, its weights).
  template <class Run>
  void for_each_expert(int r, std::size_t l, Run&& run) {
    std::int64_t at = 0;
    for (int e = 0; e < shape.experts_per_rank; ++e) {
      BlockShape block = shape.block;
      block.tokens = 0;
      for (int s = 0; s < shape.ranks; ++s) block.tokens += rows_of(s, r, e);
      const std::size_t expert =
          l * static_cast<std::size_t>(shape.experts()) + static_cast<std::size_t>(r * shape.experts_per_rank + e);
      if (block.tokens > 0) run(e, block, at, weights[expert].data());
      at += block.tokens;
    }
  }

  void experts_forward(const Rank& rank, std::size_t l, LayerState& state) {
    for_each_expert(rank.id, l, [&](int, const BlockShape& b, std::int64_t at, const float* w) {
      expert_forward(b, state.in.data() + at * h, w, w + h * b.inner, state.a.data() + at * b.inner,
                     state.out.data() + at * h);
    });
  }

  void experts_backward(Rank& rank, std::size_t l, LayerState& state) {
    for_each_expert(rank.id, l, [&](int e, const BlockShape& b, std::int64_t at, const float* w) {
      const float *a = state.a.data() + at * b.inner, *dout = state.dout.data() + at * h;
      float* du = state.du.data() + at * b.inner;
      expert_input_grad(b, w, w + h * b.inner, a, dout, du, state.din.data() + at * h);
      float* dw =
          rank.expert_gradient.data() + (static_cast<std::int64_t>(l) * shape.experts_per_rank + e) * b.weights();
      block_weight_grad(b, state.in.data() + at * h, a, dout, du, dw, dw + h * b.inner);
    });
  }

  // --------------------------------------------------------------------------------------------------- the phases

  void end_phase(Rank& rank) {
    rank.clock.end();
    rank.phases.push_back(rank.clock.last_cpu());
  }
  void ring_all(Rank& rank, int exchange) {
    for (int d = 0; d < shape.ranks; ++d) {
      const int c = channel(exchange, rank.id, d);
      if (c != drop_message) transport->ring(c, rank.clock.virtual_now());
    }
  }
  double wait_all(int r, int exchange) {
    double latest = 0;
    for (int s = 0; s < shape.ranks; ++s) latest = std::max(latest, transport->wait(r, channel(exchange, s, r)));
    return latest;
  }

  void forward(Rank& rank, std::size_t l) {
    LayerState& state = rank.layers[l];
    const int out = static_cast<int>(l) * kExchangesOfLayer, back = out + 1;
    rank.clock.begin();
    route(rank, l, state);
    const auto& sent = routing.sent(rank.id);
    for (std::size_t i = 0; i < sent.size(); ++i)
      std::memcpy(rank.sent.data() + static_cast<std::int64_t>(i) * h, rank.x[l].data() + sent[i].token * h,
                  static_cast<std::size_t>(h) * sizeof(float));
    send(rank, out);
    end_phase(rank);
    ring_all(rank, out);

    rank.clock.begin(wait_all(rank.id, out));
    receive_rows(rank.id, out, state.in);
    experts_forward(rank, l, state);
    send_back(rank, state.out, back);
    end_phase(rank);
    ring_all(rank, back);

    rank.clock.begin(wait_all(rank.id, back));
    take_back(rank, back, state.returned);
    Floats& y = rank.x[l + 1];
    std::memcpy(y.data(), rank.x[l].data(), y.size() * sizeof(float));
    for (std::size_t i = 0; i < sent.size(); ++i)
      add_scaled(h, state.gates[i], state.returned.data() + static_cast<std::int64_t>(i) * h,
                 y.data() + sent[i].token * h);
    end_phase(rank);
  }

  void backward(Rank& rank, std::size_t l) {
    LayerState& state = rank.layers[l];
    const int out = static_cast<int>(l) * kExchangesOfLayer + 2, back = out + 1;
    rank.clock.begin();
    scatter_gradient(rank, state);
    send(rank, out);
    end_phase(rank);
    ring_all(rank, out);

    rank.clock.begin(wait_all(rank.id, out));
    receive_rows(rank.id, out, state.dout);
    experts_backward(rank, l, state);
    send_back(rank, state.din, back);
    end_phase(rank);
    ring_all(rank, back);

    rank.clock.begin(wait_all(rank.id, back));
    take_back(rank, back, rank.sent);
    gemm_input_grad(tokens, shape.experts(), h, rank.dlogits.data(), routers[l].data(), rank.dx.data());
    gemm_weight_grad(tokens, shape.experts(), h, rank.x[l].data(), rank.dlogits.data(),
                     rank.router_gradient.data() + static_cast<std::int64_t>(l) * h * shape.experts());
    add(tokens * h, rank.dx.data(), rank.dy.data());
    const auto& sent = routing.sent(rank.id);
    for (std::size_t i = 0; i < sent.size(); ++i)
      add(h, rank.sent.data() + static_cast<std::int64_t>(i) * h, rank.dy.data() + sent[i].token * h);
    end_phase(rank);
  }

  void run_rank(int r) {
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

  [[noreturn]] void report_stuck() const {
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

  ExpertStepRecord step(int dropped) {
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

  ExpertStepRecord record(const std::vector<RankUsage>& usage) const {
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
        out.messages += kExchangesOfLayer * shape.layers;
        out.bytes += kExchangesOfLayer * shape.layers * routing.rows_between(s, d) * h *
                     static_cast<std::int64_t>(sizeof(float));
      }
    }
    return out;
  }
};

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
