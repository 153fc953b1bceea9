// A layer's phases on one rank: its own tokens on their way out and back, its own experts between.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hardware/measure/expert_state.hpp"

namespace shardplan {
namespace {

/// Gates of one token: softmax over its chosen experts' logits.
void softmax_of_chosen(const float* logits, const std::vector<ExpertRouting::Copy>& sent, const std::int64_t* places,
                       int top_k, std::vector<float>& gates) {
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

// ------------------------------------------------------------------------------------------------ own tokens
/// Gates of all copies, from the router's product.
void ExpertStep::Impl::route(const Rank& rank, std::size_t l, LayerState& state) const {
  gemm_forward(tokens, shape.experts(), h, rank.x[l].data(), routers[l].data(), state.logits.data());
  const auto& places = routing.places(rank.id);
  for (std::int64_t t = 0; t < tokens; ++t)
    softmax_of_chosen(state.logits.data() + t * shape.experts(), routing.sent(rank.id), places.data() + t * shape.top_k,
                      shape.top_k, state.gates);
}

/// The gradient of every copy's output is gate x dY; of its gate, its output times dY; of the logits, through the
/// softmax: gate_i (dgate_i - sum_j gate_j dgate_j).
void ExpertStep::Impl::scatter_gradient(Rank& rank, const LayerState& state) const {
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

void ExpertStep::Impl::send(const Rank& rank, int exchange) {
  const float* at = rank.sent.data();
  for (int d = 0; d < shape.ranks; ++d) {
    transport->copy_in(channel(exchange, rank.id, d), at);
    at += routing.rows_between(rank.id, d) * h;
  }
}

void ExpertStep::Impl::take_back(const Rank& rank, int exchange, std::vector<float>& into) {
  float* at = into.data();
  for (int d = 0; d < shape.ranks; ++d) {
    transport->copy_out(channel(exchange, d, rank.id), at);
    at += routing.rows_between(rank.id, d) * h;
  }
}

/// Moves between the received order (source, then expert) and the experts' order (expert, then source).
template <class Move>
void ExpertStep::Impl::for_each_piece(int r, Move&& move) const {
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

void ExpertStep::Impl::receive_rows(int r, int exchange, std::vector<float>& into) {
  for_each_piece(r, [&](int s, std::int64_t within, std::int64_t grouped, std::int64_t n) {
    if (n > 0)
      std::memcpy(into.data() + grouped * h, transport->peek(channel(exchange, s, r)) + within * h,
                  static_cast<std::size_t>(n * h) * sizeof(float));
  });
}

void ExpertStep::Impl::send_back(Rank& rank, const std::vector<float>& rows, int exchange) {
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
void ExpertStep::Impl::for_each_expert(int r, std::size_t l, Run&& run) {
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

void ExpertStep::Impl::experts_forward(const Rank& rank, std::size_t l, LayerState& state) {
  for_each_expert(rank.id, l, [&](int, const BlockShape& b, std::int64_t at, const float* w) {
    expert_forward(b, state.in.data() + at * h, w, w + h * b.inner, state.a.data() + at * b.inner,
                   state.out.data() + at * h);
  });
}

void ExpertStep::Impl::experts_backward(Rank& rank, std::size_t l, LayerState& state) {
  for_each_expert(rank.id, l, [&](int e, const BlockShape& b, std::int64_t at, const float* w) {
    const float *a = state.a.data() + at * b.inner, *dout = state.dout.data() + at * h;
    float* du = state.du.data() + at * b.inner;
    expert_input_grad(b, w, w + h * b.inner, a, dout, du, state.din.data() + at * h);
    float* dw = rank.expert_gradient.data() + (static_cast<std::int64_t>(l) * shape.experts_per_rank + e) * b.weights();
    block_weight_grad(b, state.in.data() + at * h, a, dout, du, dw, dw + h * b.inner);
  });
}

// --------------------------------------------------------------------------------------------------- the phases
void ExpertStep::Impl::end_phase(Rank& rank) {
  rank.clock.end();
  rank.phases.push_back(rank.clock.last_cpu());
}

void ExpertStep::Impl::ring_all(Rank& rank, int exchange) {
  for (int d = 0; d < shape.ranks; ++d) {
    const int c = channel(exchange, rank.id, d);
    if (c != drop_message) transport->ring(c, rank.clock.virtual_now());
  }
}

double ExpertStep::Impl::wait_all(int r, int exchange) {
  double latest = 0;
  for (int s = 0; s < shape.ranks; ++s) latest = std::max(latest, transport->wait(r, channel(exchange, s, r)));
  return latest;
}

/// The rhythm of both passes: own rows out, the experts on what arrived, their rows back, what the tokens make of them.
/// own() leaves its rows in rank.sent; experts() reads `arrived` and leaves its rows in `answer`.
template <class Own, class Experts, class Finish>
void ExpertStep::Impl::exchange(Rank& rank, int out, const Buffers& buffers, Own&& own, Experts&& experts,
                                Finish&& finish) {
  const int back = out + 1;
  rank.clock.begin();
  own();
  send(rank, out);
  end_phase(rank);
  ring_all(rank, out);

  rank.clock.begin(wait_all(rank.id, out));
  receive_rows(rank.id, out, buffers.arrived);
  experts();
  send_back(rank, buffers.answer, back);
  end_phase(rank);
  ring_all(rank, back);

  rank.clock.begin(wait_all(rank.id, back));
  take_back(rank, back, buffers.returned);
  finish();
  end_phase(rank);
}

void ExpertStep::Impl::forward(Rank& rank, std::size_t l) {
  LayerState& state = rank.layers[l];
  const auto& sent = routing.sent(rank.id);
  const auto own = [&] {
    route(rank, l, state);
    for (std::size_t i = 0; i < sent.size(); ++i)
      std::memcpy(rank.sent.data() + static_cast<std::int64_t>(i) * h, rank.x[l].data() + sent[i].token * h,
                  static_cast<std::size_t>(h) * sizeof(float));
  };
  const auto finish = [&] {
    std::vector<float>& y = rank.x[l + 1];
    std::memcpy(y.data(), rank.x[l].data(), y.size() * sizeof(float));
    for (std::size_t i = 0; i < sent.size(); ++i)
      add_scaled(h, state.gates[i], state.returned.data() + static_cast<std::int64_t>(i) * h,
                 y.data() + sent[i].token * h);
  };
  exchange(
      rank, static_cast<int>(l) * kExchangesOfLayer, {state.in, state.out, state.returned}, own,
      [&] { experts_forward(rank, l, state); }, finish);
}

void ExpertStep::Impl::backward(Rank& rank, std::size_t l) {
  LayerState& state = rank.layers[l];
  const auto finish = [&] {
    gemm_input_grad(tokens, shape.experts(), h, rank.dlogits.data(), routers[l].data(), rank.dx.data());
    gemm_weight_grad(tokens, shape.experts(), h, rank.x[l].data(), rank.dlogits.data(),
                     rank.router_gradient.data() + static_cast<std::int64_t>(l) * h * shape.experts());
    add(tokens * h, rank.dx.data(), rank.dy.data());
    const auto& sent = routing.sent(rank.id);
    for (std::size_t i = 0; i < sent.size(); ++i)
      add(h, rank.sent.data() + static_cast<std::int64_t>(i) * h, rank.dy.data() + sent[i].token * h);
  };
  exchange(
      rank, static_cast<int>(l) * kExchangesOfLayer + 2, {state.dout, state.din, rank.sent},
      [&] { scatter_gradient(rank, state); }, [&] { experts_backward(rank, l, state); }, finish);
}

}  // namespace shardplan
