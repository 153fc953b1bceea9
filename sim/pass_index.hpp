#pragma once
// Where each pass of an Order stands. Building it checks the order: every pass once, on its rank, forward before
// backward.
#include <cstdint>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

/// A pass is numbered by rank, then by position: its id. -1 = the order has no such pass.
class PassIndex {
 public:
  /// Throws InputError("schedule", ...) where the order is not a training step of its chains: a pass missing, twice,
  /// on another rank than its stage, or a backward before its forward.
  explicit PassIndex(const Order&);

  int passes() const { return static_cast<int>(rank_.size()); }
  int rank(int id) const { return rank_[id]; }
  int position(int id) const { return id - first_[rank_[id]]; }
  int id(int rank, int position) const { return first_[rank] + position; }
  const Pass& pass(int id) const { return (*order_).passes[rank(id)][position(id)]; }

  /// The pass (alone or as half of a pair) that computes the forward of a stage and micro-batch.
  int forward(int stage, int microbatch) const { return forward_[at(stage, microbatch)]; }
  /// The pass that sends its gradient: B, I, or a pair with it.
  int backward(int stage, int microbatch) const { return backward_[at(stage, microbatch)]; }
  int weight_grad(int stage, int microbatch) const { return weight_grad_[at(stage, microbatch)]; }

 private:
  std::size_t at(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * order_->microbatches + microbatch;
  }
  void place(std::vector<std::int32_t>& table, int stage, int microbatch, int id);
  void check_shape() const;
  void check_complete() const;
  void check_stage(int stage, int microbatch) const;

  const Order* order_;
  std::vector<std::int32_t> rank_, first_;
  std::vector<std::int32_t> forward_, backward_, weight_grad_;
};

}  // namespace shardplan
