#include "sim/zero_bubble.hpp"

#include <algorithm>

#include "sim/placement.hpp"

namespace shardplan {

void zero_bubble_rank(Order& order, int rank, int warm_up, int lag) {
  auto& list = order.passes[rank];
  const int m = order.microbatches;
  int forwards = std::min(warm_up, m), weights = 0;
  for (int k = 0; k < forwards; ++k) list.push_back(forward_pass(rank, k));
  for (int k = 0; k < m; ++k) {
    list.push_back(input_grad_pass(rank, k));
    if (k >= lag) list.push_back(weight_grad_pass(rank, weights++));
    if (forwards < m) list.push_back(forward_pass(rank, forwards++));
  }
  while (weights < m) list.push_back(weight_grad_pass(rank, weights++));
}

}  // namespace shardplan
