#include "sim/messages.hpp"

#include "base/errors.hpp"
#include "sim/pass_text.hpp"

namespace shardplan {
namespace {

/// A pass as its one or two halves: what it receives and what it sends.
struct Half {
  bool forward;
  std::int32_t stage, microbatch;
};

int halves_of(const Pass& pass, Half out[2]) {
  switch (pass.kind) {
    case PassKind::forward:
      out[0] = {true, pass.stage, pass.microbatch};
      return 1;
    case PassKind::backward:
    case PassKind::input_grad:
      out[0] = {false, pass.stage, pass.microbatch};
      return 1;
    case PassKind::weight_grad:
      return 0;
    case PassKind::overlapped:
      out[0] = {true, pass.stage, pass.microbatch};
      out[1] = {false, pass.stage2, pass.microbatch2};
      return 2;
  }
  return 0;
}

class Lowering {
 public:
  explicit Lowering(const Order& order) : order_(order), lists_(order.ranks), next_(order.ranks, 0) {
    const std::size_t cells = static_cast<std::size_t>(order.stages()) * order.microbatches;
    forward_there_.assign(cells, 0);
    backward_there_.assign(cells, 0);
  }

  std::vector<std::vector<Action>> run() {
    std::size_t left = 0;
    for (const auto& list : order_.passes) left += list.size();
    while (left > 0) {
      std::size_t placed = 0;
      for (int r = 0; r < order_.ranks; ++r) placed += place_next(r) ? 1 : 0;
      if (placed == 0) throw InputError("schedule", "deadlock: no rank can place its next pass");
      left -= placed;
    }
    return std::move(lists_);
  }

 private:
  std::size_t at(const Half& half) const {
    return static_cast<std::size_t>(half.stage) * order_.microbatches + half.microbatch;
  }

  /// Whether what a half needs is in its rank's list (a message received, or computed on the rank itself).
  bool ready(const Half& half) const {
    const int source = half.forward ? order_.previous[half.stage] : order_.next[half.stage];
    if (source < 0) return true;
    return (half.forward ? forward_there_ : backward_there_)[at(half)] != 0;
  }

  bool place_next(int r) {
    if (next_[r] == order_.passes[r].size()) return false;
    const Pass& pass = order_.passes[r][next_[r]];
    Half halves[2];
    const int count = halves_of(pass, halves);
    for (int h = 0; h < count; ++h) {
      if (!ready(halves[h])) return false;
    }
    lists_[r].push_back({ActionKind::compute, static_cast<std::int32_t>(next_[r]), -1, -1, -1});
    ++next_[r];
    for (int h = 0; h < count; ++h) send(r, halves[h]);
    return true;
  }

  void send(int r, const Half& half) {
    const int target = half.forward ? order_.next[half.stage] : order_.previous[half.stage];
    if (target < 0) return;
    const int peer = order_.rank_of_stage[target];
    const Half there{half.forward, target, half.microbatch};
    (half.forward ? forward_there_ : backward_there_)[at(there)] = 1;
    if (peer == r) return;
    const ActionKind send = half.forward ? ActionKind::send_forward : ActionKind::send_backward;
    const ActionKind receive = half.forward ? ActionKind::receive_forward : ActionKind::receive_backward;
    lists_[r].push_back({send, -1, half.stage, half.microbatch, peer});
    lists_[peer].push_back({receive, -1, target, half.microbatch, r});
  }

  const Order& order_;
  std::vector<std::vector<Action>> lists_;
  std::vector<std::size_t> next_;
  std::vector<char> forward_there_, backward_there_;  // by target stage and micro-batch
};

}  // namespace

std::vector<std::vector<Action>> lower_messages(const Order& order) { return Lowering(order).run(); }

}  // namespace shardplan
