// shardplan simulate: one layout, one step.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/explain_text.hpp"
#include "cli/framework.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "cli/skew_text.hpp"
#include "cli/step_options.hpp"
#include "cli/step_text.hpp"
#include "cli/verbs.hpp"
#include "layouts/step/unpriced.hpp"
#include "models/documents.hpp"

namespace shardplan {
namespace {

struct Options {
  CommonOptions common;
  StepOptionTexts step;
  std::string trace, jitter, jitter_seed = "1";
  std::vector<std::string> stragglers;
  std::string framework;
  bool all_ranks = false, explain = false;
};

/// "12:1.5" -> rank 12 takes 1.5 times as long.
void read_straggler(const std::string& text, RankSpread& out) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos)
    throw InputError("--straggler", "expected RANK:FACTOR (12:1.5), got \"" + text.substr(0, 60) + "\"");
  const std::int64_t rank = parse_count(text.substr(0, colon), "--straggler");
  const double factor = parse_number(text.substr(colon + 1), "--straggler");
  if (factor < 0.01 || factor > 1000)
    throw InputError("--straggler", "out of range: a factor lies between 0.01 and 1000");
  if (!out.stragglers.emplace(rank, factor).second)
    throw InputError("--straggler", "rank " + std::to_string(rank) + " is named twice");
}

RankSpread read_spread(const Options& o) {
  RankSpread out;
  if (!o.jitter.empty()) out.expected = 0, out.jitter = parse_number(o.jitter, "--jitter");
  if (out.jitter < 0 || out.jitter > 2)
    throw InputError("--jitter", "out of range: a relative standard deviation lies between 0 and 2");
  out.seed = static_cast<std::uint64_t>(parse_count(o.jitter_seed, "--jitter-seed"));
  for (const std::string& text : o.stragglers) read_straggler(text, out);
  return out;
}

DocumentMask mask_of(const StepQuestion& q) {
  return document_mask(static_cast<double>(q.workload.seq_len), q.options.mean_document);
}

std::string documents_text(const StepQuestion& q) {
  const DocumentMask mask = mask_of(q);
  return "documents   of " + text_of_count(std::llround(q.options.mean_document)) +
         " tokens on average: " + text_of_percent(mask.share) + " of a whole causal mask, " +
         text_of_percent(mask.sd / mask.share) + " more or less from sequence to sequence" +
         (q.stack.attention == AttentionLibrary::unfused ? "; unfused attention computes the whole mask" : "") +
         "; model FLOPs and MFU count the whole mask\n";
}

/// The step with DeepEP's exchange, where the layout leaves the transport open and NCCL's all-to-all stands in: what a
/// plain installation of Megatron runs (DeepEP is built apart, on NVSHMEM). Nothing where it gains less than 1 %.
std::optional<double> step_with_deepep(StepQuestion q, const StepReport& now) {
  if (q.layout.transport || q.layout.ep == 1 || q.stack.framework != "megatron") return {};
  q.layout.transport = Transport::deepep;
  q.options.keep_trace = q.options.all_ranks = false;
  const double seconds = simulate_step(q).step_time_s;
  if (seconds > 0.99 * now.step_time_s) return {};
  return seconds;
}

