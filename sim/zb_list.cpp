// List schedules for zb-auto: the order is what happens when every rank follows a rule.
//   input gradient if one is there; else a forward if one is there, memory has room and fewer than `most_ahead`
//   micro-batches are in flight on the rank; else a weight gradient - unless the next input is known to arrive within
//   `patience` of its time. Rules that wait less waste less now, rules that wait more keep the chain of input gradients
//   tight.
#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "sim/zb_search.hpp"

namespace shardplan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Rule {
  double patience = 0;    // in weight-gradient times
  double most_ahead = 0;  // micro-batches in flight: this many times the ranks from here to the last, plus one
};

class ListSchedule {
 public:
  ListSchedule(const ZbQuestion& q, const ZbTimes& times, const Rule& rule)
      : q_(q), times_(times), rule_(rule), p_(q.ranks), m_(q.microbatches), ranks_(q.ranks), lists_(q.ranks) {
    for (Rank& rank : ranks_) {
      rank.forward_end.reserve(m_);
      rank.input_end.reserve(m_);
    }
  }

  /// Empty where the rule comes to a standstill.
  ZbStrings run() {
    for (int r = 0; r < p_; ++r) wake(0, r);
    while (!events_.empty()) {
      const auto [time, r] = events_.top();
      events_.pop();
      if (ranks_[r].free_at <= time) start(r, time);
    }
    for (const auto& list : lists_) {
      if (list.size() != static_cast<std::size_t>(3) * m_) return {};
    }
    return std::move(lists_);
  }

 private:
  struct Rank {
    double free_at = 0, bytes = 0;
    int weights = 0;
    std::vector<double> forward_end, input_end;
    int forwards() const { return static_cast<int>(forward_end.size()); }
    int inputs() const { return static_cast<int>(input_end.size()); }
  };

  void wake(double time, int r) { events_.emplace(time, r); }
  double limit(int r) const { return q_.limit.empty() ? kNever : q_.limit[r]; }

  /// When the next forward's (input gradient's) input is on this rank; kNever = not known yet.
  double forward_there(int r) const {
    const int k = ranks_[r].forwards();
    if (k == m_) return kNever;
    if (r == 0) return 0;
    return k < ranks_[r - 1].forwards() ? ranks_[r - 1].forward_end[k] + times_.hop_down[r - 1] : kNever;
  }
  double input_there(int r) const {
    const int k = ranks_[r].inputs();
    if (k >= ranks_[r].forwards()) return kNever;
    if (r + 1 == p_) return ranks_[r].forward_end[k];
    return k < ranks_[r + 1].inputs() ? ranks_[r + 1].input_end[k] + times_.hop_up[r + 1] : kNever;
  }
  bool may_forward(int r) const {
    const Rank& rank = ranks_[r];
    if (exceeds(rank.bytes + q_.chunk_bytes[r], limit(r))) return false;
    return rank.forwards() - rank.inputs() < rule_.most_ahead * (p_ - r) + 1;
  }

  void start(int r, double time) {
    Rank& rank = ranks_[r];
    const double input = input_there(r), forward = forward_there(r);
    const bool owes = rank.weights < rank.inputs();
    const bool room = !exceeds(rank.bytes - q_.chunk_bytes[r] + q_.weight_grad_bytes[r], limit(r));
    if (input <= time && (room || !owes)) return run_input(r, time);
    if (forward <= time && may_forward(r)) return run_forward(r, time);
    if (!owes) return;  // woken again when an input arrives
    const double next = std::min(room ? input : kNever, may_forward(r) ? forward : kNever);
    if (next > time && next <= time + rule_.patience * times_.w[r]) return wake(next, r);
    run_weight(r, time);
  }

  void occupy(int r, ZbOp op, double end) {
    lists_[r].push_back(op);
    ranks_[r].free_at = end;
    wake(end, r);
  }
  void run_forward(int r, double time) {
    const double end = time + times_.f[r];
    ranks_[r].forward_end.push_back(end);
    ranks_[r].bytes += q_.chunk_bytes[r];
    occupy(r, ZbOp::forward, end);
    if (r + 1 < p_) wake(end + times_.hop_down[r], r + 1);
  }
  void run_input(int r, double time) {
    const double end = time + times_.b[r];
    ranks_[r].input_end.push_back(end);
    ranks_[r].bytes += q_.weight_grad_bytes[r] - q_.chunk_bytes[r];
    occupy(r, ZbOp::input_grad, end);
    if (r > 0) wake(end + times_.hop_up[r], r - 1);
  }
  void run_weight(int r, double time) {
    ++ranks_[r].weights;
    ranks_[r].bytes -= q_.weight_grad_bytes[r];
    occupy(r, ZbOp::weight_grad, time + times_.w[r]);
  }

  const ZbQuestion& q_;
  const ZbTimes& times_;
  const Rule rule_;
  int p_, m_;
  std::vector<Rank> ranks_;
  ZbStrings lists_;
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>> events_;
};

}  // namespace

std::vector<ZbStrings> list_scheduled(const ZbQuestion& q) {
  const ZbTimes times(q);
  std::vector<ZbStrings> all;
  for (const double patience : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    for (const double most_ahead : {0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0}) {
      ZbStrings strings = ListSchedule(q, times, {patience, most_ahead}).run();
      if (!strings.empty()) all.push_back(std::move(strings));
    }
  }
  return all;
}

}  // namespace shardplan
