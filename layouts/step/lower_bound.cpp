// A time that no replay of a layout beats, from the prices that its replay would use.
//
// A rank is busy with m passes of each of its slices (a bidirectional schedule's two slices share them), and cannot
// start before the slices ahead of its first have run forward once; with whole backward passes its last gradient then
// travels home through them (split ones may end on weight gradients instead). Left out, all of it >= 0: messages, waits
// between passes, gradient reduction and parameter gathers that nothing hides, the wait for the slowest of equal ranks.
#include <algorithm>
#include <vector>

#include "base/errors.hpp"
#include "layouts/step/data_parallel.hpp"
#include "layouts/step/pipeline.hpp"
#include "layouts/step/price.hpp"
#include "layouts/step/step.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

double apart(const StageCost& s) { return s.forward_s + std::min(s.backward_s, s.input_grad_s + s.weight_grad_s); }

/// Schedules whose two slices run as overlapped pairs: with its mirror image, in either order, or apart.
double pair_or_apart(const std::vector<StageCost>& stages, std::size_t s, double contention) {
  const StageCost& stage = stages[s];
  const StageCost& mirror = stages[stages.size() - 1 - s];
  return std::min({apart(stage), pair_seconds(stage, mirror, contention), pair_seconds(mirror, stage, contention)});
}

/// Busy seconds of a rank under ep-overlap=1f1b, a micro-batch: every forward pass runs alone or beside the backward
/// pass of some slice of the rank. Each forward pass is given a part of its pair, each backward pass the least that any
/// pair leaves it, and neither more than it takes alone: whatever the pairs are, they take no less than the sum.
double paired_busy(const std::vector<StageCost>& stages, const std::vector<std::size_t>& held, PairTable& pairs) {
  std::vector<double> forward;
  double sum = 0;
  for (const std::size_t f : held) {
    const double alone = stages[f].forward_s + stages[f].backward_s;
    const double share = alone > 0 ? std::min(1.0, pairs.of(f, f).seconds / alone) : 1;
    forward.push_back(share * stages[f].forward_s);
    sum += forward.back();
  }
  for (const std::size_t b : held) {
    double least = stages[b].backward_s;
    for (std::size_t i = 0; i < held.size(); ++i) least = std::min(least, pairs.of(held[i], b).seconds - forward[i]);
    sum += least;
  }
  return sum;
}

}  // namespace

double step_lower_bound(const StepQuestion& q) {
  if (const auto why = refuse_layout(q.layout, *q.model, q.workload, q.layout.gpus()))
    throw InputError("--layout", *why);
  return step_lower_bound(q, split_stages(q.layout, *q.model));
}

double step_lower_bound(const StepQuestion& q, const std::vector<StageSlice>& slices) {
  const Layout& l = q.layout;
  const Groups groups = groups_of(l, q.pricer->cluster());
  const auto m = static_cast<double>(microbatches(l, q.workload));
  const std::vector<StageCost> stages = price_stages(q, groups, slices);
  const ScheduleRow& schedule = find_schedule(l.schedule_name());
  const double contention = StepPricer(q).contention(Part::ep);
  const DataParallel dp(q, groups);
  PairTable pairs(stages, l.delay_wgrad.value_or(true));
  double bound = 0, ahead = 0, optimizer = 0;
  const bool loop = l.placement() == Placement::loop, paired = l.ep_overlap == EpOverlap::batch_1f1b;
  // Where documents vary, the first micro-batch may be a short one; the longest replica's all together are not.
  const bool waits = loop && !documents_vary(q);
  std::vector<std::size_t> held;
  for (int rank = 0; rank < l.pp; ++rank) {
    held.clear();
    LocalParameters parameters;
    double busy = 0;
    for (int chunk = 0; chunk < l.slices_per_rank(); ++chunk) {
      const auto s = static_cast<std::size_t>(l.slice_of(rank, chunk));
      held.push_back(s);
      parameters += stages[s].parameters;
      const double share = l.parameter_copies() == 2 ? 0.5 : 1;
      busy += share * m * (loop ? apart(stages[s]) : pair_or_apart(stages, s, contention));
    }
    if (paired) busy = std::min(busy, m * paired_busy(stages, held, pairs));
    const StageCost& first = stages[held.front()];
    bound = std::max(bound, busy + (waits ? ahead : 0));
    ahead += first.forward_s + (schedule.splits_backward ? 0 : first.backward_s);
    optimizer = std::max(optimizer, dp.optimizer(parameters));
  }
  if (!q.options.on(Effect::bubble)) bound = 0;
  const bool fixed = q.options.rates == Rates::calibrated && q.options.on(Effect::fixed_cost);
  return bound + optimizer + (fixed ? q.stack.constants.step_s : 0);
}

}  // namespace shardplan
