#include "sim/messages.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

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
  /// `actions`: by rank, everything but messages.
  Lowering(const Order& order, std::vector<std::vector<Action>> actions)
      : order_(order), actions_(std::move(actions)), lists_(order.ranks), next_(order.ranks, 0) {
    const std::size_t cells = static_cast<std::size_t>(order.stages()) * order.microbatches;
    forward_there_.assign(cells, 0);
    backward_there_.assign(cells, 0);
  }

  std::vector<std::vector<Action>> run() {
    std::size_t left = 0;
    for (const auto& list : actions_) left += list.size();
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
    if (next_[r] == actions_[r].size()) return false;
    const Action& action = actions_[r][next_[r]];
    if (action.kind != ActionKind::compute) {
      lists_[r].push_back(action);
      ++next_[r];
      return true;
    }
    const Pass& pass = order_.passes[r][action.position];
    Half halves[2];
    const int count = halves_of(pass, halves);
    for (int h = 0; h < count; ++h) {
      if (!ready(halves[h])) return false;
    }
    lists_[r].push_back(action);
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
  std::vector<std::vector<Action>> actions_, lists_;
  std::vector<std::size_t> next_;
  std::vector<char> forward_there_, backward_there_;  // by target stage and micro-batch
};

Action compute(std::size_t position) { return {ActionKind::compute, static_cast<std::int32_t>(position), -1, -1, -1}; }

/// The stages of the next passes, in order of appearance: at most `most` of them (a pair may bring one more).
std::vector<std::int32_t> next_stages(const std::vector<Pass>& list, std::size_t from, std::size_t most) {
  std::vector<std::int32_t> stages;
  const auto add = [&](std::int32_t stage) {
    if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
  };
  for (std::size_t i = from; i < list.size() && stages.size() < most; ++i) {
    add(list[i].stage);
    if (list[i].kind == PassKind::overlapped) add(list[i].stage2);
  }
  return stages;
}

/// Weight gradients of every stage of a rank: how many its list holds.
std::map<std::int32_t, int> weight_grads_of(const std::vector<Pass>& list) {
  std::map<std::int32_t, int> count;
  for (const Pass& pass : list) {
    if (pass.kind == PassKind::backward || pass.kind == PassKind::weight_grad) ++count[pass.stage];
    if (pass.kind == PassKind::overlapped) ++count[pass.stage2];
  }
  return count;
}

constexpr std::size_t kActiveStages = 3;  // PyTorch's max_active_stages

std::vector<Action> with_parameters(const std::vector<Pass>& list) {
  std::vector<Action> out;
  std::set<std::int32_t> active;
  auto left = weight_grads_of(list);
  const auto put = [&](ActionKind kind, std::int32_t stage) { out.push_back({kind, -1, stage, -1, -1}); };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto next = next_stages(list, i, kActiveStages);
    const auto wanted = [&](std::int32_t stage) { return std::find(next.begin(), next.end(), stage) != next.end(); };
    for (auto at = active.begin(); at != active.end();) {
      if (!wanted(*at)) {
        put(ActionKind::reshard, *at);
        at = active.erase(at);
      } else {
        ++at;
      }
    }
    for (const std::int32_t stage : next) {
      if (active.insert(stage).second) put(ActionKind::unshard, stage);
    }
    out.push_back(compute(i));
    const Pass& pass = list[i];
    const bool pair = pass.kind == PassKind::overlapped;
    if (pair || pass.kind == PassKind::backward || pass.kind == PassKind::weight_grad) {
      const std::int32_t stage = pair ? pass.stage2 : pass.stage;
      if (--left[stage] == 0) put(ActionKind::reduce_grad, stage);
    }
  }
  for (const std::int32_t stage : active) put(ActionKind::reshard, stage);
  return out;
}

}  // namespace

std::vector<std::vector<Action>> lower_messages(const Order& order) {
  std::vector<std::vector<Action>> actions(order.ranks);
  for (int r = 0; r < order.ranks; ++r) {
    for (std::size_t i = 0; i < order.passes[r].size(); ++i) actions[r].push_back(compute(i));
  }
  return Lowering(order, std::move(actions)).run();
}

std::vector<std::vector<Action>> lower_with_parameters(const Order& order) {
  std::vector<std::vector<Action>> actions;
  for (const auto& list : order.passes) actions.push_back(with_parameters(list));
  return Lowering(order, std::move(actions)).run();
}

}  // namespace shardplan
