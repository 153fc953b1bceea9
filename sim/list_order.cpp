#include "sim/list_order.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace shardplan {
namespace {

constexpr double kNever = -1;

class Builder {
 public:
  explicit Builder(ListQuestion& question) : q_(question), order_(question.placement) {
    const std::size_t cells = static_cast<std::size_t>(order_.stages()) * order_.microbatches;
    forward_end_.assign(cells, kNever);
    backward_end_.assign(cells, kNever);
    next_.resize(order_.ranks);
    free_at_.assign(order_.ranks, 0);
    in_flight_.assign(order_.ranks, 0);
    for (int r = 0; r < order_.ranks; ++r) {
      next_[r].assign(q_.lanes[r].size(), 0);
      for (const auto& lane : q_.lanes[r]) left_ += lane.size();
      wake(0, r);
    }
  }

  Order run() {
    while (left_ > 0) {
      if (events_.empty()) {
        overfill();
        continue;
      }
      const auto [time, rank] = events_.top();
      events_.pop();
      if (free_at_[rank] <= time) start_best(rank, time, q_.most_in_flight[rank]);
    }
    return std::move(order_);
  }

 private:
  std::size_t at(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * order_.microbatches + microbatch;
  }
  void wake(double time, int rank) { events_.emplace(time, rank); }

  /// When the inputs of a pass are there; kNever while they are not.
  double ready(const Pass& pass) const {
    if (pass.kind == PassKind::forward) {
      const int source = order_.previous[pass.stage];
      return source < 0 ? 0 : forward_end_[at(source, pass.microbatch)];
    }
    const double own = forward_end_[at(pass.stage, pass.microbatch)];
    const int source = order_.next[pass.stage];
    if (source < 0 || own == kNever) return own;
    return backward_end_[at(source, pass.microbatch)];
  }

  bool start_best(int rank, double time, int most) {
    int best = -1;
    std::tuple<int, int, int> best_key;
    for (std::size_t lane = 0; lane < next_[rank].size(); ++lane) {
      if (next_[rank][lane] == q_.lanes[rank][lane].size()) continue;
      const Pass& pass = q_.lanes[rank][lane][next_[rank][lane]];
      const bool forward = pass.kind == PassKind::forward;
      if (forward && in_flight_[rank] >= most) continue;
      const double from = ready(pass);
      if (from == kNever || from > time) continue;
      const std::tuple key{forward ? 1 : 0, static_cast<int>(next_[rank][lane]), -order_.layer_slot[pass.stage]};
      if (best < 0 || key < best_key) {
        best = static_cast<int>(lane);
        best_key = key;
      }
    }
    if (best >= 0) start(rank, best, time);
    return best >= 0;
  }

  void start(int rank, int lane, double time) {
    const Pass& pass = q_.lanes[rank][lane][next_[rank][lane]++];
    const bool forward = pass.kind == PassKind::forward;
    const double end = time + (forward ? q_.forward : q_.backward);
    order_.passes[rank].push_back(pass);
    --left_;
    free_at_[rank] = end;
    in_flight_[rank] += forward ? 1 : -1;
    (forward ? forward_end_ : backward_end_)[at(pass.stage, pass.microbatch)] = end;
    const int target = forward ? order_.next[pass.stage] : order_.previous[pass.stage];
    wake(end, rank);
    if (target >= 0) wake(end, order_.rank_of_stage[target]);
    now_ = std::max(now_, end);
  }

  /// Nothing runs and nothing may start: let the first rank that could run a forward pass take it.
  void overfill() {
    for (int r = 0; r < order_.ranks; ++r) {
      if (start_best(r, now_, in_flight_[r] + 1)) return;
    }
    left_ = 0;  // unreachable: with room for everything, some forward or backward pass is always ready
  }

  ListQuestion& q_;
  Order order_;
  std::vector<double> forward_end_, backward_end_, free_at_;
  std::vector<std::vector<std::size_t>> next_;
  std::vector<int> in_flight_;
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> events_;
  std::size_t left_ = 0;
  double now_ = 0;
};

}  // namespace

Order list_order(ListQuestion question) { return Builder(question).run(); }

}  // namespace shardplan
