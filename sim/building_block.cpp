// One rank is a row of slots. Four kinds of pass have fixed slots (the block, every six slots); a weight gradient takes
// any slot that is left over. Three steps, all at equal times and free hops:
//   1. with weight gradients first-fit in the gaps, pull passes of warm-up and drain to the earliest free slot that
//   obeys
//      the dependencies and raises no rank's peak above the highest peak of the block, then close all gaps (squeeze);
//   2. forget where the weight gradients stood, pull the drain forward once more, put them first-fit again, squeeze;
//   3. put the weight gradients first-fit once more, those of chunk 1 before those of chunk 0, and read off the order.
#include "sim/building_block.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "sim/placement.hpp"

namespace shardplan {
namespace {

constexpr int kInterval = 6;  // slots a micro-batch: F, I and W of two chunks
constexpr int kForward0 = 0, kForward1 = 1, kInput1 = 2, kInput0 = 3, kWeight = 4;
constexpr bool is_input(int kind) { return kind == kInput1 || kind == kInput0; }
/// Kinds whose messages run from rank 0 to rank p - 1; the others run back.
constexpr bool runs_down(int kind) { return kind == kForward0 || kind == kInput1; }
constexpr int kNoSlot = std::numeric_limits<int>::max();

/// Slots by kind, each ascending. Kinds 0-3 have one entry a micro-batch; kinds from 4 on are weight gradients.
using Row = std::vector<std::vector<int>>;

int last_slot(const Row& row) {
  int last = 0;
  for (const auto& slots : row) last = slots.empty() ? last : std::max(last, slots.back());
  return last;
}

/// Calls `visit(slot, kind)` for every slot up to the last one taken, kind -1 = free.
template <class Visit>
void walk(const Row& row, Visit visit) {
  std::vector<std::size_t> next(row.size(), 0);
  const int last = last_slot(row);
  for (int slot = 0; slot <= last; ++slot) {
    int kind = -1;
    for (std::size_t k = 0; k < row.size() && kind < 0; ++k) {
      if (next[k] < row[k].size() && row[k][next[k]] == slot) kind = static_cast<int>(k);
    }
    if (kind >= 0) ++next[kind];
    visit(slot, kind);
  }
}

/// Adds the weight gradients, each in the first free slot after its input gradient; one list, or one a chunk.
void put_weights(Row& row, bool by_chunk) {
  const int last = last_slot(row);
  std::vector<std::vector<int>> weights(by_chunk ? 2 : 1);
  std::array<int, 2> owed{};
  walk(row, [&](int slot, int kind) {
    if (is_input(kind)) ++owed[by_chunk ? kind - kInput1 : 0];
    if (kind >= 0) return;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      if (owed[w] == 0) continue;
      weights[w].push_back(slot);
      --owed[w];
      break;
    }
  });
  int slot = last;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    while (owed[w]-- > 0) weights[w].push_back(++slot);
  }
  for (auto& list : weights) row.push_back(std::move(list));
}

/// Most chunks in flight, counted until the weight gradient; where those have no slots yet, any free slot runs one.
int peak_of(const Row& row) {
  int flying = 0, peak = 0, owed = 0;
  walk(row, [&](int, int kind) {
    if (kind == kForward0 || kind == kForward1) ++flying;
    if (kind >= kWeight) --flying;
    if (is_input(kind)) ++owed;
    if (kind < 0 && row.size() == 4 && owed > 0) {
      --flying;
      --owed;
    }
    peak = std::max(peak, flying);
  });
  return peak;
}

struct Element {
  int slot, rank, kind, index;
  auto key() const { return std::tie(slot, rank, kind, index); }
};

std::vector<Element> elements_of(const std::vector<Row>& rows) {
  std::vector<Element> all;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t k = 0; k < rows[r].size(); ++k) {
      for (std::size_t i = 0; i < rows[r][k].size(); ++i) {
        all.push_back({rows[r][k][i], static_cast<int>(r), static_cast<int>(k), static_cast<int>(i)});
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const Element& a, const Element& b) { return a.key() < b.key(); });
  return all;
}

/// The last slot of what this pass waits for; -1 = nothing.
int waits_until(const std::vector<Row>& rows, const Element& e) {
  int slot = -1;
  const Row& row = rows[e.rank];
  if (e.kind < kWeight) {
    const int from = runs_down(e.kind) ? e.rank - 1 : e.rank + 1;
    if (from >= 0 && from < static_cast<int>(rows.size())) slot = std::max(slot, rows[from][e.kind][e.index]);
    if (e.kind > 0) slot = std::max(slot, row[e.kind - 1][e.index]);
  }
  if (e.index > 0) slot = std::max(slot, row[e.kind][e.index - 1]);
  return slot;
}

