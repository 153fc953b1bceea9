#include "layouts/step/step.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/errors.hpp"
#include "base/normal.hpp"
#include "layouts/step/all_ranks.hpp"
#include "layouts/step/data_parallel.hpp"
#include "layouts/step/flops.hpp"
#include "layouts/step/pipeline.hpp"
#include "layouts/step/timeline.hpp"
#include "models/flops.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

/// Multi-token-prediction layers are trained too: their products count like the main model's.
void count_flops(const StepQuestion& q, const std::vector<StageSlice>& slices, StepReport& out) {
  const double tokens = static_cast<double>(q.workload.global_batch) * static_cast<double>(q.workload.seq_len);
  const auto training = [&](AttentionCount count) {
    return tokens * (training_flops(*q.model, q.workload.seq_len, count) +
                     kTrainingOverForward * mtp_flops(*q.model, q.workload.seq_len, count).total());
  };
  out.tokens = tokens;
  out.model_flops = training(AttentionCount::causal);
  out.model_flops_full_attention = training(AttentionCount::full);
  out.hardware_flops = out.model_flops + tokens * recomputed_flops(q, slices);
}

/// The schedule's refusals and the layout's, as the user's mistakes.
void check(const StepQuestion& q) {
  if (const auto why = refuse_layout(q.layout, *q.model, q.workload, q.layout.gpus()))
    throw InputError("--layout", *why);
}

/// Seconds that all ranks wait for the slowest of them, once a step: sd x E[largest of n] x kernel seconds of the
/// busiest rank, n = ranks of the job. Ranks of a tensor group wait in every layer, pipeline ranks at every message,
/// replicas where gradients are reduced: whichever is slow holds them all in the end. A rank's speed is taken as one
/// draw a step (clocks, power limit, temperature); noise from kernel to kernel, which averages out over a step but not
/// over a layer's exchange, and network weather are left out.
double slowest_rank(const StepQuestion& q, const Cost& busiest) {
  const RankSpread& spread = q.options.spread;
  if (q.options.rates == Rates::datasheet || !q.options.on(Effect::jitter) || spread.jitter > 0) return 0;
  double kernels = 0;
  for (const Part part : {Part::gemm, Part::attention, Part::elementwise, Part::experts, Part::vocabulary})
    kernels += busiest.part(part);
  return spread.expected * expected_largest(static_cast<double>(q.layout.gpus())) * kernels;
}

/// Seconds of exposed collectives that cross nodes: what a factor of the network would multiply.
double crossing_seconds(const StepQuestion& q, const Groups& groups, const StepReport& s) {
  double out = 0;
  const auto add = [&](const GroupShape& group, double seconds) { out += group.crosses() ? seconds : 0; };
  add(groups.tp, s.busiest.part(Part::tp));
  add(groups.cp, s.busiest.part(Part::cp));
  // The other transports' kernels have tables of their own, without that factor.
  if (q.layout.transport.value_or(Transport::nccl) == Transport::nccl) add(groups.ep, s.busiest.part(Part::ep));
  add(groups.dense_shard, s.busiest.part(Part::fsdp) + s.reduce_exposed_s + s.gather_exposed_s);
  return out;
}

/// Standard deviation of ln time expected of a constant before any measurement (the fit's priors).
double prior_spread(const char* name) {
  for (const StackConstantRow& row : stack_constant_rows())
    if (std::string_view(row.name) == name) return row.spread;
  for (const MachineConstantRow& row : machine_constant_rows())
    if (row.name == name) return row.spread;
  return 0;
}

/// The interval: what the stack's own runs scattered by when they were left out of a fit, which has the tables' errors
/// in it. On top, independent of it, what is not known of a machine or a stack that few or no runs were measured of:
/// the tables' interval (its GPU), the spread of stacks' compute_factor over the device's time (fewer runs than a
/// factor of its own is fitted on), and that of networks' network_factor over the collectives that cross nodes.
void add_interval(const StepQuestion& q, const Groups& groups, StepReport& out) {
  constexpr double z80 = 1.2816;  // half-width of a normal 80 % interval in standard deviations
  const StackConstants& c = q.stack.constants;
  const MachineConstants& machine = q.pricer->constants();
  out.scatter = q.model->has_moe()                     ? Scatter::moe
                : out.launch_s > 0.1 * out.step_time_s ? Scatter::host
                                                       : Scatter::dense;
  if (q.options.rates == Rates::datasheet) {
    out.low_s = out.high_s = out.step_time_s;
    return;
  }
  const double residual = out.scatter == Scatter::moe    ? c.residual_sd_moe
                          : out.scatter == Scatter::host ? c.residual_sd_host
                                                         : c.residual_sd;
  double variance = std::pow(z80 * residual, 2);
  const auto wider = [&](double half_width, const std::string& why) {
    variance += half_width * half_width;
    out.wider_for.push_back(why);
  };
  const double device = std::max(1e-30, out.busiest.device());
  if (c.fit_rows == 0 || !machine.gpu_fitted)
    wider(0.5 * std::log(std::max(1.0, out.busiest.high / device)),
          machine.gpu_fitted ? "a stack that was never measured" : "a GPU with fewer than 5 measured runs");
  if (c.fit_rows < kRunsOfAStack)
    wider(z80 * prior_spread("compute_factor") * device / out.step_time_s, "a stack with fewer than 5 measured runs");
  const double crossing = crossing_seconds(q, groups, out);
  if (!machine.network_fitted && crossing > 0)
    wider(z80 * prior_spread("network_factor") * crossing / out.step_time_s, "a network that was never measured");
  out.low_s = out.step_time_s * std::exp(-std::sqrt(variance));
  out.high_s = out.step_time_s * std::exp(std::sqrt(variance));
}

