// The heuristic published with the Zero Bubble paper (arXiv 2401.10241, section 3;
// sail-sg/zero-bubble-pipeline-parallelism, scheduler/zb.py), in our words and with times, hops and memory by stage:
//   1. Warm-up: each stage takes as many forwards as fit in memory until the first input gradient can arrive (with the
//      first switch, one that would delay it is left out), fewer on every later stage; then the first I runs up.
//   2. Then for each micro-batch a wave of forwards down (at most one a stage; with the second switch a stage that is
//   two
//      ahead of the next may skip one, so that the next stage's input gradient comes first), and a wave of I up. Before
//      a pass, weight gradients run while memory has no room; while they fit in the wait for the pass; and once more if
//      the wait is longer than what the worst stage has idled so far beyond this one - or always, with the third
//      switch.
//   3. The weight gradients that are left.
#include <algorithm>
#include <limits>

#include "sim/zb_strings.hpp"

namespace shardplan {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

class Heuristic {
 public:
  Heuristic(const ZbQuestion& q, const ZbSwitches& switches)
      : q_(q), switches_(switches), times_(q), p_(q.ranks), m_(q.microbatches), stages_(q.ranks), lists_(q.ranks) {
    for (Stage& s : stages_) {
      s.forward_end.assign(m_, 0);
      s.input_end.assign(m_, 0);
    }
  }

  ZbStrings run() {
    if (!warm_up()) return {};
    for (int k = 1; k < m_; ++k) {
      if (!forward_wave() || !input_wave(k)) return {};
    }
    for (int s = 0; s < p_; ++s) {
      while (stages_[s].weights < m_) put_weight(s);
    }
    return std::move(lists_);
  }

 private:
  struct Stage {
    int forwards = 0, inputs = 0, weights = 0;
    double end = 0;                              // of its last pass
    double bytes = 0;                            // held
    double idle = 0;                             // waited since its first forward
    std::vector<double> forward_end, input_end;  // by micro-batch
  };

  double limit(int s) const { return q_.limit.empty() ? kNoLimit : q_.limit[s]; }
  bool room_for_forward(int s, double bytes) const { return !exceeds(bytes + q_.chunk_bytes[s], limit(s)); }
  bool room_for_input(int s) const {
    return !exceeds(stages_[s].bytes + q_.weight_grad_bytes[s] - q_.chunk_bytes[s], limit(s));
  }
  /// When the input of the next forward (input gradient) arrives; 0 = it needs none from another stage.
  double forward_arrives(int s) const {
    return s == 0 ? 0 : stages_[s - 1].forward_end[stages_[s].forwards] + times_.hop_down[s - 1];
  }
  double input_arrives(int s) const {
    return s + 1 == p_ ? 0 : stages_[s + 1].input_end[stages_[s].inputs] + times_.hop_up[s + 1];
  }
  bool owes_weight(int s) const { return stages_[s].weights < stages_[s].inputs; }
  double worst_idle() const {
    double worst = 0;
    for (const Stage& s : stages_) worst = std::max(worst, s.idle);
    return worst;
  }

  void begin(int s, double arrival, double time) {
    Stage& stage = stages_[s];
    const double start = std::max(stage.end, arrival);
    if (stage.forwards > 0) stage.idle += start - stage.end;
    stage.end = start + time;
  }
  void put_forward(int s) {
    begin(s, forward_arrives(s), times_.f[s]);
    Stage& stage = stages_[s];
    stage.forward_end[stage.forwards++] = stage.end;
    stage.bytes += q_.chunk_bytes[s];
    lists_[s].push_back(ZbOp::forward);
  }
  void put_input(int s) {
    begin(s, input_arrives(s), times_.b[s]);
    Stage& stage = stages_[s];
    stage.input_end[stage.inputs++] = stage.end;
    stage.bytes += q_.weight_grad_bytes[s] - q_.chunk_bytes[s];
    lists_[s].push_back(ZbOp::input_grad);
  }
  void put_weight(int s) {
    begin(s, 0, times_.w[s]);
    Stage& stage = stages_[s];
    ++stage.weights;
    stage.bytes -= q_.weight_grad_bytes[s];
    lists_[s].push_back(ZbOp::weight_grad);
  }

