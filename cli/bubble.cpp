// shardplan bubble: one pipeline schedule, replayed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"
#include "sim/closed_forms.hpp"
#include "sim/framework_notes.hpp"
#include "sim/in_flight.hpp"
#include "sim/optimizer_step.hpp"
#include "sim/pass_text.hpp"
#include "sim/pytorch_csv.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"
#include "sim/timeline.hpp"
#include "sim/trace.hpp"
#include "sim/zb_auto.hpp"

namespace shardplan {
namespace {

/// Everything as typed.
struct Options {
  std::string schedule, order_file, stages, microbatches, chunks, group, framework;
  std::string forward = "1", input_grad = "1", weight_grad = "1", overlapped, p2p = "0", stage_scale;
  std::string p2p_mode = "async", streams = "per-peer", warmup = "full";
  std::string memory_limit, weight_grad_memory = "1", search = "full";
  std::string chunk_bytes, optimizer = "barrier", optimizer_time = "0", norm_time = "0", rollback_share = "0";
  std::string trace, write_order, order_format = "compute-only";
  bool overlap_pairs = false;
  std::string format = "text";
};

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
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(not_negative(text.substr(at, comma - at), option));
    at = comma + 1;
  }
  return out;
}

struct Question {
  std::string name;                  // of the schedule; "custom order" with --order
  const ScheduleRow* row = nullptr;  // none with --order
  ScheduleQuestion schedule;
  double overlapped = -1;  // < 0: the sum of its halves
  ReplayOptions replay;
  double chunk_bytes = 0;
  OptimizerStep optimizer;
};