/// The n-th input gradient of a rank, of whichever chunk.
int input_slot(const Row& row, int n) {
  std::vector<int> both;
  std::merge(row[kInput1].begin(), row[kInput1].end(), row[kInput0].begin(), row[kInput0].end(),
             std::back_inserter(both));
  return both[n];
}

/// Every pass as early as its place in the rank's sequence and its inputs allow, one slot each.
void squeeze(std::vector<Row>& rows) {
  std::vector<Row> squeezed = rows;
  std::vector<int> busy_until(rows.size(), -1);
  for (const Element& e : elements_of(rows)) {
    const int slot = std::max(waits_until(squeezed, e), busy_until[e.rank]) + 1;
    squeezed[e.rank][e.kind][e.index] = slot;
    busy_until[e.rank] = slot;
  }
  rows = std::move(squeezed);
}

/// Pulls passes forward. Warm-up ends at rank 0's first I of chunk 0, the drain begins after the last F of chunk 0; in
/// between the block stays as it is, and so does the warm-up unless `warm_up`.
void pull_forward(std::vector<Row>& rows, bool warm_up) {
  int most = 0;
  for (const Row& row : rows) most = std::max(most, peak_of(row));
  std::vector<std::vector<char>> taken;
  for (const Row& row : rows) taken.emplace_back(last_slot(row) + 1, 0);
  const int last_microbatch = static_cast<int>(rows[0][kForward0].size()) - 1;
  enum class Phase { warm_up, steady, drain } phase = Phase::warm_up;
  for (const Element& e : elements_of(rows)) {
    int& slot = rows[e.rank][e.kind][e.index];
    if (phase == Phase::warm_up && e.kind == kInput0 && e.rank == 0) phase = Phase::steady;
    bool moves = phase == Phase::drain || (phase == Phase::warm_up && warm_up);
    if (phase == Phase::steady && e.kind == kForward0 && e.index == last_microbatch) phase = Phase::drain;
    if (moves) {
      int first = waits_until(rows, e);
      if (e.kind == kWeight) first = std::max(first, input_slot(rows[e.rank], e.index));
      slot = kNoSlot;
      for (int to = first + 1; to < e.slot && slot == kNoSlot; ++to) {
        if (taken[e.rank][to]) continue;
        slot = to;
        if (peak_of(rows[e.rank]) > most) slot = kNoSlot;
      }
      if (slot == kNoSlot) slot = e.slot;
    }
    taken[e.rank][slot] = 1;
  }
}

void drop_weights(std::vector<Row>& rows) {
  for (Row& row : rows) row.resize(4);
}

}  // namespace

Order building_block_order(const BuildingBlock& block, int microbatches) {
  const int p = static_cast<int>(block.size());
  std::vector<Row> rows(p, Row(4));
  for (int r = 0; r < p; ++r) {
    for (int kind = 0; kind < 4; ++kind) {
      for (int k = 0; k < microbatches; ++k) rows[r][kind].push_back(block[r][kind] + kInterval * k);
    }
  }
  for (Row& row : rows) put_weights(row, false);
  pull_forward(rows, true);
  squeeze(rows);
  drop_weights(rows);
  pull_forward(rows, false);
  for (Row& row : rows) put_weights(row, false);
  squeeze(rows);
  drop_weights(rows);
  for (Row& row : rows) put_weights(row, true);

  Order order = v_placement(p, microbatches);
  for (const Element& e : elements_of(rows)) {
    const int down = e.rank, up = 2 * p - 1 - e.rank;
    switch (e.kind) {
      case kForward0:
        order.passes[e.rank].push_back(forward_pass(down, e.index));
        break;
      case kForward1:
        order.passes[e.rank].push_back(forward_pass(up, e.index));
        break;
      case kInput1:
        order.passes[e.rank].push_back(input_grad_pass(up, e.index));
        break;
      case kInput0:
        order.passes[e.rank].push_back(input_grad_pass(down, e.index));
        break;
      case kWeight:
        order.passes[e.rank].push_back(weight_grad_pass(up, e.index));
        break;
      default:
        order.passes[e.rank].push_back(weight_grad_pass(down, e.index));
        break;
    }
  }
  return order;
}

}  // namespace shardplan
