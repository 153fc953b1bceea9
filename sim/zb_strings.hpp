#pragma once
// An order of one chunk a rank as p strings over F, I, W: micro-batches run in order, so the k-th F is micro-batch k.
// Made for a search: evaluation without allocation, memory as a running sum.
#include <vector>

#include "sim/zb_auto.hpp"

namespace shardplan {

enum class ZbOp : std::uint8_t { forward = 0, input_grad = 1, weight_grad = 2 };
using ZbStrings = std::vector<std::vector<ZbOp>>;

struct ZbScore {
  double makespan = 0, window = 0;
  double of(ZbObjective objective) const { return objective == ZbObjective::makespan ? makespan : window; }
};

/// Times by stage with the defaults filled in.
struct ZbTimes {
  explicit ZbTimes(const ZbQuestion&);
  double of(ZbOp op, int s) const { return op == ZbOp::forward ? f[s] : op == ZbOp::input_grad ? b[s] : w[s]; }
  std::vector<double> f, b, w;
  std::vector<double> hop_down;  // from s to s + 1
  std::vector<double> hop_up;    // from s to s - 1
};

/// Whether every rank's list keeps within its limit (up to rounding) and its order of F, I, W is legal.
bool fits(const ZbQuestion&, const ZbStrings&);
/// Room with which sums of bytes are compared.
bool exceeds(double bytes, double limit);

class ZbEvaluator {
 public:
  explicit ZbEvaluator(const ZbQuestion&);
  /// Legal strings only. A deadlock scores infinity.
  ZbScore score(const ZbStrings&);

  /// Of the last score: end of the i-th pass of a rank, and whether it began at once after the pass before it.
  double start(int rank, int i) const { return start_[static_cast<std::size_t>(rank) * width_ + i]; }
  double end(int rank, int i) const { return end_[static_cast<std::size_t>(rank) * width_ + i]; }
  /// Position of the k-th F (I) in a rank's string.
  int forward_at(int rank, int k) const { return forward_at_[static_cast<std::size_t>(rank) * m_ + k]; }
  int input_at(int rank, int k) const { return input_at_[static_cast<std::size_t>(rank) * m_ + k]; }
  const ZbTimes& times() const { return times_; }

 private:
  int p_, m_;
  std::size_t width_;
  ZbTimes times_;
  std::vector<double> start_, end_, forward_end_, input_end_;
  std::vector<int> forward_at_, input_at_;
  std::vector<int> next_, forwards_, inputs_;
};

Order order_of(const ZbStrings&, int microbatches);

/// The published heuristic (zb.py): one setting of its three switches. Empty where it finds no place for a pass.
struct ZbSwitches {
  bool bubble_before_first_input = false;
  bool prefer_input = false;
  bool fill_greedily = false;
};
ZbStrings zb_heuristic(const ZbQuestion&, const ZbSwitches&);

/// No order within the limit has a smaller makespan (window).
double zb_lower_bound(const ZbQuestion&);

}  // namespace shardplan
