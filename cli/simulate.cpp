// shardplan simulate: one layout, one step.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/suggest.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "cli/step_options.hpp"
#include "cli/step_text.hpp"
#include "cli/verbs.hpp"

namespace shardplan {
namespace {

struct Options {
  CommonOptions common;
  StepOptionTexts step;
};

void print_text(const StepQuestion& q, const StepReport& s, const MemoryReport& memory, const CommonOptions& o) {
  std::printf("%s on %lld x %s, sequence %lld, global batch %lld, %s\n", q.model->name.c_str(),
              static_cast<long long>(q.layout.gpus()), q.pricer->cluster().name.c_str(),
              static_cast<long long>(q.workload.seq_len), static_cast<long long>(q.workload.global_batch),
              o.precision.c_str());
  std::printf("layout %s (stack %s, rates %s, network %s)\n\n", layout_text(q.layout).c_str(), q.stack.name.c_str(),
              o.rates.c_str(), o.network.c_str());
  std::printf("step time   %s   (80 %% interval %s to %s)\n", text_of_seconds(s.step_time_s).c_str(),
              text_of_seconds(s.low_s).c_str(), text_of_seconds(s.high_s).c_str());
  std::printf("rate        %s tokens/s per GPU; %s\n", text_of_number(tokens_per_second_per_gpu(q, s), 4).c_str(),
              step_rate_text(q, s).c_str());
  std::printf("bubble      %s over ideal, %s over total, %s of the longest window; %lld micro-batches\n",
              text_of_percent(s.over_ideal).c_str(), text_of_percent(s.over_total).c_str(),
              text_of_percent(s.window).c_str(), static_cast<long long>(s.microbatches));
  std::printf("memory      %s of %s on the fullest rank: %s\n\n", text_of_bytes(memory.peak_bytes()).c_str(),
              text_of_bytes(memory.capacity_bytes).c_str(), memory.fits ? "fits" : "DOES NOT FIT");
  std::printf("where the step goes (pipeline rank %d, the busiest)\n%s", s.busiest_rank,
              step_breakdown_text(s).c_str());
  std::printf("  stands on            ");
  const double device = std::max(1e-30, s.busiest.device());
  for (std::size_t i = 0; i < kBasisNames.size(); ++i)
    if (s.busiest.basis[i] / device > 5e-4)
      std::printf(" %s %s", text_of_percent(s.busiest.basis[i] / device).c_str(), std::string(kBasisNames[i]).c_str());
  std::printf("\n");
  for (const FrameworkNote& note : framework_notes(q.layout, *q.model, q.workload))
    std::printf("note: %s %s\n", note.framework.c_str(), note.note.c_str());
}

void run(const Options& o) {
  const Model model = read_model(o.common);
  const Cluster cluster = load_cluster(o.common.cluster);
  const Workload workload = read_workload(o.common);
  const Pricer pricer(cluster, read_rates(o.common), read_fidelity(o.common));
  StepQuestion q;
  q.model = &model;
  q.pricer = &pricer;
  q.layout = parse_layout(o.common.layout, read_gpus(o.common), "--layout");
  q.workload = workload;
  q.stack = load_stack(o.common.stack, "--stack");
  q.options = read_step_options(o.step, o.common, model, q.workload);
  if (q.layout.gpus() != read_gpus(o.common))
    throw InputError("--layout", "uses " + std::to_string(q.layout.gpus()) + " GPUs, --gpus says " + o.common.gpus);
  const StepReport s = simulate_step(q);
  const MemoryReport memory = memory_of(model, cluster, q.layout, workload, read_memory_options(o.common, q.stack));
  if (!o.common.json()) return print_text(q, s, memory, o.common);
  nlohmann::ordered_json out;
  out["model"] = model.name;
  out["cluster"] = cluster.name;
  out["gpus"] = q.layout.gpus();
  out["layout"] = layout_text(q.layout);
  out["stack"] = q.stack.name;
  out["rates"] = o.common.rates;
  out["network"] = o.common.network;
  add_step_json(out, q, s, memory);
  add_memory_json(out, memory);
  print_json(out);
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("simulate", "One training step of one layout: time, breakdown, bubbles, memory");
  add_question_options(*verb, options->common);
  add_layout_option(*verb, options->common);
  add_step_options(*verb, options->step);
  verb->footer(
      "Example:\n  shardplan simulate --model llama-3.1-70b --cluster h100-sxm --gpus 512 --layout \"tp8 pp4 dp16 "
      "vpp5\" "
      "--seq-len 8k --global-batch 512");
  verb->callback([options] { run(*options); });
}

}  // namespace shardplan
