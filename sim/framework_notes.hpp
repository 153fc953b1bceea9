#pragma once
// What frameworks say to a schedule that arithmetic allows.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/schedules.hpp"

namespace shardplan {

struct ScheduleNote {
  std::string framework;
  std::string note;  // "refuses: ..." or a remark
  bool refuses = false;
};

/// In the order of framework_names(); frameworks that run it without a remark are left out.
std::vector<ScheduleNote> schedule_notes(std::string_view schedule, const ScheduleQuestion&);
std::span<const std::string_view> framework_names();

}  // namespace shardplan