void print_text(const StepQuestion& q, const StepReport& s, const MemoryReport& memory, const CommonOptions& o) {
  std::printf("%s on %lld x %s, sequence %s, global batch %s (%s tokens), %s\n", q.model->name.c_str(),
              static_cast<long long>(q.layout.gpus()), q.pricer->cluster().name.c_str(),
              text_of_count(q.workload.seq_len).c_str(), text_of_count(q.workload.global_batch).c_str(),
              text_of_count(q.workload.global_batch * q.workload.seq_len).c_str(), o.precision.c_str());
  const std::string routing = routing_text(q.options.routing, *q.model);
  std::printf("layout %s (stack %s, recipe %s, rates %s, network %s%s)\n\n", layout_text(q.layout).c_str(),
              q.stack.shown().c_str(), memory.recipe.c_str(), o.rates.c_str(), o.network.c_str(),
              (routing.empty() ? "" : ", " + routing).c_str());
  if (q.options.mean_document > 0) std::printf("%s", documents_text(q).c_str());
  const std::string interval = q.options.rates == Rates::datasheet
                                   ? "datasheet rates have no interval"
                                   : "80 % interval " + text_of_seconds(s.low_s) + " to " + text_of_seconds(s.high_s);
  std::printf("step time   %s   (%s), in the steady state\n", text_of_seconds(s.step_time_s).c_str(), interval.c_str());
  const double rate = tokens_per_second_per_gpu(q, s);
  std::printf("rate        %s tokens/s per GPU; %s; %s GPU-hours a trillion tokens\n", text_of_number(rate, 4).c_str(),
              step_rate_text(q, s).c_str(), text_of_count(std::llround(1e12 / rate / 3600)).c_str());
  std::printf("bubble      %s over ideal, %s over total, %s of the longest window; %s\n",
              text_of_percent(s.over_ideal).c_str(), text_of_percent(s.over_total).c_str(),
              text_of_percent(s.window).c_str(), counted(s.microbatches, "micro-batch").c_str());
  std::printf("memory      %s of %s on the fullest rank: %s\n", text_of_bytes(memory.peak_bytes()).c_str(),
              text_of_bytes(memory.capacity_bytes).c_str(), memory.fits ? "fits" : "DOES NOT FIT");
  std::printf("exposed     %s\n", exposed_text(s).c_str());
  std::printf("%s%s", critical_path_text(s).c_str(), replicas_text(q, s).c_str());
  std::printf("where the step goes (pipeline rank %d, the busiest)\n%s", s.busiest_rank,
              step_breakdown_text(s).c_str());
  std::printf("  stands on            ");
  const double device = std::max(1e-30, s.busiest.device());
  for (std::size_t i = 0; i < kBasisNames.size(); ++i)
    if (s.busiest.basis[i] / device > 5e-4)
      std::printf(" %s %s", text_of_percent(s.busiest.basis[i] / device).c_str(), std::string(kBasisNames[i]).c_str());
  std::printf("\n");
  if (const auto deepep = step_with_deepep(q, s))
    std::printf(
        "note: experts exchange by NCCL's all-to-all, the default; with transport=deepep the step takes %s (%s)\n",
        text_of_seconds(*deepep).c_str(), text_of_percent(*deepep / s.step_time_s - 1).c_str());
  for (const FrameworkNote& note :
       refusals_of_stack(framework_notes(q.layout, *q.model, q.workload), q.stack, q.layout))
    std::printf("note: %s %s\n", note.framework.c_str(), note.note.c_str());
}

