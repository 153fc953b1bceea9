#pragma once
// What the tests of the executor share: setups, orders, and the time that a tier may take.
#include <chrono>

#include "hardware/measure/executor.hpp"
#include "sim/schedules.hpp"
#include "tests/sanitized.hpp"

inline shardplan::Order measured_order(const char* schedule, int ranks, int microbatches) {
  const shardplan::ScheduleRow& row = shardplan::find_schedule(schedule);
  shardplan::ScheduleQuestion q;
  q.ranks = ranks;
  q.microbatches = microbatches;
  q.chunks = row.default_chunks;
  return row.order(q);
}

/// Wall seconds that a tier may take, so that all of them end in three minutes on a machine where every hand-over
/// between ranks waits behind other tasks. Gates stay what they are: rounds become fewer, the least number stays.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds) : end_(Clock::now() + std::chrono::duration<double>(seconds)) {}
  double left() const { return std::chrono::duration<double>(end_ - Clock::now()).count(); }
  bool over() const { return left() <= 0; }

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::time_point<Clock, std::chrono::duration<double>> end_;
};
