#include "sim/pass_index.hpp"

#include "base/errors.hpp"
#include "sim/pass_text.hpp"

namespace shardplan {
namespace {

[[noreturn]] void fail(const std::string& what) { throw InputError("schedule", what); }

std::string name(int stage, char letter, int microbatch) {
  return std::to_string(stage) + letter + std::to_string(microbatch);
}

}  // namespace

PassIndex::PassIndex(const Order& order) : order_(&order) {
  check_shape();
  const std::size_t cells = static_cast<std::size_t>(order.stages()) * order.microbatches;
  forward_.assign(cells, -1);
  backward_.assign(cells, -1);
  weight_grad_.assign(cells, -1);
  for (int r = 0; r < order.ranks; ++r) {
    first_.push_back(static_cast<std::int32_t>(rank_.size()));
    for (const Pass& pass : order.passes[r]) {
      const int id = static_cast<int>(rank_.size());
      rank_.push_back(r);
      switch (pass.kind) {
        case PassKind::forward:
          place(forward_, pass.stage, pass.microbatch, id);
          break;
        case PassKind::weight_grad:
          place(weight_grad_, pass.stage, pass.microbatch, id);
          break;
        case PassKind::backward:
        case PassKind::input_grad:
          place(backward_, pass.stage, pass.microbatch, id);
          break;
        case PassKind::overlapped:
          place(forward_, pass.stage, pass.microbatch, id);
          place(backward_, pass.stage2, pass.microbatch2, id);
      }
    }
  }
  check_complete();
}

void PassIndex::check_shape() const {
  const Order& order = *order_;
  const std::size_t stages = order.rank_of_stage.size();
  if (order.ranks < 1 || order.microbatches < 1 || stages == 0) fail("an order needs ranks, micro-batches and stages");
  if (order.next.size() != stages || order.previous.size() != stages) fail("next and previous need one entry a stage");
  if (order.passes.size() != static_cast<std::size_t>(order.ranks)) fail("an order needs one list of passes a rank");
  for (std::size_t s = 0; s < stages; ++s) {
    if (order.rank_of_stage[s] < 0 || order.rank_of_stage[s] >= order.ranks) {
      fail("stage " + std::to_string(s) + " is on no rank");
    }
    const int next = order.next[s];
    if (next >= static_cast<int>(stages) || (next >= 0 && order.previous[next] != static_cast<int>(s))) {
      fail("stage " + std::to_string(s) + ": next and previous disagree");
    }
  }
}

void PassIndex::place(std::vector<std::int32_t>& table, int stage, int microbatch, int id) {
  const Pass& pass = this->pass(id);
  if (stage < 0 || stage >= order_->stages()) fail(pass_text(pass) + ": there is no such stage");
  if (microbatch < 0 || microbatch >= order_->microbatches) fail(pass_text(pass) + ": there is no such micro-batch");
  if (order_->rank_of_stage[stage] != rank(id)) {
    fail(pass_text(pass) + " stands on rank " + std::to_string(rank(id)) + ", but its stage is on rank " +
         std::to_string(order_->rank_of_stage[stage]));
  }
  std::int32_t& cell = table[at(stage, microbatch)];
  if (cell >= 0) fail(pass_text(pass) + " stands twice");
  cell = id;
}

/// A micro-batch runs through the whole chain that it enters, forward and backward.
void PassIndex::check_complete() const {
  for (int s = 0; s < order_->stages(); ++s) {
    for (int k = 0; k < order_->microbatches; ++k) {
      const int next = order_->next[s];
      if (next >= 0 && (forward(s, k) < 0) != (forward(next, k) < 0)) {
        const int missing = forward(s, k) < 0 ? s : next;
        fail("the pass " + name(missing, 'F', k) + " is missing");
      }
      check_stage(s, k);
    }
  }
  for (int k = 0; k < order_->microbatches; ++k) {
    bool runs = false;
    for (int s = 0; s < order_->stages() && !runs; ++s) runs = forward(s, k) >= 0;
    if (!runs) fail("micro-batch " + std::to_string(k) + " is missing");
  }
}

void PassIndex::check_stage(int s, int k) const {
  const int f = forward(s, k), b = backward(s, k), w = weight_grad(s, k);
  if (f < 0 && b < 0 && w < 0) return;
  if (f < 0) fail("the pass " + name(s, 'F', k) + " is missing");
  if (b < 0)
    fail("the backward pass of stage " + std::to_string(s) + ", micro-batch " + std::to_string(k) + " is missing");
  if (b <= f) fail(pass_text(pass(b)) + " stands before its forward pass");
  const bool split = pass(b).kind == PassKind::input_grad;
  if (split && w < 0) fail("the pass " + name(s, 'W', k) + " is missing");
  if (!split && w >= 0) fail(pass_text(pass(w)) + " stands beside a full backward pass");
  if (w >= 0 && w <= b) fail(pass_text(pass(w)) + " stands before its input gradient");
}

}  // namespace shardplan
