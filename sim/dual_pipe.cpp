#include "sim/dual_pipe.hpp"

#include <cstddef>

#include "sim/placement.hpp"

namespace shardplan {
namespace {

class Steps {
 public:
  Steps(std::vector<Pass>& list, const DualPipeRank& rank) : list_(list), rank_(rank) {}

  Pass next_forward(int phase) {
    return forward_pass(rank_.stage[phase], rank_.first_microbatch[phase] + forwards_[phase]++);
  }
  Pass next_backward(int phase) {
    return backward_pass(rank_.stage[phase], rank_.first_microbatch[phase] + backwards_[phase]++);
  }

  void forward(int phase) { list_.push_back(next_forward(phase)); }
  void backward(int phase) { list_.push_back(next_backward(phase)); }
  void input_grad(int phase) {
    const Pass whole = next_backward(phase);
    list_.push_back(input_grad_pass(whole.stage, whole.microbatch));
    queue_.push_back(weight_grad_pass(whole.stage, whole.microbatch));
  }
  void weight_grad() { list_.push_back(queue_[taken_++]); }
  void pair(int forward_phase) {
    const Pass forward = next_forward(forward_phase);
    list_.push_back(overlapped_pass(forward, next_backward(1 - forward_phase)));
  }

 private:
  std::vector<Pass>& list_;
  const DualPipeRank& rank_;
  std::array<int, 2> forwards_{}, backwards_{};
  std::vector<Pass> queue_;  // weight gradients, first in first out
  std::size_t taken_ = 0;
};

}  // namespace

void dual_pipe_rank(std::vector<Pass>& list, const DualPipeRank& rank) {
  const int half = rank.half, depth = rank.depth;
  const int inner = half - depth - 1;
  Steps steps(list, rank);
  for (int i = 0; i < 2 * inner; ++i) steps.forward(0);
  for (int i = 0; i < depth + 1; ++i) {
    steps.forward(0);
    steps.forward(1);
  }
  for (int i = 0; i < inner; ++i) {
    steps.input_grad(1);
    steps.weight_grad();
    steps.forward(1);
  }
  for (int i = 0; i < rank.microbatches - 2 * half + depth + 1; ++i) {
    if (i == 0 && inner == 0) {
      steps.forward(0);
      steps.backward(1);
    } else {
      steps.pair(0);
    }
    steps.pair(1);
  }
  for (int i = 0; i < inner; ++i) {
    steps.backward(1);
    steps.pair(1);
  }
  // Step 6: from turn (h+1)/2 on gradients are split; with even depth the turn's first backward is still a whole one.
  bool split = false;
  for (int i = 0; i < depth + 1; ++i) {
    const bool turn = i == (depth + 1) / 2;
    if (turn && depth % 2 == 1) split = true;
    split ? steps.input_grad(1) : steps.backward(1);
    if (turn && depth % 2 == 0) split = true;
    split ? steps.input_grad(0) : steps.backward(0);
  }
  for (int i = 0; i < inner; ++i) {
    steps.weight_grad();
    steps.input_grad(0);
  }
  for (int i = 0; i < depth + 1; ++i) steps.weight_grad();
}

}  // namespace shardplan
