#pragma once
// What a schedule takes by formula, where a formula holds: even stages, asynchronous messages, one latency for all
// hops.
#include <optional>
#include <string>
#include <string_view>

#include "sim/replay.hpp"
#include "sim/schedules.hpp"

namespace shardplan {

enum class ClosedFormMetric { makespan, max_stage_window };

struct ClosedForm {
  std::string
      expression;     // in p, m, v, F, B (input gradient), W, FB (overlapped pair), c (latency); times are a chunk's
  std::string where;  // when it holds
  ClosedFormMetric metric = ClosedFormMetric::makespan;
  double value = 0;
  double of(const Replay& r) const { return metric == ClosedFormMetric::makespan ? r.makespan : r.max_stage_window; }
};

/// Nothing where no formula is known to hold. `overlapped` < 0: a pair takes F + B + W.
std::optional<ClosedForm> closed_form(std::string_view schedule, const ScheduleQuestion&, double overlapped = -1);

}  // namespace shardplan
