#pragma once
// What `shardplan bubble` is asked, read and checked, and the replay that answers it.
#include <optional>
#include <string>
#include <vector>

#include "sim/closed_forms.hpp"
#include "sim/framework_notes.hpp"
#include "sim/in_flight.hpp"
#include "sim/optimizer_step.hpp"
#include "sim/order.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"
#include "sim/zb_auto.hpp"

namespace shardplan {

/// Everything as typed.
struct BubbleOptions {
  std::string schedule, order_file, stages, microbatches, chunks, group, framework;
  std::string forward = "1", input_grad = "1", weight_grad = "1", overlapped, p2p = "0", stage_scale;
  std::string p2p_mode = "async", streams = "per-peer", warmup = "full";
  std::string memory_limit, weight_grad_memory = "1", search = "full";
  std::string chunk_bytes, optimizer = "barrier", optimizer_time = "0", norm_time = "0", rollback_share = "0";
  std::string trace, write_order, order_format = "compute-only";
  bool overlap_pairs = false;
  std::string format = "text";
};
struct BubbleQuestion {
  std::string name;                  // of the schedule; "custom order" with --order
  const ScheduleRow* row = nullptr;  // none with --order
  ScheduleQuestion schedule;
  double overlapped = -1;  // < 0: the sum of its halves
  ReplayOptions replay;
  double chunk_bytes = 0;
  OptimizerStep optimizer;
};
/// InputError naming the option.
BubbleQuestion bubble_question(const BubbleOptions&);

struct BubbleAnswer {
  Order order;
  Replay replay;
  std::optional<ClosedForm> form;
  bool form_holds = false;
  std::vector<ScheduleNote> notes;
  std::optional<ZbAnswer> search;
  std::vector<RankInFlight> bytes;  // empty without --chunk-bytes
  StepTime step;
};
/// InputError where the schedule is not legal, or the framework asked for refuses it.
BubbleAnswer bubble_answer(const BubbleQuestion&, const BubbleOptions&);

}  // namespace shardplan