/// The stage whose recomputed work lies in this pass, or nothing.
const StageCost* recomputed_by(const StepQuestion& q, const Pipeline& p, const Pass& pass) {
  if (q.layout.recompute == Recompute::none) return nullptr;
  if (pass.kind == PassKind::backward || pass.kind == PassKind::input_grad) return &p.stage(pass.stage);
  return pass.kind == PassKind::overlapped ? &p.stage(pass.stage2) : nullptr;
}

}  // namespace

bool documents_vary(const StepQuestion& q) {
  return q.options.mean_document > 0 && q.options.spread.documents && q.options.on(Effect::jitter) &&
         q.stack.attention != AttentionLibrary::unfused;
}

StepReport simulate_step(const StepQuestion& q) {
  StepReport out;
  check(q);
  const Groups groups = groups_of(q.layout, q.pricer->cluster());
  out.microbatches = microbatches(q.layout, q.workload);
  Pipeline p = build_pipeline(q, groups, out.microbatches);
  const bool uneven = q.options.spread.any() || documents_vary(q), disturbed = q.options.all_ranks || uneven;
  JobReplay job;
  if (disturbed) job = replay_job(q, groups, p);
  const Replay& r = disturbed ? job.merged : p.replay();
  const DataParallel dp(q, groups);

  out.pipeline_s = r.makespan;
  out.hop_s = p.longest_hop();
  out.over_ideal = r.over_ideal();
  out.over_total = r.over_total();
  out.window = r.window();
  double finish = 0, optimizer = 0;
  for (std::size_t rank = 0; rank < r.ranks.size(); ++rank) {
    const Reduction reduction = reduce_on_rank(q, p, r, dp, rank);
    RankStep step;
    step.busy = r.ranks[rank].busy;
    step.pipeline_idle = r.ranks[rank].idle;
    step.reduce_exposed = reduction.exposed;
    step.finish = r.ranks[rank].last_end + reduction.exposed;
    finish = std::max(finish, step.finish);
    if (step.busy > r.ranks[static_cast<std::size_t>(out.busiest_rank)].busy) out.busiest_rank = static_cast<int>(rank);
    LocalParameters held;
    for (const std::int32_t s : p.held_by(static_cast<int>(rank))) held += p.stage(s).parameters;
    optimizer = std::max(optimizer, dp.optimizer(held));
    out.ranks.push_back(step);
  }
  const auto busiest = static_cast<std::size_t>(out.busiest_rank);
  for (std::size_t i = 0; i < p.order().passes[busiest].size(); ++i) {
    const PassWork work = work_of(q, p, p.order().passes[busiest][i]);
    const double times = p.times_run(busiest, i);
    out.busiest.add(work.device, times);
    if (const StageCost* again = recomputed_by(q, p, p.order().passes[busiest][i]))
      out.recompute.add(again->recompute, times);
    out.launch_s += times * work.launch;
    out.blocking_s += times * work.sends;
  }
  const double busy = r.ranks[static_cast<std::size_t>(out.busiest_rank)].busy;
  // Jitter, stragglers, documents: what the slowest replica's rank ran longer than its priced passes.
  if (uneven)
    (q.options.spread.any() ? out.jitter_s : out.documents_s) =
        busy - (out.busiest.device() + out.launch_s + out.blocking_s);
  out.busy_s = busy;
  out.reduce_exposed_s = finish - r.makespan;
  out.bubble_s = q.options.on(Effect::bubble) ? r.makespan - busy : 0;
  out.optimizer_s = optimizer;
  out.gather_exposed_s = gather_exposed(q, p, r, dp);
  if (q.options.rates == Rates::calibrated && q.options.on(Effect::fixed_cost)) out.fixed_s = q.stack.constants.step_s;
  out.slowest_rank_s = slowest_rank(q, out.busiest);
  out.step_time_s = busy + out.bubble_s + out.reduce_exposed_s + out.slowest_rank_s + out.optimizer_s +
                    out.gather_exposed_s + out.fixed_s;
  add_interval(q, groups, out);
  for (std::size_t b = 0; b < kBasisNames.size(); ++b)
    if (out.busiest.basis[b] > 0) out.weakest = static_cast<Basis>(b);
  count_flops(q, p.slices, out);
  if (disturbed) {
    out.job = std::move(job.ranks);
    out.replicas = job.replicas;
    for (JobRank& rank : out.job) rank.finish = out.ranks[static_cast<std::size_t>(rank.pipeline_rank)].finish;
  }
  if (q.options.keep_trace) add_timeline(q, p, r, dp, out);
  return out;
}

}  // namespace shardplan
