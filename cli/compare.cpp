// shardplan compare: where a real step's trace spends its time, and where a simulated step differs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/compare_streams.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "cli/step_options.hpp"
#include "cli/verbs.hpp"
#include "hardware/import_trace.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {
namespace {

struct Options {
  std::string trace, steps = "1";
  CommonOptions common;
  StepOptionTexts step;
};

struct Difference {
  std::string part;
  double measured = 0, simulated = 0;
  double gap() const { return simulated - measured; }
};

struct PartOfClass {
  std::string_view kernel_class;
  std::string_view part;
};

// Kernel classes of a trace to the parts of a simulated step; all that is not named is elementwise. Communication is
// compared by what is exposed, because a simulated step counts only that.
constexpr std::array kPartOfClass = {
    PartOfClass{"gemm", "products"},
    PartOfClass{"wgrad_gemm", "products"},
    PartOfClass{"grouped_gemm", "expert products"},
    PartOfClass{"attention", "attention"},
    PartOfClass{"attention_backward", "attention"},
    PartOfClass{"optimizer", "optimizer"},
};

std::string_view part_of(const std::string& kernel_class) {
  for (const PartOfClass& row : kPartOfClass) {
    if (row.kernel_class == kernel_class) return row.part;
  }
  return "elementwise";
}

/// Largest difference first.
std::vector<Difference> differences(const TraceSummary& trace, const StepReport& s, double steps) {
  std::vector<Difference> out = {
      {"products", 0, s.busiest.part(Part::gemm) + s.busiest.part(Part::vocabulary)},
      {"expert products", 0, s.busiest.part(Part::experts)},
      {"attention", 0, s.busiest.part(Part::attention)},
      {"elementwise", 0, s.busiest.part(Part::elementwise)},
      {"optimizer", 0, s.optimizer_s},
      {"exposed communication", trace.exposed / steps,
       s.busiest.part(Part::tp) + s.busiest.part(Part::cp) + s.busiest.part(Part::ep) + s.busiest.part(Part::fsdp) +
           s.reduce_exposed_s + s.gather_exposed_s},
      {"idle: bubbles, launches, fixed", trace.idle / steps,
       s.bubble_s + s.busy_s - s.busiest.device() + s.slowest_rank_s + s.fixed_s},
  };
  for (const TraceClass& c : trace.classes) {
    if (c.communication) continue;
    const auto row =
        std::find_if(out.begin(), out.end(), [&](const Difference& d) { return d.part == part_of(c.name); });
    row->measured += c.sum / steps;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Difference& a, const Difference& b) { return std::abs(a.gap()) > std::abs(b.gap()); });
  return out;
}

StepReport simulated(const Options& o) {
  const Model model = read_model(o.common);
  const Cluster cluster = load_cluster(o.common.cluster);
  const Pricer pricer(cluster, read_rates(o.common), read_fidelity(o.common));
  StepQuestion q;
  q.model = &model;
  q.pricer = &pricer;
  q.layout = parse_layout(o.common.layout, read_gpus(o.common), "--layout");
  q.workload = read_workload(o.common);
  q.stack = read_stack(o.common);
  q.options = read_step_options(o.step, o.common, model, q.workload);
  q.options.keep_trace = true;
  return simulate_step(q);
}