  /// How many more forwards each stage takes before its first input gradient.
  std::vector<int> extra_forwards() const {
    std::vector<int> extra(p_, 0);
    double last = stages_[p_ - 1].end + times_.b[p_ - 1];  // end of the first input gradient of the stage after
    for (int s = p_ - 2; s >= 0; --s) {
      const double arrival = last + times_.hop_up[s + 1];
      double bytes = stages_[s].bytes, end = stages_[s].end;
      while (stages_[s].forwards + extra[s] < m_ && room_for_forward(s, bytes)) {
        if (switches_.bubble_before_first_input ? end + times_.f[s] > arrival : end >= arrival) break;
        bytes += q_.chunk_bytes[s];
        end += times_.f[s];
        ++extra[s];
      }
      last = std::max(end, arrival) + times_.b[s];
    }
    for (int s = 1; s < p_; ++s) {
      while (extra[s] > 0 && extra[s] >= extra[s - 1] && stages_[s].forwards + extra[s] < m_) --extra[s];
    }
    return extra;
  }

  bool warm_up() {
    for (int s = 0; s < p_; ++s) {
      if (!room_for_forward(s, 0)) return false;
      put_forward(s);
    }
    const std::vector<int> extra = extra_forwards();
    for (int s = 0; s < p_; ++s) {
      for (int i = 0; i < extra[s]; ++i) put_forward(s);
    }
    for (int s = p_ - 1; s >= 0; --s) put_input(s);
    return true;
  }

  /// Whether stage s, two or more forwards ahead of the next one, does better to skip a forward in this wave.
  bool skips(int s) const {
    const Stage& here = stages_[s];
    const Stage& next = stages_[s + 1];
    const double next_input = next.end + times_.f[s + 1] + times_.b[s + 1] + times_.hop_up[s + 1];
    if (here.end >= next_input) return true;
    double weight_time = 0, bytes = here.bytes + q_.chunk_bytes[s];
    for (int w = here.weights; exceeds(bytes, limit(s)) && w < here.inputs; ++w) {
      weight_time += times_.w[s];
      bytes -= q_.weight_grad_bytes[s];
    }
    if (here.end + times_.f[s] + weight_time <= next_input) return false;
    return next_input - here.end <= worst_idle() - here.idle;
  }

  std::vector<char> takes_forward() const {
    std::vector<char> takes(p_, 0);
    for (int s = 0; s < p_; ++s) {
      if (stages_[s].forwards >= m_) continue;
      const bool ahead = s + 1 < p_ && stages_[s].forwards >= stages_[s + 1].forwards + 2;
      takes[s] = !(switches_.prefer_input && ahead && skips(s));
    }
    for (int s = p_ - 2; s >= 0; --s) takes[s] = takes[s] && takes[s + 1];
    return takes;
  }

  /// Weight gradients into the wait until `arrival`.
  void fill(int s, double arrival) {
    const auto waits = [&] { return owes_weight(s) && stages_[s].end < arrival; };
    while (owes_weight(s) && stages_[s].end + times_.w[s] <= arrival) put_weight(s);
    if (!waits()) return;
    const bool cheap = arrival - stages_[s].end <= worst_idle() - stages_[s].idle;
    if (!cheap || switches_.fill_greedily) put_weight(s);
  }

  bool forward_wave() {
    const std::vector<char> takes = takes_forward();
    for (int s = 0; s < p_; ++s) {
      if (!takes[s]) continue;
      while (!room_for_forward(s, stages_[s].bytes)) {
        if (!owes_weight(s)) return false;
        put_weight(s);
      }
      if (s > 0) fill(s, forward_arrives(s));
      put_forward(s);
    }
    return true;
  }

  bool input_wave(int k) {
    for (int s = p_ - 1; s >= 0; --s) {
      if (stages_[s].forwards <= k) return false;
      while (!room_for_input(s)) {
        if (!owes_weight(s)) return false;
        put_weight(s);
      }
      if (s + 1 < p_) fill(s, input_arrives(s));
      if (s == 0 && stages_[0].forwards == m_) {
        while (owes_weight(0)) put_weight(0);
      }
      put_input(s);
    }
    return true;
  }

  const ZbQuestion& q_;
  const ZbSwitches switches_;
  ZbTimes times_;
  int p_, m_;
  std::vector<Stage> stages_;
  ZbStrings lists_;
};

}  // namespace

ZbStrings zb_heuristic(const ZbQuestion& q, const ZbSwitches& switches) { return Heuristic(q, switches).run(); }

}  // namespace shardplan
