// 1F1B-V: two chunks a rank, down and back up, with a whole backward (two slots). One building block of six slots
// repeats; then every pass, in the order of slots, is pulled to the earliest free slot that obeys its inputs, a forward
// pass only as far as no peak grows. Peaks are 0.69-0.75 of 1F1B's.
#include <algorithm>
#include <array>
#include <vector>

#include "sim/placement.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {
namespace {

constexpr int kInterval = 6;
// Kinds of slot: F of chunk 0, F of chunk 1, first half of B of chunk 1 and of chunk 0, second halves.
constexpr int kForward0 = 0, kForward1 = 1, kBackward1 = 2, kBackward0 = 3, kSecond1 = 4, kSecond0 = 5, kKinds = 6;
constexpr int kFree = -1;

bool is_forward(int kind) { return kind == kForward0 || kind == kForward1; }
bool is_first_half(int kind) { return kind == kBackward1 || kind == kBackward0; }
bool is_second_half(int kind) { return kind == kSecond1 || kind == kSecond0; }

/// By kind and rank: the slot of the first micro-batch.
std::array<std::vector<int>, kKinds> block_of(int p) {
  std::array<std::vector<int>, kKinds> block;
  for (auto& slots : block) slots.resize(p);
  int slot = kInterval;  // room before the first pass, into which the warm-up is pulled
  for (int r = 0; r < p; ++r) block[kForward0][r] = ++slot;
  for (int r = p - 1; r >= 0; --r) block[kForward1][r] = ++slot;
  slot += p % 3 == 0 ? 4 : 1;
  int cycle = (3 - (p + 2) % 3) % 3;
  const auto backward = [&](int first, int second, int r) {
    block[first][r] = slot;
    block[second][r] = slot + 1;
    slot += 2;
    if (++cycle == 3) {
      cycle = 0;
      slot += 3;
    }
  };
  for (int r = 0; r < p; ++r) backward(kBackward1, kSecond1, r);
  for (int r = p - 1; r >= 0; --r) backward(kBackward0, kSecond0, r);
  return block;
}

class Rows {
 public:
  Rows(int p, int m) : p_(p), m_(m) {
    const auto block = block_of(p);
    int length = 0;
    for (const auto& slots : block) length = std::max(length, *std::max_element(slots.begin(), slots.end()));
    length += kInterval * m + 2;
    taken_.assign(p, std::vector<int>(length, kFree));
    for (int kind = 0; kind < kKinds; ++kind) {
      slot_[kind].assign(p, std::vector<int>(m));
      for (int r = 0; r < p; ++r) {
        for (int k = 0; k < m; ++k) {
          slot_[kind][r][k] = block[kind][r] + kInterval * k;
          taken_[r][slot_[kind][r][k]] = kind;
        }
      }
    }
    count_flying();
  }

  void pull_forward() {
    std::vector<std::array<int, kKinds>> seen(p_, std::array<int, kKinds>{});
    const int length = static_cast<int>(taken_[0].size());
    for (int i = 0; i < length; ++i) {
      for (int r = 0; r < p_; ++r) {
        const int kind = taken_[r][i];
        if (kind != kFree) pull(r, kind, seen[r][kind]++, i);
      }
    }
  }

  Order order() const {
    Order out = v_placement(p_, m_);
    for (int r = 0; r < p_; ++r) {
      std::array<int, kKinds> seen{};
      for (const int kind : taken_[r]) {
        if (kind == kFree) continue;
        const int k = seen[kind]++;
        if (kind == kForward0) out.passes[r].push_back(forward_pass(r, k));
        if (kind == kForward1) out.passes[r].push_back(forward_pass(2 * p_ - 1 - r, k));
        if (kind == kBackward1) out.passes[r].push_back(backward_pass(2 * p_ - 1 - r, k));
        if (kind == kBackward0) out.passes[r].push_back(backward_pass(r, k));
      }
    }
    return out;
  }

 private:
  void count_flying() {
    for (int r = 0; r < p_; ++r) {
      int now = 0;
      flying_.emplace_back();
      for (const int kind : taken_[r]) {
        now += is_forward(kind) ? 1 : is_second_half(kind) ? -1 : 0;
        flying_[r].push_back(now);
        peak_ = std::max(peak_, now);
      }
    }
  }

  /// The last slot of what a pass waits for.
  int waits_until(int r, int kind, int k) const {
    const int at = k > 0 ? slot_[kind][r][k - 1] : -1;
    const auto slot = [&](int of_kind, int of_rank) { return std::max(at, slot_[of_kind][of_rank][k]); };
    switch (kind) {
      case kForward0:
        return r > 0 ? slot(kForward0, r - 1) : at;
      case kForward1:
        return r + 1 < p_ ? slot(kForward1, r + 1) : slot(kForward0, r);
      case kBackward1:
        return r > 0 ? slot(kSecond1, r - 1) : slot(kForward1, r);
      case kBackward0:
        return r + 1 < p_ ? slot(kSecond0, r + 1) : slot(kSecond1, r);
      case kSecond1:
        return slot(kBackward1, r);
      default:
        return slot(kBackward0, r);
    }
  }

  void pull(int r, int kind, int k, int from) {
    auto& row = taken_[r];
    int to = waits_until(r, kind, k) + 1;
    while (to < from && row[to] != kFree) ++to;
    if (is_first_half(kind)) {
      while (to < from && (row[to] != kFree || row[to + 1] != kFree)) ++to;
    }
    if (is_forward(kind) && to < from) {
      int place = from;
      while (place > to && flying_[r][place - 1] < peak_) --place;
      while (place < from && row[place] != kFree) ++place;
      to = place;
    }
    if (to == from) return;
    row[from] = kFree;
    row[to] = kind;
    slot_[kind][r][k] = to;
    const int change = is_forward(kind) ? 1 : is_second_half(kind) ? -1 : 0;
    for (int i = to; i < from; ++i) flying_[r][i] += change;
  }

  int p_, m_, peak_ = 0;
  std::vector<std::vector<int>> taken_;                     // by rank and slot
  std::vector<std::vector<int>> flying_;                    // chunks in flight after the slot
  std::array<std::vector<std::vector<int>>, kKinds> slot_;  // by kind, rank and micro-batch
};

}  // namespace

Order one_f_one_b_v_order(const ScheduleQuestion& q) {
  Rows rows(q.ranks, q.microbatches);
  rows.pull_forward();
  return rows.order();
}

}  // namespace shardplan