nlohmann::ordered_json trace_json(const ProfilerTrace& t, const TraceSummary& s) {
  nlohmann::ordered_json classes = nlohmann::ordered_json::array(), streams = classes, phases = classes;
  for (const TraceClass& c : s.classes) {
    classes.push_back({{"class", c.name},
                       {"communication", c.communication},
                       {"count", c.count},
                       {"sum_s", c.sum},
                       {"median_s", c.median},
                       {"min_s", c.min},
                       {"max_s", c.max}});
  }
  for (const TraceStream& r : s.streams)
    streams.push_back({{"stream", r.stream}, {"count", r.count}, {"busy_s", r.busy}});
  for (const TracePhaseTime& p : s.phases) {
    phases.push_back({{"phase", p.name},
                      {"communication", p.communication},
                      {"start_s", p.start},
                      {"span_s", p.span},
                      {"busy_s", p.busy},
                      {"waiting_s", p.waiting},
                      {"count", p.ops}});
  }
  nlohmann::ordered_json out = {{"device", t.device},
                                {"world_size", t.world_size},
                                {"total_s", s.total},
                                {"compute_busy_s", s.compute_busy},
                                {"communication_busy_s", s.communication_busy},
                                {"any_busy_s", s.any_busy},
                                {"overlapped_s", s.overlapped},
                                {"exposed_communication_s", s.exposed},
                                {"idle_s", s.idle},
                                {"classes", classes},
                                {"streams", streams},
                                {"phases", phases}};
  out["pair"] = nullptr;
  if (const auto replayed = replay_phases(s)) {
    out["pair"] = {{"forward_parts_s", s.forward_parts},
                   {"backward_parts_s", s.backward_parts},
                   {"serial_s", s.serial_parts()},
                   {"measured_s", s.total},
                   {"replayed_s", *replayed},
                   {"error", *replayed / s.total - 1}};
  }
  return out;
}

void print_trace(const ProfilerTrace& t, const TraceSummary& s) {
  std::printf("%s%zu GPU operations on %zu streams, %s from the first to the last\n",
              t.device.empty() ? "" : (t.device + ": ").c_str(), t.ops.size(), s.streams.size(),
              text_of_seconds(s.total).c_str());
  std::printf(
      "  compute busy           %s\n  communication busy     %s\n  both at once           %s\n  exposed communication  "
      "%s\n  idle                   %s\n",
      text_of_seconds(s.compute_busy).c_str(), text_of_seconds(s.communication_busy).c_str(),
      text_of_seconds(s.overlapped).c_str(), text_of_seconds(s.exposed).c_str(), text_of_seconds(s.idle).c_str());
  if (const auto replayed = replay_phases(s)) {
    std::printf(
        "  forward + backward     %s + %s = %s one after the other; measured %s; replayed from the parts %s (%+.1f "
        "%%)\n",
        text_of_seconds(s.forward_parts).c_str(), text_of_seconds(s.backward_parts).c_str(),
        text_of_seconds(s.serial_parts()).c_str(), text_of_seconds(s.total).c_str(), text_of_seconds(*replayed).c_str(),
        100 * (*replayed / s.total - 1));
  }
  std::printf("\n%-22s %7s %10s %10s\n", "class", "count", "sum", "median");
  for (const TraceClass& c : s.classes) {
    std::printf("%-22s %7d %10s %10s%s\n", c.name.c_str(), c.count, text_of_seconds(c.sum).c_str(),
                text_of_seconds(c.median).c_str(),
                c.name == "a2a_notify" ? "   waiting for others, not bandwidth"
                : c.communication      ? "   communication"
                                       : "");
  }
  std::printf("\n");
  for (const TraceStream& r : s.streams)
    std::printf("stream %-6d %6d operations, busy %s\n", r.stream, r.count, text_of_seconds(r.busy).c_str());
}

void print_differences(const std::vector<Difference>& rows, double measured, double simulated) {
  std::printf("\n%-32s %10s %10s %10s   (a step; largest difference first)\n", "part", "measured", "simulated",
              "difference");
  for (const Difference& d : rows) {
    std::printf("%-32s %10s %10s %+10.3f ms\n", d.part.c_str(), text_of_seconds(d.measured).c_str(),
                text_of_seconds(d.simulated).c_str(), 1e3 * d.gap());
  }
  std::printf("%-32s %10s %10s %+10.1f %%\n", "step", text_of_seconds(measured).c_str(),
              text_of_seconds(simulated).c_str(), 100 * (simulated / measured - 1));
}

