#include "hardware/measure/expert_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/mailbox.hpp"
#include "hardware/measure/rank_threads.hpp"

namespace shardplan {
namespace {

constexpr int kPhasesOfDirection = 3;

/// One token copy on its way: the token's row on its own rank.
using RowList = std::vector<std::int64_t>;

/// top_k distinct experts: the largest of log popularity + Gumbel noise.
std::vector<int> draw_experts(Random& random, const std::vector<double>& popularity, int top_k) {
  std::vector<double> score(popularity.size());
  for (std::size_t e = 0; e < score.size(); ++e) score[e] = popularity[e] + random.gumbel();
  std::vector<int> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](int a, int b) {
    return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(top_k));
  return order;
}

}  // namespace

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
  struct Rank {
    std::vector<float> x, y, dy;                                // [tokens, hidden]
    std::vector<float> sent, back;                              // gathered rows, by expert
    std::vector<std::vector<float>> in, a, out, dout, du, din;  // by layer: received rows of all own experts
    std::vector<float> gradient;                                // of own experts
    RankClock clock;
    std::vector<double> phases;
    double phase_cpu = 0;
  };

  ExpertStepShape shape;
  int experts;
  std::vector<std::vector<RowList>> routed;  // [source rank][expert]: rows
  std::vector<std::int64_t> counts;          // [source][destination]
  std::vector<std::vector<float>> weights;   // by expert
  std::vector<Rank> ranks;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<RankTeam> team;

  explicit Impl(const ExpertStepShape& s) : shape(s), experts(s.ranks * s.experts_per_rank) {
    const BlockShape& b = s.block;
    if (s.ranks < 1 || s.experts_per_rank < 1 || s.layers < 1 || b.tokens < 1 || b.hidden < 1 || b.inner < 1 ||
        s.top_k < 1 || s.top_k > experts)
      throw InputError("shape",
                       "ranks, experts, layers, tokens and sizes must be at least 1, top_k at most the experts");
    route();
    make_ranks();
    make_channels();
    team = std::make_unique<RankTeam>(shape.ranks, shape.pin);
  }

  std::int64_t hidden() const { return shape.block.hidden; }
  std::int64_t row_count(int s, int d) const { return counts[static_cast<std::size_t>(s * shape.ranks + d)]; }
  std::int64_t received(int d) const {
    std::int64_t n = 0;
    for (int s = 0; s < shape.ranks; ++s) n += row_count(s, d);
    return n;
  }

  void route() {
    Random popular(shape.seed * 7919);
    std::vector<double> popularity(static_cast<std::size_t>(experts));
    for (double& z : popularity) z = shape.skew * popular.normal();
    counts.assign(static_cast<std::size_t>(shape.ranks * shape.ranks), 0);
    for (int s = 0; s < shape.ranks; ++s) {
      Random random(shape.seed * 1000003 + static_cast<std::uint64_t>(s));
      routed.emplace_back(static_cast<std::size_t>(experts));
      for (std::int64_t t = 0; t < shape.block.tokens; ++t) {
        for (const int e : draw_experts(random, popularity, shape.top_k)) {
          routed.back()[static_cast<std::size_t>(e)].push_back(t);
          ++counts[static_cast<std::size_t>(s * shape.ranks + e / shape.experts_per_rank)];
        }
      }
    }
  }

  void make_ranks() {
    for (int e = 0; e < experts; ++e) weights.push_back(executor_weights(shape.block, e));
    for (int r = 0; r < shape.ranks; ++r) {
      Rank rank;
      rank.x = executor_input(shape.block, r, 0);
      rank.y = rank.dy = rank.x;
      rank.sent.resize(static_cast<std::size_t>(shape.block.tokens * shape.top_k * hidden()));
      rank.back = rank.sent;
      const auto narrow = static_cast<std::size_t>(received(r) * hidden()),
                 wide = static_cast<std::size_t>(received(r) * shape.block.inner);
      rank.in.assign(static_cast<std::size_t>(shape.layers), std::vector<float>(narrow));
      rank.out = rank.dout = rank.din = rank.in;
      rank.a.assign(static_cast<std::size_t>(shape.layers), std::vector<float>(wide));
      rank.du = rank.a;
      rank.gradient.resize(static_cast<std::size_t>(shape.experts_per_rank * shape.block.weights()));
      ranks.push_back(std::move(rank));
    }
  }

  /// Channels: exchange (4 a layer: out and back, forward then backward), source, destination.
  void make_channels() {
    std::vector<std::int64_t> lengths;
    for (int x = 0; x < 4 * shape.layers; ++x) {
      for (int s = 0; s < shape.ranks; ++s) {
        for (int d = 0; d < shape.ranks; ++d)
          lengths.push_back((x % 2 == 0 ? row_count(s, d) : row_count(d, s)) * hidden());
      }
    }
    mailbox = std::make_unique<Mailbox>(std::move(lengths), shape.ranks, shape.spin);
  }
  int channel(int exchange, int s, int d) const { return (exchange * shape.ranks + s) * shape.ranks + d; }

  // ------------------------------------------------------------------------------------------------------------ the
  // phases

  void begin_phase(Rank& rank, double available) { rank.clock.begin(available); }
  void end_phase(Rank& rank) {
    rank.clock.end();
    rank.phases.push_back(rank.clock.last_cpu());
  }

  void ring_all(Rank& rank, int r, int exchange) {
    for (int d = 0; d < shape.ranks; ++d) mailbox->ring(channel(exchange, r, d), rank.clock.virtual_now());
  }
  double wait_all(int r, int exchange) {
    double latest = 0;
    for (int s = 0; s < shape.ranks; ++s) latest = std::max(latest, mailbox->wait(r, channel(exchange, s, r)));
    return latest;
  }

  /// Copies the rows of `from` that go to each expert, expert after expert, and puts each destination's share into its
  /// slot.
  void gather_and_send(Rank& rank, int r, const std::vector<float>& from, int exchange) {
    float* at = rank.sent.data();
    for (int d = 0; d < shape.ranks; ++d) {
      const float* begin = at;
      for (int e = d * shape.experts_per_rank; e < (d + 1) * shape.experts_per_rank; ++e) {
        for (const std::int64_t row : routed[static_cast<std::size_t>(r)][static_cast<std::size_t>(e)]) {
          std::memcpy(at, from.data() + row * hidden(), static_cast<std::size_t>(hidden()) * sizeof(float));
          at += hidden();
        }
      }
      mailbox->copy_in(channel(exchange, r, d), begin);
    }
  }

  /// Rows of expert e (local index) from source s.
  std::int64_t rows_of(int s, int r, int e) const {
    return static_cast<std::int64_t>(
        routed[static_cast<std::size_t>(s)][static_cast<std::size_t>(r * shape.experts_per_rank + e)].size());
  }

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

  void receive_rows(int r, int exchange, std::vector<float>& into) {
    for_each_piece(r, [&](int s, std::int64_t within, std::int64_t grouped, std::int64_t n) {
      std::memcpy(into.data() + grouped * hidden(), mailbox->peek(channel(exchange, s, r)) + within * hidden(),
                  static_cast<std::size_t>(n * hidden()) * sizeof(float));
    });
  }

  void send_back(Rank& rank, int r, const std::vector<float>& rows, int exchange) {
    std::vector<float>& piece = rank.back;
    for (int s = 0; s < shape.ranks; ++s) {
      piece.resize(std::max<std::size_t>(piece.size(), static_cast<std::size_t>(row_count(s, r) * hidden())));
      for_each_piece(r, [&](int source, std::int64_t within, std::int64_t grouped, std::int64_t n) {
        if (source == s)
          std::memcpy(piece.data() + within * hidden(), rows.data() + grouped * hidden(),
                      static_cast<std::size_t>(n * hidden()) * sizeof(float));
      });
      mailbox->copy_in(channel(exchange, r, s), piece.data());
    }
  }

  void sum_returned(Rank&, int r, int exchange, std::vector<float>& into) {
    std::fill(into.begin(), into.end(), 0.0f);
    for (int d = 0; d < shape.ranks; ++d) {
      const float* at = mailbox->peek(channel(exchange, d, r));
      for (int e = d * shape.experts_per_rank; e < (d + 1) * shape.experts_per_rank; ++e) {
        for (const std::int64_t row : routed[static_cast<std::size_t>(r)][static_cast<std::size_t>(e)]) {
          add(hidden(), at, into.data() + row * hidden());
          at += hidden();
        }
      }
    }
    const float share = 1.0f / static_cast<float>(shape.top_k);
    for (float& v : into) v *= share;
  }

  template <class Run>
  void for_each_expert(int r, Run&& run) {
    std::int64_t at = 0;
    for (int e = 0; e < shape.experts_per_rank; ++e) {
      BlockShape block = shape.block;
      block.tokens = 0;
      for (int s = 0; s < shape.ranks; ++s) block.tokens += rows_of(s, r, e);
      if (block.tokens > 0) run(e, block, at);
      at += block.tokens;
    }
  }

  void experts_forward(Rank& rank, int r, std::size_t layer) {
    for_each_expert(r, [&](int e, const BlockShape& block, std::int64_t at) {
      const float* w = weights[static_cast<std::size_t>(r * shape.experts_per_rank + e)].data();
      block_forward(block, rank.in[layer].data() + at * block.hidden, w, w + block.hidden * block.inner,
                    rank.a[layer].data() + at * block.inner, rank.out[layer].data() + at * block.hidden);
    });
  }

  void experts_backward(Rank& rank, int r, std::size_t layer) {
    for_each_expert(r, [&](int e, const BlockShape& block, std::int64_t at) {
      const float* w = weights[static_cast<std::size_t>(r * shape.experts_per_rank + e)].data();
      const float* a = rank.a[layer].data() + at * block.inner;
      const float* dout = rank.dout[layer].data() + at * block.hidden;
      float* du = rank.du[layer].data() + at * block.inner;
      block_input_grad(block, w, w + block.hidden * block.inner, a, dout, du,
                       rank.din[layer].data() + at * block.hidden);
      float* dw = rank.gradient.data() + e * block.weights();
      block_weight_grad(block, rank.in[layer].data() + at * block.hidden, a, dout, du, dw,
                        dw + block.hidden * block.inner);
    });
  }

  void run_direction(Rank& rank, int r, std::size_t layer, bool backward) {
    const int out = static_cast<int>(layer) * 4 + (backward ? 2 : 0), back = out + 1;
    std::vector<float>& from = backward ? rank.dy : (layer == 0 ? rank.x : rank.y);
    begin_phase(rank, 0);
    gather_and_send(rank, r, from, out);
    end_phase(rank);
    ring_all(rank, r, out);
    begin_phase(rank, wait_all(r, out));
    receive_rows(r, out, backward ? rank.dout[layer] : rank.in[layer]);
    if (backward)
      experts_backward(rank, r, layer);
    else
      experts_forward(rank, r, layer);
    send_back(rank, r, backward ? rank.din[layer] : rank.out[layer], back);
    end_phase(rank);
    ring_all(rank, r, back);
    begin_phase(rank, wait_all(r, back));
    sum_returned(rank, r, back, backward ? rank.dy : rank.y);
    end_phase(rank);
  }

  void run_rank(int r) {
    Rank& rank = ranks[static_cast<std::size_t>(r)];
    for (int l = 0; l < shape.layers; ++l) run_direction(rank, r, static_cast<std::size_t>(l), false);
    rank.dy = rank.y;
    for (int l = shape.layers - 1; l >= 0; --l) run_direction(rank, r, static_cast<std::size_t>(l), true);
    mailbox->finish(r);
  }

  ExpertStepRecord step() {
    mailbox->begin_step();
    for (Rank& rank : ranks) {
      rank.clock = RankClock();
      rank.phases.clear();
      std::fill(rank.gradient.begin(), rank.gradient.end(), 0.0f);
    }
    const auto usage = team->run([&](int r) { run_rank(r); }, [&] { mailbox->abort(); });
    ExpertStepRecord record;
    record.cpu_over_wall = 1;
    double begin = std::numeric_limits<double>::infinity(), end = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      record.phases.push_back(ranks[r].phases);
      record.virtual_makespan = std::max(record.virtual_makespan, ranks[r].clock.virtual_now());
      record.cpu_over_wall = std::min(record.cpu_over_wall, ranks[r].clock.cpu() / ranks[r].clock.wall());
      begin = std::min(begin, usage[r].wall_start);
      end = std::max(end, usage[r].wall_end);
    }
    record.wall_makespan = end - begin;
    for (int s = 0; s < shape.ranks; ++s) {
      for (int d = 0; d < shape.ranks; ++d) {
        if (s == d) continue;
        record.messages += 4 * shape.layers;
        record.bytes += 4 * shape.layers * row_count(s, d) * hidden() * static_cast<std::int64_t>(sizeof(float));
      }
    }
    return record;
  }

  std::vector<double> reference_output(int r) const {
    const BlockShape& b = shape.block;
    std::vector<double> x(ranks[static_cast<std::size_t>(r)].x.begin(), ranks[static_cast<std::size_t>(r)].x.end());
    const auto h = static_cast<std::size_t>(b.hidden), f = static_cast<std::size_t>(b.inner);
    for (int l = 0; l < shape.layers; ++l) {
      std::vector<double> y(x.size(), 0.0);
      for (int e = 0; e < experts; ++e) {
        const std::vector<float>& w = weights[static_cast<std::size_t>(e)];
        for (const std::int64_t row : routed[static_cast<std::size_t>(r)][static_cast<std::size_t>(e)]) {
          const double* in = x.data() + static_cast<std::size_t>(row) * h;
          double* out = y.data() + static_cast<std::size_t>(row) * h;
          for (std::size_t j = 0; j < h; ++j) out[j] += in[j];
          for (std::size_t i = 0; i < f; ++i) {
            double a = 0;
            for (std::size_t j = 0; j < h; ++j) a += in[j] * w[j * f + i];
            for (std::size_t j = 0; a > 0 && j < h; ++j) out[j] += a * w[h * f + i * h + j];
          }
        }
      }
      for (double& v : y) v /= shape.top_k;
      x = y;
    }
    return x;
  }
};

ExpertStep::ExpertStep(const ExpertStepShape& shape) : impl_(std::make_unique<Impl>(shape)) {}
ExpertStep::~ExpertStep() = default;
ExpertStepRecord ExpertStep::step() { return impl_->step(); }
const std::vector<std::int64_t>& ExpertStep::rows() const { return impl_->counts; }
const std::vector<float>& ExpertStep::output(int rank) const { return impl_->ranks[static_cast<std::size_t>(rank)].y; }
std::vector<double> ExpertStep::reference_output(int rank) const { return impl_->reference_output(rank); }

std::vector<std::int64_t> ExpertStep::expert_rows(int rank) const {
  std::vector<std::int64_t> out;
  for (int e = 0; e < impl_->shape.experts_per_rank; ++e) {
    out.push_back(0);
    for (int s = 0; s < impl_->shape.ranks; ++s) out.back() += impl_->rows_of(s, rank, e);
  }
  return out;
}

}  // namespace shardplan
