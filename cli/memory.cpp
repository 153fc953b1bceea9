// shardplan memory: bytes on every pipeline rank of one layout, by term.
#include "layouts/memory.hpp"

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
#include "cli/framework.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "cli/step_options.hpp"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;
using enum MemoryTerm;

struct Options {
  CommonOptions common;
  StepOptionTexts routing;
  std::string framework, explain;
};

struct Answer {
  std::string precision;  // as asked
  Model model;
  Cluster cluster;
  Layout layout;
  Workload workload;
  Stack stack;
  MemoryOptions options;
  std::int64_t microbatches = 0;
  MemoryReport report;
  std::vector<double> by_rule;  // activations of each rank by the 34 s b h rule
  std::vector<FrameworkNote> notes;
  int explained = -1;
  std::vector<MemoryLine> lines;
};

/// Layers of the busiest moment of each rank times the rule: what a whiteboard would say of the same layout.
std::vector<double> rule_activations(const Answer& a) {
  const auto slices = split_stages(a.layout, a.model);
  const InFlight flight = in_flight(a.layout, a.microbatches);
  const double tokens = static_cast<double>(a.layout.mbs) * static_cast<double>(a.workload.seq_len) / a.layout.cp;
  const double a_layer = korthikanti_bytes(
      tokens, static_cast<double>(a.model.hidden), static_cast<double>(a.model.layers.front().attention.heads),
      static_cast<double>(a.workload.seq_len), a.layout.tp, a.layout.sequence_parallel(),
      !a.options.traits.activation.unfused_attention);
  std::vector<double> out;
  for (int r = 0; r < a.layout.pp; ++r) {
    double most = 0;
    for (const Moment& m : flight.ranks[static_cast<std::size_t>(r)]) {
      double layers = 0;
      for (int c = 0; c < a.layout.slices_per_rank(); ++c) {
        layers +=
            m.alive[static_cast<std::size_t>(c)] * slices[static_cast<std::size_t>(a.layout.slice_of(r, c))].layers;
      }
      most = std::max(most, layers);
    }
    out.push_back(most * a_layer);
  }
  return out;
}

Answer answer(const Options& o) {
  Answer a;
  a.model = read_model(o.common);
  a.cluster = load_cluster(o.common.cluster);
  const std::int64_t gpus = read_gpus(o.common);
  a.layout = parse_layout(o.common.layout, gpus, "--layout");
  a.workload = read_workload(o.common);
  a.precision = o.common.precision;
  a.stack = read_stack(o.common);
  a.options = read_memory_options(o.common, a.stack);
  if (!o.common.recipe.empty()) find_recipe(o.common.recipe, "--recipe");
  if (const auto reason = refuse_layout(a.layout, a.model, a.workload, gpus)) throw InputError("--layout", *reason);
  a.notes = framework_notes(a.layout, a.model, a.workload);
  refuse_framework(o.framework, a.notes);
  a.microbatches = microbatches(a.layout, a.workload);
  set_routing(a.options, read_routing(o.routing, a.model, a.workload), a.model, a.layout, a.cluster);
  a.report = memory_of(a.model, a.cluster, a.layout, a.workload, a.options);
  a.by_rule = rule_activations(a);
  if (!o.explain.empty()) {
    const std::int64_t rank = o.explain == "peak" ? a.report.peak_rank : parse_count(o.explain, "--explain");
    if (rank >= a.layout.pp)
      throw InputError("--explain",
                       "rank " + o.explain + ": there are " + std::to_string(a.layout.pp) + " pipeline ranks");
    a.explained = static_cast<int>(rank);
    a.lines = explain_memory(a.model, a.cluster, a.layout, a.workload, a.options, a.explained);
  }
  return a;
}

