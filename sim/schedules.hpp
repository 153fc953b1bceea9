#pragma once
// Every pipeline schedule as one row: name, source, legality, order. Tests and the search loop over the table.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

/// What a schedule needs to know. Times matter only to schedules that are searched or built from them (zb-auto).
struct ScheduleQuestion {
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;              // virtual stages a rank
  bool overlap_pairs = false;  // 1f1b, interleaved-1f1b: steady forward and backward as pairs, one more warm-up forward
  bool short_warmup = false;   // interleaved-1f1b: warm-up of (p-1-r) instead of 2 (p-1-r) beyond the first chunks
  int group = 0;               // interleaved schedules: consecutive micro-batches a chunk; 0 = the schedule's default
  double forward = 1, input_grad = 1, weight_grad = 1, p2p = 0;
  std::vector<double> stage_scale;  // zb-auto: factors on the times of single virtual stages; empty = 1
  double memory_limit = 0;          // zb-auto: in activations of one chunk until its input gradient; 0 = none
  double weight_grad_memory = 1;    // zb-auto: M_W / M_B
  bool search = true;               // zb-auto: improve the published heuristic
};

/// Which slices of the model's depth a pipeline rank holds: loop = every p-th; v_shape = r and 2 p - 1 - r;
/// bidirectional = r and p - 1 - r, so that every slice is held twice.
enum class Placement { loop, v_shape, bidirectional };

struct ScheduleRow {
  std::string_view name;
  std::string_view source;
  Placement placement;
  int default_chunks;    // 1, or 2 for those that need them
  bool fixed_chunks;     // V-shaped and bidirectional: always default_chunks
  bool splits_backward;  // uses input_grad and weight_grad passes
  /// Why it cannot run, or nothing.
  std::optional<std::string> (*refuse)(const ScheduleQuestion&);
  Order (*order)(const ScheduleQuestion&);
};

std::span<const ScheduleRow> schedules();
/// Null where no schedule has that name.
const ScheduleRow* schedule_named(std::string_view name);
/// InputError with "did you mean" where the name is unknown.
const ScheduleRow& find_schedule(std::string_view name);

}  // namespace shardplan
