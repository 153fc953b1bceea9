// Read in the frameworks' sources: Megatron-LM @d98e8a64 (schedules.py, arguments.py), PyTorch @00722e64
// (torch/distributed/pipelining/schedules.py), DeepSpeed @83fd8f87 (runtime/pipe/schedule.py), Sea AI Lab's
// zero-bubble-pipeline-parallelism @39f2c186, deepseek-ai/DualPipe @3da1bbe.
#include "sim/framework_notes.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace shardplan {
namespace {

using Note = std::string;  // "" = runs it

std::string n(int number) { return std::to_string(number); }

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Note no_such(std::string_view schedule) { return "refuses: has no schedule " + std::string(schedule); }

/// Megatron's interleave: groups of p <= g <= m, the last one not in (0, p).
Note megatron_interleaved(const ScheduleQuestion& q) {
  const int p = q.ranks, m = q.microbatches, group = q.group > 0 ? q.group : p;
  if (q.chunks < 2) return "refuses: interleaving needs at least 2 chunks a rank";
  if (p < 2) return "refuses: interleaving needs at least 2 stages";
  if (q.short_warmup) return "refuses: its warm-up is 2 (p-1-r) + (v-1) g chunks";
  if (group < p || group > m) {
    return "refuses: the group of " + n(group) + " is not in [PP=" + n(p) + ", M=" + n(m) + "]";
  }
  const int rest = m % group;
  if (rest != 0 && rest < p) {
    return "refuses: " + n(m) + " micro-batches leave a last group of " + n(rest) + ", fewer than the " + n(p) +
           " stages";
  }
  if (p == 2) return "needs overlap_p2p_comm (its default): with two stages both neighbours are the same rank";
  return "";
}

Note megatron(std::string_view schedule, const ScheduleQuestion& q) {
  if (schedule == "1f1b") {
    return q.overlap_pairs && q.ranks > 1
               ? "refuses: overlapped pairs need interleaving when there is more than one stage"
               : "";
  }
  if (schedule == "interleaved-1f1b") return megatron_interleaved(q);
  return no_such(schedule);
}

Note pytorch(std::string_view schedule, const ScheduleQuestion& q) {
  const int p = q.ranks, m = q.microbatches;
  if (q.overlap_pairs) return "refuses: does not pair the passes of " + std::string(schedule);
  if (schedule == "1f1b") {
    if (m < p) return "refuses: 1F1B needs at least as many micro-batches as stages";
    return "its schedule as CSV or picture (Schedule1F1B._get_pipeline_order) is off by one on the last rank; the run "
           "is right";
  }
  if (one_of(schedule, {"interleaved-1f1b", "interleaved-zb"})) {
    const int rounds = std::max(1, m / p), group = m / rounds;
    if (m % rounds != 0) return "refuses: " + n(m) + " micro-batches are no multiple of its " + n(rounds) + " rounds";
    if (q.group > 0 && q.group != group) return "refuses: takes groups of " + n(group) + ", not of " + n(q.group);
    if (q.short_warmup && schedule == "interleaved-1f1b") return "refuses: its warm-up is 2 (p-1-r) + (v-1) g chunks";
    return "";
  }
  if (one_of(schedule, {"gpipe", "looped-bfs", "zb-v", "dualpipe-v"})) return "";
  return no_such(schedule);
}

Note deepspeed(std::string_view schedule, const ScheduleQuestion&) {
  if (schedule == "1f1b") return "holds at least 2 buffers on every rank, the last one too";
  return schedule == "dualpipe-v" ? "" : no_such(schedule);
}

Note zero_bubble(std::string_view schedule, const ScheduleQuestion& q) {
  if (schedule == "interleaved-1f1b") return megatron_interleaved(q);
  return one_of(schedule, {"1f1b", "zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min", "1f1b-v"})
             ? ""
             : no_such(schedule);
}

Note deepseek(std::string_view schedule, const ScheduleQuestion&) {
  return one_of(schedule, {"dualpipe", "dualpipe-v"}) ? "" : no_such(schedule);
}

struct Row {
  std::string_view framework;
  Note (*note)(std::string_view schedule, const ScheduleQuestion&);
};

constexpr std::array kRows = {
    Row{"megatron", megatron},       Row{"pytorch", pytorch},   Row{"deepspeed", deepspeed},
    Row{"zero-bubble", zero_bubble}, Row{"deepseek", deepseek},
};

}  // namespace

std::vector<ScheduleNote> schedule_notes(std::string_view schedule, const ScheduleQuestion& q) {
  std::vector<ScheduleNote> notes;
  for (const Row& row : kRows) {
    Note note = row.note(schedule, q);
    if (note.empty()) continue;
    const bool refuses = note.rfind("refuses: ", 0) == 0;
    notes.push_back({std::string(row.framework), std::move(note), refuses});
  }
  return notes;
}

std::span<const std::string_view> framework_names() {
  static constexpr auto names = [] {
    std::array<std::string_view, kRows.size()> out{};
    for (std::size_t i = 0; i < kRows.size(); ++i) out[i] = kRows[i].framework;
    return out;
  }();
  return names;
}

}  // namespace shardplan