void read_times(const Options& o, Question& q) {
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

Question question_of(const Options& o) {
  Question q;
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

PassTimes times_of(const Question& q, const Order& order) {
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

struct Answer {
  Order order;
  Replay replay;
  std::optional<ClosedForm> form;
  bool form_holds = false;
  std::vector<ScheduleNote> notes;
  std::optional<ZbAnswer> search;
  std::vector<RankInFlight> bytes;  // empty without --chunk-bytes
  StepTime step;
};

void check_framework(const Question& q, const std::string& framework, const std::vector<ScheduleNote>& notes) {
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

Order order_of(const Question& q, const Options& o, std::optional<ZbAnswer>& search) {
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

Answer answer_of(const Question& q, const Options& o) {
  Answer a;
  if (q.row != nullptr) a.notes = schedule_notes(q.name, q.schedule);
  check_framework(q, o.framework, a.notes);
  a.order = order_of(q, o, a.search);
  a.replay = replay(a.order, times_of(q, a.order), q.replay);
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

// --- JSON ------------------------------------------------------------------------------------------------------------

constexpr std::size_t kMostPassesPrinted = 100'000;  // larger orders: --write-order
constexpr int kMostRanksPrinted = 64;

std::size_t pass_count(const Order& order) {
  std::size_t count = 0;
  for (const auto& list : order.passes) count += list.size();
  return count;
}

nlohmann::ordered_json json_of_ranks(const Answer& a) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (std::size_t r = 0; r < a.replay.ranks.size(); ++r) {
    const RankReplay& rank = a.replay.ranks[r];
    nlohmann::ordered_json out = {{"busy", rank.busy},
                                  {"idle", rank.idle},
                                  {"first_start", rank.first_start},
                                  {"last_end", rank.last_end},
                                  {"peak_chunks_until_input_grad", rank.peak_chunks_until_input_grad},
                                  {"peak_chunks_until_weight_grad", rank.peak_chunks_until_weight_grad}};
    if (!a.bytes.empty()) {
      out["peak_bytes_until_input_grad"] = a.bytes[r].until_input_grad;
      out["peak_bytes_until_weight_grad"] = a.bytes[r].until_weight_grad;
      out["peak_bytes_split"] = a.bytes[r].split;
    }
    if (pass_count(a.order) <= kMostPassesPrinted) {
      std::vector<std::string> passes;
      for (const Pass& pass : a.order.passes[r]) passes.push_back(pass_text(pass));
      out["order"] = passes;
    }
    ranks.push_back(std::move(out));
  }
  return ranks;
}

nlohmann::ordered_json json_of(const Question& q, const Answer& a) {
  nlohmann::ordered_json out;
  out["schedule"] = q.name;
  out["stages"] = a.order.ranks;
  out["microbatches"] = a.order.microbatches;
  out["chunks"] = a.order.stages() / a.order.ranks;
  out["makespan"] = a.replay.makespan;
  out["max_stage_window"] = a.replay.max_stage_window;
  out["bubble"] = {
      {"over_ideal", a.replay.over_ideal()}, {"over_total", a.replay.over_total()}, {"window", a.replay.window()}};
  out["step"] = {{"optimizer", q.optimizer.sync == OptimizerSync::barrier ? "barrier" : "post-validation"},
                 {"seconds", a.step.seconds},
                 {"synchronisation_seconds", a.step.over_window}};
  out["ranks"] = json_of_ranks(a);
  out["parameter_copies"] = a.order.parameter_copies;
  out["closed_form"] = nullptr;
  if (a.form) {
    out["closed_form"] = {{"expression", a.form->expression},
                          {"value", a.form->value},
                          {"holds", a.form_holds},
                          {"of", a.form->metric == ClosedFormMetric::makespan ? "makespan" : "max_stage_window"},
                          {"where", a.form->where}};
  }
  out["frameworks"] = nlohmann::ordered_json::object();
  for (const ScheduleNote& note : a.notes) out["frameworks"][note.framework] = note.note;
  if (a.search) {
    out["search"] = {{"lower_bound", a.search->lower_bound},
                     {"gap", a.search->gap},
                     {"seed", a.search->seed},
                     {"orders_tried", a.search->tried}};
  }
  return out;
}

// --- text ------------------------------------------------------------------------------------------------------------

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

void print_bubbles(const Replay& r) {
  std::printf("makespan        %s\n", number(r.makespan).c_str());
  std::printf("longest window  %s   (of one rank, from its first start to its last end)\n",
              number(r.max_stage_window).c_str());
  std::printf("bubble          %s over ideal   (makespan - longest busy) / longest busy\n",
              text_of_percent(r.over_ideal()).c_str());
  std::printf("                %s over total   1 - sum of busy / (ranks x makespan)\n",
              text_of_percent(r.over_total()).c_str());
  std::printf("                %s of a window  (longest window - longest busy) / longest window\n",
              text_of_percent(r.window()).c_str());
}

void print_form(const Answer& a) {
  if (!a.form) {
    std::printf("closed form     none holds here\n");
    return;
  }
  const bool makespan = a.form->metric == ClosedFormMetric::makespan;
  std::printf("closed form     %s of %s = %s   [%s]%s\n", makespan ? "makespan" : "longest window",
              a.form->expression.c_str(), number(a.form->value).c_str(), a.form->where.c_str(),
              a.form_holds ? "" : "  DIFFERS FROM THE REPLAY");
}

void print_ranks(const Answer& a) {
  std::printf("\nrank        busy        idle  peak chunks until I  until W%s\n",
              a.bytes.empty() ? "" : "  peak bytes until I     until W  M_B then M_W");
  for (std::size_t r = 0; r < a.replay.ranks.size(); ++r) {
    const RankReplay& rank = a.replay.ranks[r];
    std::printf("%4zu  %10s  %10s  %19d  %7d", r, number(rank.busy).c_str(), number(rank.idle).c_str(),
                rank.peak_chunks_until_input_grad, rank.peak_chunks_until_weight_grad);
    if (!a.bytes.empty()) {
      std::printf("  %18s  %10s  %12s", text_of_decimal_bytes(a.bytes[r].until_input_grad).c_str(),
                  text_of_decimal_bytes(a.bytes[r].until_weight_grad).c_str(),
                  text_of_decimal_bytes(a.bytes[r].split).c_str());
    }
    std::printf("\n");
  }
}

void print_left_out(int ranks) {
  if (ranks > kMostRanksPrinted) std::printf(" ... %d more ranks\n", ranks - kMostRanksPrinted);
}

void print_order(const Order& order) {
  constexpr std::size_t kMostShown = 40;
  std::printf(
      "\norder (stage, pass, micro-batch; F forward, B backward, I and W its input and weight gradient, (..;..) a "
      "pair)\n");
  for (std::size_t r = 0; r < std::min<std::size_t>(order.passes.size(), kMostRanksPrinted); ++r) {
    std::printf("%4zu ", r);
    const auto& list = order.passes[r];
    for (std::size_t i = 0; i < std::min(list.size(), kMostShown); ++i) std::printf(" %s", pass_text(list[i]).c_str());
    if (list.size() > kMostShown) std::printf(" ... %zu more", list.size() - kMostShown);
    std::printf("\n");
  }
  print_left_out(order.ranks);
}

void print_picture(const Order& order, const Replay& r) {
  TimelineOptions options;
  options.colour = isatty(STDOUT_FILENO) != 0;
  std::printf(
      "\ntime to the right: F forward, B backward, I W its gradients, O a pair, then the micro-batch%s; later chunks "
      "in "
      "lower case; . idle\n",
      order.microbatches > 10 ? " (its last digit where there is no room)" : "");
  const std::string picture = timeline_text(order, r, options);
  std::size_t end = 0;
  for (int line = 0; line < std::min(order.ranks, kMostRanksPrinted); ++line) end = picture.find('\n', end) + 1;
  std::printf("%s", picture.substr(0, end).c_str());
  print_left_out(order.ranks);
}

/// What overlapped pairs save a rank, against their halves one after the other (at the even times of the question).
void print_overlap(const Question& q, const Order& order) {
  std::size_t most = 0;
  for (const auto& list : order.passes) {
    const auto pairs =
        std::count_if(list.begin(), list.end(), [](const Pass& p) { return p.kind == PassKind::overlapped; });
    most = std::max(most, static_cast<std::size_t>(pairs));
  }
  if (most == 0) return;
  const double serial = q.schedule.forward + q.schedule.input_grad + q.schedule.weight_grad;
  const double pair = q.overlapped >= 0 ? q.overlapped : serial;
  const double saved = serial - pair;
  std::printf(
      "overlap         a pair takes %s, its halves one after the other %s: each %s %s, up to %zu pairs a rank %s\n",
      number(pair).c_str(), number(serial).c_str(), saved >= 0 ? "saves" : "costs", number(std::abs(saved)).c_str(),
      most, number(std::abs(saved) * static_cast<double>(most)).c_str());
}

void print_search(const Question& q, const ZbAnswer& s) {
  std::printf("search          from %s; %lld orders tried%s\n", s.seed.c_str(), static_cast<long long>(s.tried),
              q.schedule.search ? "" : " (published heuristic only)");
  std::printf("lower bound     %s of the %s; gap %s\n", number(s.lower_bound).c_str(),
              q.optimizer.sync == OptimizerSync::post_validation ? "longest window" : "makespan",
              text_of_percent(s.gap).c_str());
}

void print_text(const Question& q, const Answer& a) {
  const Order& order = a.order;
  std::printf("%s: %s, %s", q.name.c_str(), counted(order.ranks, "rank").c_str(),
              counted(order.microbatches, "micro-batch").c_str());
  if (order.stages() > order.ranks) std::printf(", %d chunks a rank", order.stages() / order.ranks);
  if (order.parameter_copies > 1) std::printf(", %d copies of the parameters", order.parameter_copies);
  std::printf("\n");
  if (q.row != nullptr) std::printf("source          %s\n", std::string(q.row->source).c_str());
  std::printf("times           of a chunk: F %s, I %s, W %s, B = I + W%s; hop %s, %s\n",
              number(q.schedule.forward).c_str(), number(q.schedule.input_grad).c_str(),
              number(q.schedule.weight_grad).c_str(),
              q.overlapped >= 0 ? (", pair FB " + number(q.overlapped)).c_str() : "", number(q.schedule.p2p).c_str(),
              q.replay.p2p == P2pMode::async ? "asynchronous"
              : q.replay.stream_per_peer     ? "blocking, a stream a peer"
                                             : "blocking, one stream a rank");
  print_bubbles(a.replay);
  print_form(a);
  if (a.search) print_search(q, *a.search);
  print_overlap(q, order);
  std::printf("step            %s with %s, of which synchronising %s\n", number(a.step.seconds).c_str(),
              q.optimizer.sync == OptimizerSync::barrier ? "a global-norm barrier" : "post-hoc validation",
              number(a.step.over_window).c_str());
  print_ranks(a);
  print_picture(order, a.replay);
  print_order(order);
  for (const ScheduleNote& note : a.notes)
    std::printf("%s%s: %s\n", &note == a.notes.data() ? "\n" : "", note.framework.c_str(), note.note.c_str());
}

void answer(const Options& o) {
  const Question q = question_of(o);
  const Answer a = answer_of(q, o);
  if (!o.write_order.empty()) {
    write_text_file(o.write_order, pytorch_csv(a.order, o.order_format == "compute-only" ? CsvKind::compute_only
                                                                                         : CsvKind::compute_comms));
  }
  if (!o.trace.empty()) write_text_file(o.trace, chrome_trace(trace_of(a.order, a.replay)));
  if (o.format == "json") {
    print_json(json_of(q, a));
  } else {
    print_text(q, a);
  }
}

void add_times(CLI::App& verb, Options& o) {
  verb.add_option("--forward", o.forward, "time of a forward pass of one chunk (default 1)");
  verb.add_option("--input-grad", o.input_grad, "time of its input gradient (default 1)");
  verb.add_option("--weight-grad", o.weight_grad, "time of its weight gradient (default 1)");
  verb.add_option("--overlapped", o.overlapped, "time of an overlapped forward and backward (default their sum)");
  verb.add_option("--p2p", o.p2p, "latency of a message to another rank (default 0)");
  verb.add_option("--p2p-mode", o.p2p_mode, "async (unlimited buffers) or rendezvous (default async)")
      ->check(CLI::IsMember({"async", "rendezvous"}));
  verb.add_option("--streams", o.streams, "rendezvous: one communication stream a rank (1) or per-peer (default)")
      ->check(CLI::IsMember({"1", "per-peer"}));
  verb.add_option("--stage-scale", o.stage_scale, "factors on the times of single virtual stages, in their order");
  verb.add_option("--chunk-bytes", o.chunk_bytes,
                  "bytes that a micro-batch holds of one chunk until its input gradient (M_B)");
  verb.add_option("--weight-grad-memory", o.weight_grad_memory,
                  "M_W / M_B, what it holds until its weight gradient (default 1)");
  verb.add_option("--optimizer", o.optimizer,
                  "barrier (global norm first; default) or post-validation (each rank on its own)")
      ->check(CLI::IsMember({"barrier", "post-validation"}));
  verb.add_option("--optimizer-time", o.optimizer_time, "time of a rank's optimizer step (default 0)");
  verb.add_option("--norm-time", o.norm_time, "time of the all-reduce of the gradient norm (default 0)");
  verb.add_option("--rollback-share", o.rollback_share, "post-validation: share of steps that are undone (default 0)");
}

std::string schedule_list() {
  std::string out;
  for (const ScheduleRow& row : schedules()) out += (out.empty() ? "" : " ") + std::string(row.name);
  return out;
}

}  // namespace

void add_bubble(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("bubble", "Replays a pipeline schedule: makespan, bubbles, activations in flight");
  auto o = std::make_shared<Options>();
  verb->add_option("--schedule", o->schedule, "its name: " + schedule_list());
  verb->add_option("--order", o->order_file, "a schedule as PyTorch pipelining CSV instead");
  verb->add_option("--stages", o->stages, "pipeline ranks");
  verb->add_option("--microbatches", o->microbatches, "micro-batches, of both directions together");
  verb->add_option("--chunks", o->chunks, "virtual stages a rank");
  verb->add_option("--group", o->group, "interleaved schedules: consecutive micro-batches a chunk");
  verb->add_option("--warmup", o->warmup,
                   "interleaved-1f1b: full = 2 (p-1-r) + (v-1) g chunks (Megatron), short = (p-1-r) + (v-1) g")
      ->check(CLI::IsMember({"full", "short"}));
  add_times(*verb, *o);
  verb->add_flag("--overlap-pairs", o->overlap_pairs,
                 "1f1b, interleaved-1f1b: forward and backward as overlapped pairs, one more warm-up forward");
  verb->add_option("--memory-limit", o->memory_limit, "zb-auto: of every rank, in units of M_B");
  verb->add_option("--search", o->search, "zb-auto: full (default), or none = the published heuristic")
      ->check(CLI::IsMember({"full", "none"}));
  verb->add_option("--for", o->framework,
                   "exit 2 where this framework refuses: megatron, pytorch, deepspeed, zero-bubble, deepseek");
  verb->add_option("--trace", o->trace, "writes a trace for chrome://tracing or Perfetto, ranks as processes");
  verb->add_option("--write-order", o->write_order, "writes the order as PyTorch pipelining CSV");
  verb->add_option("--order-format", o->order_format, "of --write-order: compute-only (default) or compute-comms")
      ->check(CLI::IsMember({"compute-only", "compute-comms"}));
  add_format_option(*verb, o->format);
  verb->footer("Example:\n  shardplan bubble --schedule zb-h1 --stages 4 --microbatches 16 --p2p 0.1");
  verb->callback([o] { answer(*o); });
}

}  // namespace shardplan
