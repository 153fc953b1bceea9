#pragma once
// A long step without replaying all of it: its beginning, one period of its steady state, its end.
//
// The simple story: every pass ends at the largest of some earlier ends plus its own time, so a constant added to all
// earlier ends is added to it too (max-plus linearity: Baccelli et al. 1992, Synchronization and Linearity, chapter 3).
// Where an order repeats a block of passes on every rank, and the ends that later passes wait for are those of one
// period before plus the same constant on all ranks, every further period takes exactly that constant, and so does
// what comes after. Periods may then be left out of the replay and added to its times.
//
// What it omits: that a schedule's order for more micro-batches is the order for fewer with further periods at the cut
// is a fact of each schedule, not looked at here; a test holds every row of the table to it.
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/order.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

namespace shardplan {

/// Where an order repeats itself: further periods belong before position cut[r] of rank r's passes.
struct SteadyOrder {
  std::vector<std::int32_t> cut;     // by rank; the passes before all cuts wait for none after them
  std::vector<std::int32_t> passes;  // by rank: of one period, which are those just before the cut
  struct End {
    std::int32_t rank, position;
  };
  std::vector<End> ends;  // passes before the cut that a pass behind it waits for
};

/// Nothing where the order does not repeat itself every `period` micro-batches (GPipe never does).
std::optional<SteadyOrder> steady_order(const Order&, int period);

/// Seconds of a period, or nothing where the replay has not settled at the cut: some end differs from its forerunner by
/// another time (relative to the makespan by more than 1e-12). The replay has pass times.
std::optional<double> steady_seconds(const SteadyOrder&, const Replay&);

/// The replay with `periods` further periods at the cut. start and end keep the places of the short order, so passes
/// behind the cut are later by all of them; messages are left out.
Replay extended(const SteadyOrder&, const Replay&, double seconds, std::int64_t periods);

/// A step of fewer micro-batches from which the one asked for follows.
struct ShortStep {
  ScheduleQuestion question;  // with fewer micro-batches
  int period = 1;             // micro-batches
  std::int64_t periods = 0;   // left out; 0 = nothing is
};
/// The shortest such step worth a try, then, with `longer` = 1, 2, ..., ones four times as long. Steps below a quarter
/// of a million forward passes stay whole.
ShortStep short_step(const ScheduleQuestion&, int longer = 0);

}  // namespace shardplan