Json rank_json(const Answer& a, std::size_t i) {
  const RankMemory& r = a.report.ranks[i];
  Json out = {{"stage", r.stage}};
  for (std::size_t t = 0; t < kMemoryTerms; ++t) out[std::string(kMemoryTermNames[t])] = whole_bytes(r.terms[t]);
  out["allocated"] = whole_bytes(r.allocated());
  out["reserved"] = whole_bytes(r.reserved());
  out["device"] = whole_bytes(r.device());
  out["peak_microbatches"] = r.peak_microbatches;
  out["peak_chunks"] = r.peak_chunks;
  out["moment"] = std::string(r.moment);
  out["activations_by_34sbh_rule"] = whole_bytes(a.by_rule[i]);
  return out;
}

Json json_of(const Answer& a) {
  Json out = {{"model", a.model.name},
              {"cluster", a.cluster.name},
              {"gpus", a.layout.gpus()},
              {"layout", layout_text(a.layout)},
              {"seq_len", a.workload.seq_len},
              {"global_batch", a.workload.global_batch},
              {"precision", a.precision},
              {"recipe", a.report.recipe},
              {"stack", a.stack.name},
              {"rates", a.options.rates == Rates::datasheet ? "datasheet" : "calibrated"},
              {"microbatches", a.microbatches},
              {"routed_load", a.options.load},
              {"redundant_experts", a.options.redundant},
              {"ranks", Json::array()},
              {"peak_bytes", a.report.peak_bytes()},
              {"peak_rank", a.report.peak_rank},
              {"peak_allocated_bytes", a.report.peak_allocated()},
              {"peak_reserved_bytes", a.report.peak_reserved()},
              {"capacity_bytes", a.report.capacity_bytes},
              {"fits", a.report.fits},
              {"shortfall", nullptr},
              {"frameworks", Json::object()}};
  for (std::size_t i = 0; i < a.report.ranks.size(); ++i) out["ranks"].push_back(rank_json(a, i));
  if (const auto& s = a.report.shortfall) {
    out["shortfall"] = {{"rank", s->rank}, {"term", std::string(term_name(s->term))}, {"bytes", s->bytes}};
  }
  for (const FrameworkNote& note : a.notes) out["frameworks"][note.framework] = note.note;
  if (a.explained >= 0) {
    Json lines = Json::array();
    for (const MemoryLine& line : a.lines) {
      lines.push_back({{"term", std::string(term_name(line.term))}, {"what", line.what}, {"bytes", line.bytes}});
    }
    out["explained"] = {{"rank", a.explained}, {"lines", lines}};
  }
  return out;
}

/// "12.34": GiB.
std::string gib(double bytes) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2f", bytes / 0x1p30);
  return buffer;
}

void print_head(const Answer& a) {
  const Recipe& r = find_recipe(a.report.recipe);
  std::printf("%s on %lld x %s, layout %s\n", a.model.name.c_str(), static_cast<long long>(a.layout.gpus()),
              a.cluster.name.c_str(), layout_text(a.layout).c_str());
  std::printf("sequence %s, global batch %s, %s of %d, schedule %s, zero%d%s, recompute %s\n",
              text_of_count(a.workload.seq_len).c_str(), text_of_count(a.workload.global_batch).c_str(),
              counted(a.microbatches, "micro-batch").c_str(), a.layout.mbs, a.layout.schedule_name().c_str(),
              a.layout.zero_stage(), a.layout.sequence_parallel() ? ", sequence parallel" : "",
              a.layout.recompute == Recompute::none   ? "none"
              : a.layout.recompute == Recompute::full ? "full"
                                                      : "selective");
  std::printf("recipe %s: weight %g, gradient %g, optimizer %g bytes a parameter; stack %s\n", r.name.c_str(), r.weight,
              r.gradient, r.optimizer, a.stack.name.c_str());
  if (a.options.load != 1 || a.options.redundant > 0)
    std::printf(
        "routing: the busiest rank keeps %s times the tokens that an even router without drops sends it, in every "
        "layer; %d redundant experts\n",
        text_of_number(a.options.load, 4).c_str(), a.options.redundant);
}