void run(const Options& o) {
  const Model model = read_model(o.common);
  const Cluster cluster = load_cluster(o.common.cluster);
  const Workload workload = read_workload(o.common);
  warn_of_precision(cluster, workload);
  const Pricer pricer(cluster, read_rates(o.common), read_fidelity(o.common));
  StepQuestion q;
  q.model = &model;
  q.pricer = &pricer;
  q.layout = parse_layout(o.common.layout, read_gpus(o.common), "--layout");
  q.workload = workload;
  q.stack = read_stack(o.common);
  q.options = read_step_options(o.step, o.common, model, q.workload);
  q.options.keep_trace = true;
  q.options.all_ranks = o.all_ranks;
  q.options.spread = read_spread(o);
  if (!q.options.on(Effect::jitter)) q.options.spread.jitter = 0;
  if (q.layout.gpus() != read_gpus(o.common))
    throw InputError("--layout", "uses " + std::to_string(q.layout.gpus()) + " GPUs, --gpus says " + o.common.gpus);
  const StepReport s = simulate_step(q);
  const std::vector<FrameworkNote> notes = framework_notes(q.layout, model, workload);
  refuse_framework(o.framework, notes);
  MemoryOptions memory_options = read_memory_options(o.common, q.stack);
  set_routing(memory_options, q.options.routing, model, q.layout, cluster);
  const MemoryReport memory = memory_of(model, cluster, q.layout, workload, memory_options);
  const std::vector<std::string> unpriced = unpriced_words(q);
  for (const std::string& what : unpriced) print_warning(what);
  std::vector<SkewPoint> curve;
  if (wants_skew_curve(o.step)) curve = skew_curve(q, memory_options, read_seed(o.step));
  if (!o.trace.empty()) write_text_file(o.trace, chrome_trace(*s.trace));
  if (!o.common.json()) {
    print_text(q, s, memory, o.common);
    if (wants_skew_curve(o.step)) std::printf("%s", skew_curve_text(curve).c_str());
    if (o.explain) std::printf("%s", explanation_text(explain_step(q, memory_options, s, memory)).c_str());
    return;
  }
  nlohmann::ordered_json out;
  out["model"] = model.name;
  out["cluster"] = cluster.name;
  out["gpus"] = q.layout.gpus();
  out["layout"] = layout_text(q.layout);
  out["seq_len"] = workload.seq_len;
  out["global_batch"] = workload.global_batch;
  out["precision"] = o.common.precision;
  out["stack"] = q.stack.name;
  if (!q.stack.release.empty()) out["release"] = q.stack.release;
  out["recipe"] = memory.recipe;
  out["rates"] = o.common.rates;
  out["network"] = o.common.network;
  if (const std::string routing = routing_text(q.options.routing, model); !routing.empty()) out["routing"] = routing;
  if (q.options.mean_document > 0) {
    const DocumentMask mask = mask_of(q);
    out["documents"] = {
        {"mean_tokens", q.options.mean_document}, {"attention_share", mask.share}, {"attention_share_sd", mask.sd}};
  }
  add_step_json(out, q, s, memory);
  out["critical_path"] = critical_path_json(s);
  if (s.replicas.replicas > 0) add_ranks_json(out, q, s);
  if (const auto deepep = step_with_deepep(q, s)) out["step_time_with_deepep_s"] = *deepep;
  out["not_priced"] = unpriced;
  add_memory_json(out, memory);
  out["frameworks"] = nlohmann::ordered_json::object();
  for (const FrameworkNote& note : notes) out["frameworks"][note.framework] = note.note;
  if (wants_skew_curve(o.step)) out["skew_curve"] = skew_curve_json(curve);
  if (o.explain) out["explain"] = explanation_json(explain_step(q, memory_options, s, memory));
  print_json(out);
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("simulate",
                                      "One training step of one layout, in the steady state (no compilation, warm-up, "
                                      "data stalls or checkpoints): time, "
                                      "breakdown, bubbles, memory");
  add_question_options(*verb, options->common);
  add_layout_option(*verb, options->common);
  add_framework_option(*verb, options->framework);
  add_step_options(*verb, options->step);
  add_skew_curve_option(*verb, options->step);
  verb->add_option("--trace", options->trace, "write the step as a Chrome / Perfetto trace, a process a pipeline rank");
  verb->add_flag("--all-ranks", options->all_ranks, "price and replay every rank of the job");
  verb->add_option(
      "--jitter", options->jitter,
      "relative standard deviation of each rank's pass times, drawn (0.02); default: the expected wait for the "
      "slowest of ranks that differ by 0.3 %");
  verb->add_option("--jitter-seed", options->jitter_seed, "of the jitter, and of packed documents' lengths")
      ->default_str(options->jitter_seed);
  verb->add_option("--straggler", options->stragglers, "RANK:FACTOR: this rank's passes take so many times as long");
  verb->add_flag("--explain", options->explain,
                 "the three single changes that would help most, and the nearest measured run");
  verb->footer(
      "Example:\n  shardplan simulate --model llama-3.1-70b --cluster h100-sxm --gpus 512 --layout \"tp8 pp4 dp16 "
      "vpp5\" "
      "--seq-len 8k --global-batch 512");
  verb->callback([options] { run(*options); });
}

}  // namespace shardplan
