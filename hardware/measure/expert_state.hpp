#pragma once
// The expert step's state and its parts: expert_phases.cpp runs a layer's phases on one rank, expert_step.cpp sets up
// and runs a step. Private to hardware/measure/expert_*.cpp.
#include <cstdint>
#include <memory>
#include <vector>

#include "hardware/measure/expert_step.hpp"
#include "hardware/measure/rank_threads.hpp"

namespace shardplan {

inline constexpr int kExchangesOfLayer = 4;  // out and back, forward then backward

struct ExpertStep::Impl {
  /// What a layer keeps from its forward pass, and works in. Rows of a rank's own tokens; copies in the order sent;
  /// rows received, expert after expert.
  struct LayerState {
    std::vector<float> logits, gates, returned;
    std::vector<float> in, a, out, dout, du, din;
  };
  struct Rank {
    int id = 0;
    std::vector<std::vector<float>> x;  // input of each layer, and the last one's output: [tokens, hidden]
    std::vector<float> dy, dx, dlogits;
    std::vector<float> sent, piece;  // copies in the order sent; one destination's rows
    std::vector<LayerState> layers;
    std::vector<float> expert_gradient, router_gradient;
    RankClock clock;
    std::vector<double> phases;
    double exchanged = 0, all_reduce_cpu = 0;
  };

  const ExpertStepShape shape;
  const ExpertRouting routing;
  const std::int64_t h, tokens;
  std::vector<std::vector<float>> weights, routers;  // [layer * experts + expert], [layer]
  std::vector<Rank> ranks;
  std::vector<int> ring_first;
  std::unique_ptr<RankTransport> transport;
  std::unique_ptr<RankTeam> team;
  int drop_message = -1;

  Impl(const ExpertStepShape&, const RankTransportMaker&);
  Rank make_rank(int r) const;
  /// Channels: exchange, source, destination; then the ring of the routers' gradients.
  void make_channels(const RankTransportMaker& maker);
  int channel(int exchange, int s, int d) const { return (exchange * shape.ranks + s) * shape.ranks + d; }

  /// Gates of all copies, from the router's product.
  void route(const Rank& rank, std::size_t l, LayerState& state) const;
  /// The gradient of every copy's output is gate x dY; of its gate, its output times dY; of the logits, through the
  /// softmax: gate_i (dgate_i - sum_j gate_j dgate_j).
  void scatter_gradient(Rank& rank, const LayerState& state) const;
  void send(const Rank& rank, int exchange);
  void take_back(const Rank& rank, int exchange, std::vector<float>& into);
  std::int64_t rows_of(int s, int r, int e) const { return routing.rows(s, r * shape.experts_per_rank + e); }
  /// Moves between the received order (source, then expert) and the experts' order (expert, then source).
  template <class Move>
  void for_each_piece(int r, Move&& move) const;
  void receive_rows(int r, int exchange, std::vector<float>& into);
  void send_back(Rank& rank, const std::vector<float>& rows, int exchange);
  /// run(local expert, its shape with its rows, its first row, its weights).
  template <class Run>
  void for_each_expert(int r, std::size_t l, Run&& run);
  void experts_forward(const Rank& rank, std::size_t l, LayerState& state);
  void experts_backward(Rank& rank, std::size_t l, LayerState& state);
  void end_phase(Rank& rank);
  void ring_all(Rank& rank, int exchange);
  double wait_all(int r, int exchange);
  /// Rows of an exchange on this rank: of other ranks' tokens as they arrive, the experts' answers to them, and the
  /// answers to its own tokens.
  struct Buffers {
    std::vector<float>&arrived, &answer, &returned;
  };
  template <class Own, class Experts, class Finish>
  void exchange(Rank& rank, int out, const Buffers& buffers, Own&& own, Experts&& experts, Finish&& finish);
  void forward(Rank& rank, std::size_t l);
  void backward(Rank& rank, std::size_t l);

  void run_rank(int r);
  [[noreturn]] void report_stuck() const;
  ExpertStepRecord step(int dropped);
  ExpertStepRecord record(const std::vector<RankUsage>& usage) const;
};

}  // namespace shardplan
