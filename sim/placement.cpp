#include "sim/placement.hpp"

namespace shardplan {
namespace {

void add_stage(Order& order, int rank, int slot) {
  order.rank_of_stage.push_back(rank);
  order.layer_slot.push_back(slot);
}

/// Links stages first .. last - 1 into one chain.
void link(Order& order, int first, int last) {
  for (int s = first; s < last; ++s) {
    order.previous.push_back(s > first ? s - 1 : -1);
    order.next.push_back(s + 1 < last ? s + 1 : -1);
  }
}

Order empty_order(int ranks, int microbatches) {
  Order order;
  order.ranks = ranks;
  order.microbatches = microbatches;
  order.passes.resize(ranks);
  return order;
}

}  // namespace

Order loop_placement(int ranks, int microbatches, int chunks) {
  Order order = empty_order(ranks, microbatches);
  for (int s = 0; s < ranks * chunks; ++s) add_stage(order, s % ranks, s);
  link(order, 0, order.stages());
  return order;
}

Order v_placement(int ranks, int microbatches) {
  Order order = empty_order(ranks, microbatches);
  for (int s = 0; s < 2 * ranks; ++s) add_stage(order, s < ranks ? s : 2 * ranks - 1 - s, s);
  link(order, 0, order.stages());
  return order;
}

Order bidirectional_placement(int ranks, int microbatches) {
  Order order = empty_order(ranks, microbatches);
  order.parameter_copies = 2;
  for (int s = 0; s < ranks; ++s) add_stage(order, s, s);
  for (int s = 0; s < ranks; ++s) add_stage(order, ranks - 1 - s, s);
  link(order, 0, ranks);
  link(order, ranks, 2 * ranks);
  return order;
}

}  // namespace shardplan
