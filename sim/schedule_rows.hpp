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
Order interleaved_free_order(const ScheduleQuestion&);
Refusal refuse_looped_bfs(const ScheduleQuestion&);
Order looped_bfs_order(const ScheduleQuestion&);
Order zb_h1_order(const ScheduleQuestion&);
Order zb_h2_order(const ScheduleQuestion&);
Refusal refuse_interleaved_zb(const ScheduleQuestion&);
Order interleaved_zb_order(const ScheduleQuestion&);
Order zb_v_order(const ScheduleQuestion&);
Order v_half_order(const ScheduleQuestion&);
Order v_min_order(const ScheduleQuestion&);
Order one_f_one_b_v_order(const ScheduleQuestion&);
Refusal refuse_dualpipe(const ScheduleQuestion&);
Order dualpipe_order(const ScheduleQuestion&);
Refusal refuse_dualpipe_v(const ScheduleQuestion&);
Order dualpipe_v_order(const ScheduleQuestion&);
Refusal refuse_chimera(const ScheduleQuestion&);
Order chimera_order(const ScheduleQuestion&);
Refusal refuse_zb_auto(const ScheduleQuestion&);
Order zb_auto_order(const ScheduleQuestion&);

}  // namespace shardplan
