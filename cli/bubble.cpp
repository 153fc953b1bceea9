// shardplan bubble: one pipeline schedule, replayed.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/field.hpp"
#include "cli/bubble_question.hpp"
#include "cli/bubble_text.hpp"
#include "cli/output.hpp"
#include "sim/pass_text.hpp"
#include "sim/pytorch_csv.hpp"
#include "sim/trace.hpp"

namespace shardplan {
namespace {

constexpr std::size_t kMostPassesPrinted = 100'000;  // larger orders: --write-order

std::size_t pass_count(const Order& order) {
  std::size_t count = 0;
  for (const auto& list : order.passes) count += list.size();
  return count;
}

nlohmann::ordered_json json_of_ranks(const BubbleAnswer& a) {
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
      out["peak_bytes_until_input_grad"] = whole_bytes(a.bytes[r].until_input_grad);
      out["peak_bytes_until_weight_grad"] = whole_bytes(a.bytes[r].until_weight_grad);
      out["peak_bytes_split"] = whole_bytes(a.bytes[r].split);
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

nlohmann::ordered_json json_of(const BubbleQuestion& q, const BubbleAnswer& a) {
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
void answer(const BubbleOptions& o) {
  const BubbleQuestion q = bubble_question(o);
  const BubbleAnswer a = bubble_answer(q, o);
  if (!o.write_order.empty()) {
    write_text_file(o.write_order, pytorch_csv(a.order, o.order_format == "compute-only" ? CsvKind::compute_only
                                                                                         : CsvKind::compute_comms));
  }
  if (!o.trace.empty()) write_text_file(o.trace, chrome_trace(trace_of(a.order, a.replay)));
  if (o.format == "json") {
    print_json(json_of(q, a));
  } else {
    print_bubble(q, a);
  }
}

void add_times(CLI::App& verb, BubbleOptions& o) {
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
  auto o = std::make_shared<BubbleOptions>();
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
