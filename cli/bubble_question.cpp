#include "cli/bubble_question.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/pieces.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "sim/pytorch_csv.hpp"

namespace shardplan {
namespace {

int count_of(const std::string& text, const char* option, int least) {
  const std::int64_t n = parse_count(text, option);
  if (n < least || n > 1'000'000) {
    throw InputError(option, "out of range: " + text + " is not between " + std::to_string(least) + " and 1000000");
  }
  return static_cast<int>(n);
}

double not_negative(const std::string& text, const char* option) {
  const double value = parse_number(text, option);
  if (value < 0) throw InputError(option, "must not be negative: " + text);
  return value;
}

std::vector<double> factors_of(const std::string& text, const char* option) {
  std::vector<double> out;
  for (const std::string_view piece : pieces_of(text, ',')) out.push_back(not_negative(std::string(piece), option));
  return out;
}
void read_times(const BubbleOptions& o, BubbleQuestion& q) {
  ScheduleQuestion& s = q.schedule;
  s.forward = parse_seconds(o.forward, "--forward");
  s.input_grad = parse_seconds(o.input_grad, "--input-grad");
  s.weight_grad = parse_seconds(o.weight_grad, "--weight-grad");
  s.p2p = parse_seconds(o.p2p, "--p2p");
  if (!o.overlapped.empty()) q.overlapped = parse_seconds(o.overlapped, "--overlapped");
  if (!o.stage_scale.empty()) s.stage_scale = factors_of(o.stage_scale, "--stage-scale");
  q.replay.p2p = o.p2p_mode == "async" ? P2pMode::async : P2pMode::rendezvous;
  q.replay.stream_per_peer = o.streams == "per-peer";
  q.replay.keep_pass_times = true;
  if (!o.chunk_bytes.empty()) q.chunk_bytes = parse_bytes(o.chunk_bytes, "--chunk-bytes");
  q.optimizer.sync = o.optimizer == "barrier" ? OptimizerSync::barrier : OptimizerSync::post_validation;
  q.optimizer.optimizer_seconds = parse_seconds(o.optimizer_time, "--optimizer-time");
  q.optimizer.norm_seconds = parse_seconds(o.norm_time, "--norm-time");
  q.optimizer.rollback_share = not_negative(o.rollback_share, "--rollback-share");
  if (q.optimizer.rollback_share > 1) throw InputError("--rollback-share", "a share is at most 1");
}

}  // namespace

BubbleQuestion bubble_question(const BubbleOptions& o) {
  BubbleQuestion q;
  read_times(o, q);
  ScheduleQuestion& s = q.schedule;
  s.weight_grad_memory = not_negative(o.weight_grad_memory, "--weight-grad-memory");
  if (!o.order_file.empty()) {
    if (!o.schedule.empty()) throw InputError("--order", "stands beside --schedule: give one of them");
    q.name = "custom order";
    return q;
  }
  if (o.schedule.empty()) throw InputError("--schedule", "give a schedule, or --order FILE");
  if (o.stages.empty()) throw InputError("--stages", "is required");
  if (o.microbatches.empty()) throw InputError("--microbatches", "is required");
  q.row = &find_schedule(o.schedule);
  q.name = q.row->name;
  s.ranks = count_of(o.stages, "--stages", 1);
  s.microbatches = count_of(o.microbatches, "--microbatches", 1);
  s.chunks = o.chunks.empty() ? q.row->default_chunks : count_of(o.chunks, "--chunks", 1);
  s.group = o.group.empty() ? 0 : count_of(o.group, "--group", 1);
  s.short_warmup = o.warmup == "short";
  s.overlap_pairs = o.overlap_pairs;
  if (s.overlap_pairs && q.name != "1f1b" && q.name != "interleaved-1f1b") {
    throw InputError("--overlap-pairs", "is a word of 1f1b and interleaved-1f1b, not of " + q.name);
  }
  if (!o.memory_limit.empty()) {
    s.memory_limit = not_negative(o.memory_limit, "--memory-limit");
    if (s.memory_limit <= 0) throw InputError("--memory-limit", "must be positive");
  }
  s.search = o.search == "full";
  return q;
}

namespace {

PassTimes times_of(const BubbleQuestion& q, const Order& order) {
  const std::size_t stages = order.rank_of_stage.size();
  const std::vector<double>& given = q.schedule.stage_scale;
  if (!given.empty() && given.size() != stages) {
    throw InputError("--stage-scale", std::to_string(given.size()) + " factors for " + std::to_string(stages) +
                                          (order.stages() > order.ranks ? " virtual stages" : " stages"));
  }
  PassTimes times;
  for (std::size_t s = 0; s < stages; ++s) {
    const double scale = given.empty() ? 1 : given[s];
    times.forward.push_back(q.schedule.forward * scale);
    times.input_grad.push_back(q.schedule.input_grad * scale);
    times.weight_grad.push_back(q.schedule.weight_grad * scale);
    if (q.overlapped >= 0) times.overlapped.push_back(q.overlapped * scale);
  }
  times.hop_forward.assign(stages, q.schedule.p2p);
  times.hop_backward.assign(stages, q.schedule.p2p);
  return times;
}
void check_framework(const BubbleQuestion& q, const std::string& framework, const std::vector<ScheduleNote>& notes) {
  if (framework.empty()) return;
  const auto names = framework_names();
  if (std::find(names.begin(), names.end(), framework) == names.end()) {
    std::vector<std::string> known(names.begin(), names.end());
    throw InputError("--for", "unknown framework \"" + framework + "\"" + did_you_mean_or_list(framework, known));
  }
  for (const ScheduleNote& note : notes) {
    if (note.framework == framework && note.refuses)
      throw InputError("--for", framework + " " + note.note + " (" + q.name + ")");
  }
}

Order order_of(const BubbleQuestion& q, const BubbleOptions& o, std::optional<ZbAnswer>& search) {
  if (q.row == nullptr) {
    Order order = parse_pytorch_csv(read_text_file(o.order_file), o.order_file);
    const auto differs = [](const std::string& text, const char* option, int here) {
      if (!text.empty() && count_of(text, option, 1) != here) {
        throw InputError(option, "the file has " + std::to_string(here) + ", not " + text);
      }
    };
    differs(o.stages, "--stages", order.ranks);
    differs(o.microbatches, "--microbatches", order.microbatches);
    return order;
  }
  if (const auto refusal = q.row->refuse(q.schedule)) throw InputError(q.name, *refusal);
  if (q.name != "zb-auto") return q.row->order(q.schedule);
  ZbQuestion question = zb_question(q.schedule);
  if (q.optimizer.sync == OptimizerSync::post_validation) question.objective = ZbObjective::window;
  search = zb_auto(question);
  return search->order;
}

}  // namespace

BubbleAnswer bubble_answer(const BubbleQuestion& q, const BubbleOptions& o) {
  BubbleAnswer a;
  if (q.row != nullptr) a.notes = schedule_notes(q.name, q.schedule);
  check_framework(q, o.framework, a.notes);
  try {
    a.order = order_of(q, o, a.search);
    a.replay = replay(a.order, times_of(q, a.order), q.replay);
  } catch (const InputError& e) {
    // What is wrong with an order that was read is wrong with its file.
    if (!o.order_file.empty() && e.where() == "schedule") throw InputError(o.order_file, e.what());
    throw;
  }
  const bool even = q.schedule.stage_scale.empty() && q.replay.p2p == P2pMode::async;
  if (q.row != nullptr && even) a.form = closed_form(q.name, q.schedule, q.overlapped);
  if (a.form) a.form_holds = std::abs(a.form->of(a.replay) - a.form->value) <= 1e-9 * a.form->value;
  if (q.chunk_bytes > 0) {
    const std::vector<double> chunk(a.order.stages(), q.chunk_bytes);
    const std::vector<double> weight(a.order.stages(), q.chunk_bytes * q.schedule.weight_grad_memory);
    a.bytes = in_flight_bytes(a.order, chunk, weight);
  }
  a.step = step_time(a.replay, q.optimizer);
  return a;
}
}  // namespace shardplan
