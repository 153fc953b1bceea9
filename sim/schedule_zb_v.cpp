// ZB-V: two chunks a rank, down and back up (Zero Bubble paper, figure 8). Rank r: 2 (p-r) - 1 forwards of chunk 0; r
// times a forward of chunk 1 and one of chunk 0; p - r times F, I, W of chunk 1; then I, W of chunk 0 and F, I, W of
// chunk 1 in turn; at the end input gradients first. Peak 2 p chunks = p micro-batches on every rank. The order is that
// of max(m, 2 p - 1) micro-batches with the surplus left out.
#include <algorithm>

#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {
namespace {

/// One rank's list. Chunks run micro-batches in order, so a counter a kind and chunk says which is next.
class ZbvRank {
 public:
  ZbvRank(Order& order, int rank)
      : list_(order.passes[rank]), kept_(order.microbatches), down_(rank), up_(2 * order.ranks - 1 - rank) {}

  void forward(int chunk) { add(forward_pass(stage(chunk), forwards_[chunk]++)); }
  void input_grad(int chunk) { add(input_grad_pass(stage(chunk), inputs_[chunk]++)); }
  void weight_grad(int chunk) { add(weight_grad_pass(stage(chunk), weights_[chunk]++)); }
  int forwards(int chunk) const { return forwards_[chunk]; }
  bool owes_weight(int chunk) const { return weights_[chunk] < inputs_[chunk]; }

 private:
  int stage(int chunk) const { return chunk == 0 ? down_ : up_; }
  void add(const Pass& pass) {
    if (pass.microbatch < kept_) list_.push_back(pass);
  }

  std::vector<Pass>& list_;
  int kept_, down_, up_;
  int forwards_[2] = {0, 0}, inputs_[2] = {0, 0}, weights_[2] = {0, 0};
};

}  // namespace

Order zb_v_order(const ScheduleQuestion& q) {
  const int p = q.ranks;
  const int count = std::max(q.microbatches, 2 * p - 1);
  Order order = v_placement(p, q.microbatches);
  for (int r = 0; r < p; ++r) {
    ZbvRank rank(order, r);
    for (int i = 0; i < 2 * (p - r) - 1; ++i) rank.forward(0);
    for (int i = 0; i < r; ++i) {
      rank.forward(1);
      rank.forward(0);
    }
    const auto whole_up = [&] {
      rank.forward(1);
      rank.input_grad(1);
      rank.weight_grad(1);
    };
    for (int i = 0; i < p - r; ++i) whole_up();
    while (rank.forwards(1) < rank.forwards(0) || rank.forwards(0) < count) {
      if (rank.forwards(0) < count) rank.forward(0);
      rank.input_grad(0);
      rank.weight_grad(0);
      whole_up();
    }
    for (int i = 0; i < r; ++i) {
      rank.input_grad(0);
      rank.input_grad(1);
    }
    for (int i = 0; i < p - r; ++i) {
      rank.input_grad(0);
      rank.weight_grad(0);
    }
    while (rank.owes_weight(1)) rank.weight_grad(1);
    while (rank.owes_weight(0)) rank.weight_grad(0);
  }
  return order;
}

}  // namespace shardplan
