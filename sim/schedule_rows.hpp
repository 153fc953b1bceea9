#pragma once
// The functions behind the rows of schedules.cpp, one file each: sim/schedule_<name>.cpp.
#include <optional>
#include <string>

#include "sim/schedules.hpp"

namespace shardplan {

using Refusal = std::optional<std::string>;

/// What no schedule can run: no ranks or micro-batches, chunks that are not `chunks` (0 = any), a size that does not
/// fit in memory.
Refusal refuse_size(const ScheduleQuestion&, int chunks);

Refusal refuse_one_chunk(const ScheduleQuestion&);
Refusal refuse_two_chunks(const ScheduleQuestion&);

Order gpipe_order(const ScheduleQuestion&);
Order one_f_one_b_order(const ScheduleQuestion&);
Refusal refuse_interleaved(const ScheduleQuestion&);
Order interleaved_order(const ScheduleQuestion&);

}  // namespace shardplan
