// shardplan bubble: one pipeline schedule, replayed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/output.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

/// Everything as typed.
struct Options {
  std::string schedule, stages, microbatches, chunks, group;
  std::string forward = "1", input_grad = "1", weight_grad = "1", overlapped, p2p = "0";
  std::string p2p_mode = "async", streams = "per-peer", warmup = "full", stage_scale;
  std::string format = "text";
};

int count_of(const std::string& text, const char* option, int least) {
  const std::int64_t n = parse_count(text, option);
  if (n < least || n > 1'000'000) {
    throw InputError(option, "out of range: " + text + " is not between " + std::to_string(least) + " and 1000000");
  }
  return static_cast<int>(n);
}

std::vector<double> numbers_of(const std::string& text, const char* option) {
  std::vector<double> out;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(parse_number(text.substr(at, comma - at), option));
    if (out.back() < 0) throw InputError(option, "a factor must not be negative");
    at = comma + 1;
  }
  return out;
}

struct Question {
  const ScheduleRow* row = nullptr;
  ScheduleQuestion schedule;
  double overlapped = -1;  // < 0: the sum of its halves
  std::vector<double> stage_scale;
  ReplayOptions replay;
};

Question question_of(const Options& o) {
  Question q;
  q.row = &find_schedule(o.schedule);
  ScheduleQuestion& s = q.schedule;
  s.ranks = count_of(o.stages, "--stages", 1);
  s.microbatches = count_of(o.microbatches, "--microbatches", 1);
  s.chunks = o.chunks.empty() ? q.row->default_chunks : count_of(o.chunks, "--chunks", 1);
  s.group = o.group.empty() ? 0 : count_of(o.group, "--group", 1);
  s.short_warmup = o.warmup == "short";
  s.forward = parse_seconds(o.forward, "--forward");
  s.input_grad = parse_seconds(o.input_grad, "--input-grad");
  s.weight_grad = parse_seconds(o.weight_grad, "--weight-grad");
  s.p2p = parse_seconds(o.p2p, "--p2p");
  if (!o.overlapped.empty()) q.overlapped = parse_seconds(o.overlapped, "--overlapped");
  if (!o.stage_scale.empty()) q.stage_scale = numbers_of(o.stage_scale, "--stage-scale");
  q.replay.p2p = o.p2p_mode == "async" ? P2pMode::async : P2pMode::rendezvous;
  q.replay.stream_per_peer = o.streams == "per-peer";
  return q;
}

PassTimes times_of(const Question& q, const Order& order) {
  const int stages = order.stages();
  std::vector<double> scale = q.stage_scale.empty() ? std::vector<double>(stages, 1.0) : q.stage_scale;
  if (static_cast<int>(scale.size()) != stages) {
    throw InputError("--stage-scale", std::to_string(scale.size()) + " factors for " + std::to_string(stages) +
                                          (stages > order.ranks ? " virtual stages" : " stages"));
  }
  PassTimes times;
  for (int s = 0; s < stages; ++s) {
    times.forward.push_back(q.schedule.forward * scale[s]);
    times.input_grad.push_back(q.schedule.input_grad * scale[s]);
    times.weight_grad.push_back(q.schedule.weight_grad * scale[s]);
    if (q.overlapped >= 0) times.overlapped.push_back(q.overlapped * scale[s]);
  }
  times.hop_forward.assign(stages, q.schedule.p2p);
  times.hop_backward.assign(stages, q.schedule.p2p);
  return times;
}

