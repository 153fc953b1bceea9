#include "sim/zb_strings.hpp"

#include <algorithm>
#include <limits>

#include "base/errors.hpp"
#include "sim/placement.hpp"

namespace shardplan {
namespace {

std::vector<double> filled(const std::vector<double>& times, int stages) {
  return times.empty() ? std::vector<double>(stages, 0.0) : times;
}

}  // namespace

ZbTimes::ZbTimes(const ZbQuestion& q)
    : f(q.times.forward),
      b(q.times.input_grad),
      w(q.times.weight_grad),
      hop_down(filled(q.times.hop_forward, q.ranks)),
      hop_up(filled(q.times.hop_backward, q.ranks)) {
  for (const auto* list : {&f, &b, &w, &hop_down, &hop_up}) {
    if (list->size() != static_cast<std::size_t>(q.ranks)) throw InputError("zb-auto", "times need one entry a stage");
  }
}

bool exceeds(double bytes, double limit) { return bytes > limit * (1 + 1e-9); }

bool fits(const ZbQuestion& q, const ZbStrings& strings) {
  for (int r = 0; r < q.ranks; ++r) {
    const double limit = q.limit.empty() ? std::numeric_limits<double>::infinity() : q.limit[r];
    int forwards = 0, inputs = 0, weights = 0;
    for (const ZbOp op : strings[r]) {
      if (op == ZbOp::forward) ++forwards;
      if (op == ZbOp::input_grad) ++inputs;
      if (op == ZbOp::weight_grad) ++weights;
      if (inputs > forwards || weights > inputs) return false;
      const double bytes = q.chunk_bytes[r] * (forwards - inputs) + q.weight_grad_bytes[r] * (inputs - weights);
      if (exceeds(bytes, limit)) return false;
    }
  }
  return true;
}

ZbEvaluator::ZbEvaluator(const ZbQuestion& q)
    : p_(q.ranks), m_(q.microbatches), width_(static_cast<std::size_t>(3) * q.microbatches), times_(q) {
  const std::size_t cells = static_cast<std::size_t>(p_) * m_;
  start_.resize(p_ * width_);
  end_.resize(p_ * width_);
  forward_end_.resize(cells);
  input_end_.resize(cells);
  forward_at_.resize(cells);
  input_at_.resize(cells);
  next_.resize(p_);
  forwards_.resize(p_);
  inputs_.resize(p_);
}

/// Ranks take turns, each as far as its inputs are there: down the pipeline for forwards, up for input gradients.
ZbScore ZbEvaluator::score(const ZbStrings& strings) {
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(forwards_.begin(), forwards_.end(), 0);
  std::fill(inputs_.begin(), inputs_.end(), 0);
  const int width = static_cast<int>(width_);
  const auto run = [&](int r) {
    const auto& list = strings[r];
    const std::size_t row = static_cast<std::size_t>(r) * m_;
    const std::size_t base = r * width_;
    int i = next_[r];
    double free_at = i > 0 ? end_[base + i - 1] : 0;
    for (; i < width; ++i) {
      double begin = free_at;
      const ZbOp op = list[i];
      if (op == ZbOp::forward) {
        const int k = forwards_[r];
        if (r > 0) {
          if (forwards_[r - 1] <= k) break;
          begin = std::max(begin, forward_end_[row - m_ + k] + times_.hop_down[r - 1]);
        }
        free_at = begin + times_.f[r];
        forward_end_[row + k] = free_at;
        forward_at_[row + k] = i;
        ++forwards_[r];
      } else if (op == ZbOp::input_grad) {
        const int k = inputs_[r];
        if (r + 1 < p_) {
          if (inputs_[r + 1] <= k) break;
          begin = std::max(begin, input_end_[row + m_ + k] + times_.hop_up[r + 1]);
        }
        free_at = begin + times_.b[r];
        input_end_[row + k] = free_at;
        input_at_[row + k] = i;
        ++inputs_[r];
      } else {
        free_at = begin + times_.w[r];
      }
      start_[base + i] = begin;
      end_[base + i] = free_at;
    }
    const bool moved = i > next_[r];
    next_[r] = i;
    return moved;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < p_; ++r) moved |= run(r);
    for (int r = p_ - 2; r >= 0; --r) moved |= run(r);
  }
  ZbScore score;
  for (int r = 0; r < p_; ++r) {
    if (next_[r] < width) {
      const double never = std::numeric_limits<double>::infinity();
      return {never, never};
    }
    const double last = end_[r * width_ + width_ - 1];
    score.makespan = std::max(score.makespan, last);
    score.window = std::max(score.window, last - start_[r * width_]);
  }
  return score;
}

Order order_of(const ZbStrings& strings, int microbatches) {
  const int p = static_cast<int>(strings.size());
  Order order = loop_placement(p, microbatches);
  for (int r = 0; r < p; ++r) {
    int forwards = 0, inputs = 0, weights = 0;
    for (const ZbOp op : strings[r]) {
      if (op == ZbOp::forward) order.passes[r].push_back(forward_pass(r, forwards++));
      if (op == ZbOp::input_grad) order.passes[r].push_back(input_grad_pass(r, inputs++));
      if (op == ZbOp::weight_grad) order.passes[r].push_back(weight_grad_pass(r, weights++));
    }
  }
  return order;
}

}  // namespace shardplan