void print_streams(const std::vector<StreamDifference>& rows) {
  std::printf("\n%-18s %-12s %21s %21s %12s   (a step; largest difference first)\n", "stream", "in the trace",
              "measured busy/exposed", "simulated", "difference");
  for (const StreamDifference& d : rows) {
    std::string streams;
    for (std::size_t i = 0; i < d.streams.size() && i < 4; ++i)
      streams += (i > 0 ? "," : "") + std::to_string(d.streams[i]);
    if (d.streams.size() > 4) streams += ",..";
    std::printf("%-18s %-12s %10s %10s %10s %10s %+9.3f ms\n", d.lane.c_str(), streams.empty() ? "-" : streams.c_str(),
                text_of_seconds(d.measured_busy).c_str(), text_of_seconds(d.measured_exposed).c_str(),
                d.simulated_busy ? text_of_seconds(*d.simulated_busy).c_str() : "-",
                text_of_seconds(d.simulated_exposed).c_str(), 1e3 * d.gap());
  }
  std::printf("exposed: while no compute stream works; - : the simulation does not say what is hidden\n");
}

nlohmann::ordered_json streams_json(const std::vector<StreamDifference>& rows) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const StreamDifference& d : rows) {
    out.push_back({{"lane", d.lane},
                   {"streams", d.streams},
                   {"measured_busy_s", d.measured_busy},
                   {"measured_exposed_s", d.measured_exposed},
                   {"simulated_busy_s",
                    d.simulated_busy ? nlohmann::ordered_json(*d.simulated_busy) : nlohmann::ordered_json(nullptr)},
                   {"simulated_exposed_s", d.simulated_exposed},
                   {"difference_s", d.gap()}});
  }
  return out;
}

void run(const Options& o) {
  const double steps = static_cast<double>(parse_count(o.steps, "--steps"));
  if (steps < 1) throw InputError("--steps", "must be at least 1");
  const ProfilerTrace trace = read_trace(o.trace);
  const TraceSummary summary = summarise_trace(trace);
  nlohmann::ordered_json out = trace_json(trace, summary);
  if (!o.common.json()) print_trace(trace, summary);
  if (!o.common.layout.empty()) {
    const StepReport step = simulated(o);
    const auto rows = differences(summary, step, steps);
    const auto streams = compare_streams(trace, step, steps);
    if (!o.common.json()) {
      print_differences(rows, summary.total / steps, step.step_time_s);
      return print_streams(streams);
    }
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Difference& d : rows)
      list.push_back(
          {{"part", d.part}, {"measured_s", d.measured}, {"simulated_s", d.simulated}, {"difference_s", d.gap()}});
    out["step"] = {{"measured_s", summary.total / steps},
                   {"simulated_s", step.step_time_s},
                   {"error", step.step_time_s / (summary.total / steps) - 1},
                   {"differences", list},
                   {"streams", streams_json(streams)}};
  }
  if (o.common.json()) print_json(out);
}

}  // namespace

void add_compare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("compare", "Where a real step's trace spends its time, and where a simulated step differs");
  verb->add_option(
          "trace", options->trace,
          "a Kineto or Chrome trace (JSON or .gz, as torch.profiler writes it) or an nsys report (--type sqlite)")
      ->required();
  verb->add_option("--steps", options->steps, "training steps that the trace covers (default 1)");
  add_question_options(*verb, options->common);
  add_layout_option(*verb, options->common);
  for (const char* name : {"--model", "--cluster", "--gpus", "--layout"}) {
    if (CLI::Option* option = verb->get_option_no_throw(name)) option->required(false);
  }
  add_step_options(*verb, options->step);
  verb->footer(
      "Without --layout: the trace alone.\nExample:\n  shardplan compare trace.json --model llama-3.1-8b --cluster "
      "h100-sxm --gpus 8 --layout \"dp8\" --global-batch 64");
  verb->callback([options] { run(*options); });
}

}  // namespace shardplan