nlohmann::ordered_json json_of(const Question& q, const Order& order, const Replay& r) {
  nlohmann::ordered_json out;
  out["schedule"] = q.row->name;
  out["stages"] = order.ranks;
  out["microbatches"] = order.microbatches;
  out["chunks"] = order.stages() / order.ranks;
  out["makespan"] = r.makespan;
  out["max_stage_window"] = r.max_stage_window;
  out["bubble"] = {{"over_ideal", r.over_ideal()}, {"over_total", r.over_total()}, {"window", r.window()}};
  for (const RankReplay& rank : r.ranks) {
    out["ranks"].push_back({{"busy", rank.busy},
                            {"idle", rank.idle},
                            {"first_start", rank.first_start},
                            {"last_end", rank.last_end},
                            {"peak_chunks_until_input_grad", rank.peak_chunks_until_input_grad},
                            {"peak_chunks_until_weight_grad", rank.peak_chunks_until_weight_grad}});
  }
  out["parameter_copies"] = order.parameter_copies;
  out["closed_form"] = nullptr;
  out["frameworks"] = nlohmann::ordered_json::object();
  return out;
}

void print_text(const Question& q, const Order& order, const Replay& r) {
  std::printf("%s: %d stages, %d micro-batches, %d virtual stages\n", std::string(q.row->name).c_str(), order.ranks,
              order.microbatches, order.stages());
  std::printf("  makespan            %s\n", text_of_number(r.makespan, 9).c_str());
  std::printf("  longest window      %s\n", text_of_number(r.max_stage_window, 9).c_str());
  std::printf("  bubble over ideal   %s   (makespan - longest busy) / longest busy\n",
              text_of_percent(r.over_ideal()).c_str());
  std::printf("  bubble over total   %s   1 - sum of busy / (stages x makespan)\n",
              text_of_percent(r.over_total()).c_str());
  std::printf("  bubble of a window  %s   (longest window - longest busy) / longest window\n",
              text_of_percent(r.window()).c_str());
}

void answer(const Options& o) {
  const Question q = question_of(o);
  if (const auto refusal = q.row->refuse(q.schedule)) throw InputError(std::string(q.row->name), *refusal);
  const Order order = q.row->order(q.schedule);
  const Replay r = replay(order, times_of(q, order), q.replay);
  if (o.format == "json") {
    print_json(json_of(q, order, r));
  } else {
    print_text(q, order, r);
  }
}

}  // namespace

void add_bubble(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("bubble", "Replays a pipeline schedule: makespan, bubbles, activations in flight");
  auto o = std::make_shared<Options>();
  verb->add_option("--schedule", o->schedule, "its name")->required();
  verb->add_option("--stages", o->stages, "pipeline ranks")->required();
  verb->add_option("--microbatches", o->microbatches, "micro-batches, of both directions together")->required();
  verb->add_option("--chunks", o->chunks, "virtual stages a rank");
  verb->add_option("--group", o->group, "interleaved schedules: consecutive micro-batches a chunk");
  verb->add_option("--warmup", o->warmup,
                   "interleaved-1f1b: full = 2 (p-1-r) + (v-1) g chunks (Megatron), short = (p-1-r) + (v-1) g")
      ->check(CLI::IsMember({"full", "short"}));
  verb->add_option("--forward", o->forward, "time of a forward pass of one chunk (default 1)");
  verb->add_option("--input-grad", o->input_grad, "time of its input gradient (default 1)");
  verb->add_option("--weight-grad", o->weight_grad, "time of its weight gradient (default 1)");
  verb->add_option("--overlapped", o->overlapped, "time of an overlapped forward and backward (default their sum)");
  verb->add_option("--p2p", o->p2p, "latency of a message to another rank (default 0)");
  verb->add_option("--p2p-mode", o->p2p_mode, "async (unlimited buffers) or rendezvous (default async)")
      ->check(CLI::IsMember({"async", "rendezvous"}));
  verb->add_option("--streams", o->streams, "rendezvous: one communication stream a rank (1) or per-peer (default)")
      ->check(CLI::IsMember({"1", "per-peer"}));
  verb->add_option("--stage-scale", o->stage_scale, "factors on the times of single virtual stages, in their order");
  add_format_option(*verb, o->format);
  verb->footer("Example:\n  shardplan bubble --schedule 1f1b --stages 4 --microbatches 16");
  verb->callback([o] { answer(*o); });
}

}  // namespace shardplan
