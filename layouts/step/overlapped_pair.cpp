#include "layouts/step/overlapped_pair.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

namespace shardplan {
namespace {

/// Blocks of one pair of layers, as named in the header.
enum Block : int {
  attention,
  experts_back,
  experts_weights,
  experts,
  attention_back,
  attention_weights,
  combine_back,
  dispatch,
  dispatch_back,
  combine,
  kBlocks
};
constexpr std::array<Block, 6> kCompute{attention, experts_back,   experts_weights,
                                        experts,   attention_back, attention_weights};
constexpr std::array<Block, 4> kTransfers{combine_back, dispatch, dispatch_back, combine};

struct Wait {
  Block block;
  Block for_block;
  bool of_layer_before;
};
constexpr std::array<Wait, 8> kWaits{{{attention, combine, true},
                                      {combine_back, attention_back, true},
                                      {experts_back, combine_back, false},
                                      {dispatch, attention, false},
                                      {dispatch_back, experts_back, false},
                                      {experts, dispatch, false},
                                      {combine, experts, false},
                                      {attention_back, dispatch_back, false}}};

using Seconds = std::array<double, kBlocks>;

Seconds blocks_of(const LayerLanes& f, const LayerLanes& b, bool delayed) {
  Seconds s{};
  s[attention] = f.attention, s[dispatch] = f.dispatch, s[experts] = f.experts, s[combine] = f.combine;
  s[combine_back] = b.combine_back, s[dispatch_back] = b.dispatch_back;
  s[experts_back] = b.experts_back + (delayed ? 0 : b.experts_weights);
  s[experts_weights] = delayed ? b.experts_weights : 0;
  s[attention_back] = b.attention_back + (delayed ? 0 : b.attention_weights);
  s[attention_weights] = delayed ? b.attention_weights : 0;
  return s;
}

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The two streams over all pairs of layers. Every turn of the loop ends a block, or brings the stream that started
/// first to where the other starts; where both run, compute goes at 1 - contention.
class TwoStreams {
 public:
  TwoStreams(std::vector<Seconds> layers, double contention) : layers_(std::move(layers)), contention_(contention) {
    Seconds never;
    never.fill(kNever);
    ended_.assign(layers_.size(), never);
  }

  double run() {
    while (!compute_.done(layers_.size()) || !transfers_.done(layers_.size())) {
      const double c = start(compute_), t = start(transfers_);
      if (c + left(compute_) <= t) {
        end(compute_, c + left(compute_));
      } else if (t + left(transfers_) <= c) {
        end(transfers_, t + left(transfers_));
      } else if (c < t) {
        advance(compute_, t - c, t);
      } else if (t < c) {
        advance(transfers_, c - t, c);
      } else {
        together(c);
      }
    }
    return std::max(compute_.clock, transfers_.clock);
  }

 private:
  struct Stream {
    std::span<const Block> order;
    std::size_t layer = 0, position = 0;
    double clock = 0, spent = 0;  // spent: seconds of work of the current block that are done
    bool done(std::size_t layers) const { return layer >= layers; }
    Block block() const { return order[position]; }
  };

  double left(const Stream& s) const {
    return s.done(layers_.size()) ? 0 : std::max(0.0, layers_[s.layer][s.block()] - s.spent);
  }
  double start(const Stream& s) const {
    if (s.done(layers_.size())) return kNever;
    double at = s.clock;
    for (const Wait& w : kWaits) {
      if (w.block != s.block() || (w.of_layer_before && s.layer == 0)) continue;
      at = std::max(at, ended_[w.of_layer_before ? s.layer - 1 : s.layer][w.for_block]);
    }
    return at;
  }
  void advance(Stream& s, double work, double until) {
    s.spent += work;
    s.clock = until;
  }
  void end(Stream& s, double at) {
    ended_[s.layer][s.block()] = s.clock = at;
    s.spent = 0;
    if (++s.position < s.order.size()) return;
    s.position = 0;
    ++s.layer;
  }
  void together(double from) {
    const double slow = left(compute_) / (1 - contention_), transfer = left(transfers_);
    if (slow <= transfer) {
      advance(transfers_, slow, from + slow);
      end(compute_, from + slow);
    } else {
      advance(compute_, transfer * (1 - contention_), from + transfer);
      end(transfers_, from + transfer);
    }
  }

  std::vector<Seconds> layers_;
  double contention_;
  std::vector<Seconds> ended_;
  Stream compute_{kCompute}, transfers_{kTransfers};
};

}  // namespace

double overlapped_seconds(const std::vector<LayerLanes>& forward, const std::vector<LayerLanes>& backward,
                          bool delayed) {
  const std::size_t pairs = std::min(forward.size(), backward.size());
  std::vector<Seconds> layers;
  double contention = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    const LayerLanes& f = forward[i];
    const LayerLanes& b = backward[backward.size() - 1 - i];
    layers.push_back(blocks_of(f, b, delayed));
    contention = std::max({contention, f.contention, b.contention});
  }
  double alone = 0;
  for (std::size_t i = pairs; i < forward.size(); ++i) alone += forward[i].forward();
  for (std::size_t i = pairs; i < backward.size(); ++i) alone += backward[backward.size() - 1 - i].backward();
  return TwoStreams(std::move(layers), std::min(0.9, contention)).run() + alone;
}

}  // namespace shardplan