void print_table(const Answer& a) {
  std::vector<std::size_t> shown;  // terms that some rank has
  for (std::size_t t = 0; t < kMemoryTerms; ++t) {
    const bool some =
        std::any_of(a.report.ranks.begin(), a.report.ranks.end(), [&](const RankMemory& r) { return r.terms[t] > 0; });
    if (some) shown.push_back(t);
  }
  std::printf("\nGiB at each rank's peak (allocated = live; reserved = + slack; device = + context)\n rank");
  for (const std::size_t t : shown) std::printf(" %11s", std::string(kMemoryTermNames[t]).c_str());
  std::printf(" %10s %9s %8s  in flight  moment\n", "allocated", "reserved", "device");
  for (const RankMemory& r : a.report.ranks) {
    std::printf("%5d", r.stage);
    for (const std::size_t t : shown) std::printf(" %11s", gib(r.terms[t]).c_str());
    std::printf(" %10s %9s %8s  %9s  %s\n", gib(r.allocated()).c_str(), gib(r.reserved()).c_str(),
                gib(r.device()).c_str(), text_of_number(r.peak_microbatches, 4).c_str(), std::string(r.moment).c_str());
  }
}

void print_verdict(const Answer& a) {
  const MemoryReport& m = a.report;
  const std::size_t peak = static_cast<std::size_t>(m.peak_rank);
  std::printf("\npeak %s GiB on rank %d of %s GiB (%s): %s\n", gib(m.peak_bytes()).c_str(), m.peak_rank,
              gib(m.capacity_bytes).c_str(),
              a.options.rates == Rates::datasheet ? "the label"
              : a.cluster.gpu.hbm_mib.value > 0   ? "what the driver reports"
                                                  : "the label less 0.5 %, assumed",
              m.fits ? "fits" : "does not fit");
  if (m.shortfall) {
    std::printf("short by %s GiB on rank %d; its largest term is %s (%s GiB)\n", gib(m.shortfall->bytes).c_str(),
                m.shortfall->rank, std::string(term_name(m.shortfall->term)).c_str(),
                gib(m.ranks[peak].of(m.shortfall->term)).c_str());
  }
  std::printf(
      "activations of rank %d by the 34 s b h rule: %s GiB (it assumes a GELU MLP of width 4 h, all KV heads and "
      "dropout masks)\n",
      m.peak_rank, gib(a.by_rule[peak]).c_str());
  for (const FrameworkNote& note : refusals_of_stack(a.notes, a.stack, a.layout))
    std::printf("%s %s\n", note.framework.c_str(), note.note.c_str());
}

void print_lines(const Answer& a) {
  if (a.explained < 0) return;
  std::printf("\nrank %d, tensor by tensor (GiB)\n", a.explained);
  for (const MemoryLine& line : a.lines) {
    std::printf("  %-12s %-52s %9s\n", std::string(term_name(line.term)).c_str(), line.what.c_str(),
                gib(line.bytes).c_str());
  }
}

}  // namespace

void add_memory(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("memory", "Bytes on every pipeline rank of a layout, by term");
  auto options = std::make_shared<Options>();
  add_question_options(*verb, options->common);
  add_layout_option(*verb, options->common);
  add_routing_options(*verb, options->routing);
  add_framework_option(*verb, options->framework);
  verb->add_option("--explain", options->explain, "tensor by tensor on this pipeline rank (a number, or peak)");
  verb->footer(
      "Example:\n  shardplan memory --model llama-3.1-405b --cluster h100-sxm --gpus 16384 --layout \"tp8 pp16 vpp8 "
      "zero2\" --seq-len 8k "
      "--global-batch 2048");
  verb->callback([options] {
    const Answer a = answer(*options);
    if (options->common.json()) return print_json(json_of(a));
    print_head(a);
    print_table(a);
    print_verdict(a);
    print_lines(a);
  });
}

}  // namespace shardplan
