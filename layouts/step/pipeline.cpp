#include "layouts/step/pipeline.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

#include "base/errors.hpp"
#include "layouts/activations.hpp"
#include "layouts/ranks.hpp"
#include "layouts/step/price.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

/// Bytes of one pipeline message: activations of the micro-batch (2 bytes, FP32 4), sliced over tensor ranks where the
/// sequence is sharded or the stack scatters and gathers.
double message_bytes(const StepQuestion& q) {
  const Layout& l = q.layout;
  const double full = wide_bytes(q.workload.precision) * l.mbs * static_cast<double>(q.workload.seq_len) / l.cp *
                      static_cast<double>(q.model->hidden);
  return l.sequence_parallel() || q.stack.p2p_slices ? full / l.tp : full;
}

/// One shelf a thread: a Replayer's buffers are not to be shared. Emptied when it has grown large.
CompiledOrder& compiled_order(const ScheduleRow& schedule, const ShortStep& step) {
  const ScheduleQuestion& ask = step.question;
  constexpr std::size_t kMost = 64;
  using Key = std::tuple<std::string_view, int, int, int, int, bool, bool>;
  thread_local std::map<Key, std::unique_ptr<CompiledOrder>> shelf;
  const Key key{schedule.name, ask.ranks, ask.microbatches, ask.chunks, ask.group, ask.overlap_pairs, step.periods > 0};
  const auto found = shelf.find(key);
  if (found != shelf.end()) return *found->second;
  if (shelf.size() >= kMost) shelf.clear();
  ReplayOptions options;
  options.keep_pass_times = true;
  Order order = schedule.order(ask);
  Replayer replayer(order, options);
  auto fresh = std::make_unique<CompiledOrder>(CompiledOrder{std::move(order), std::move(replayer)});
  if (step.periods > 0) fresh->steady = steady_order(fresh->order, step.period);
  return *(shelf[key] = std::move(fresh));
}

/// Whole, or without most of the steady state where order and times have one. `p` has its times.
void choose_length(Pipeline& p, const ScheduleRow& schedule, const ScheduleQuestion& ask) {
  for (int longer = 0;; ++longer) {
    const ShortStep step = short_step(ask, longer);
    p.compiled = &compiled_order(schedule, step);
    if (step.periods == 0) return;
    if (!p.compiled->steady) break;
    if (const auto seconds = steady_seconds(*p.compiled->steady, p.compiled->replayer.run(p.times))) {
      p.periods = step.periods;
      p.period_s = *seconds;
      return;
    }
  }
  p.compiled = &compiled_order(schedule, ShortStep{ask});
}

}  // namespace

namespace {

/// Seconds of a pair's messages that run beside what is left of it: both leave before the delayed weight gradients of
/// its last attention block (Megatron core, combined_1f1b.py and model_chunk_schedule_plan.py: post_forward on the
/// communication stream, backward_dw of the first layer behind post_backward). The least over the stages; counted for
/// the few messages of warm-up and cool-down too.
double hidden_message(const StepQuestion& q, const std::vector<StageCost>& stages) {
  if (!q.layout.delay_wgrad.value_or(true)) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const StageCost& stage : stages)
    if (!stage.lanes.empty()) least = std::min(least, stage.lanes.front().attention_weights);
  return std::isfinite(least) ? least : 0;
}

/// Messages between neighbouring virtual stages, each at the rate of what joins its two ranks; `message_s` on top
/// between nodes.
void price_hops(const StepQuestion& q, const Groups& groups, bool paired, Pipeline& p) {
  const Order& order = p.order();
  const auto n = static_cast<std::size_t>(order.stages());
  p.hop_next.assign(n, 0);
  p.hop_previous.assign(n, 0);
  if (q.layout.pp == 1 || !q.options.on(Effect::p2p)) return;
  const StepPricer price(q);
  const std::vector<bool> crosses = crossing_hops(q.layout, q.pricer->cluster());
  const double hidden = paired && q.stack.p2p_overlap && !q.stack.p2p_copies ? hidden_message(q, p.stages) : 0;
  std::array<double, 2> seconds{};  // inside a node, between nodes
  for (const bool between : {false, true}) {
    if (std::find(crosses.begin(), crosses.end(), between) == crosses.end()) continue;
    const int together = between ? 1 : 2;  // of the two ranks, in one node
    const double nics = groups.hop.nics_per_domain / groups.hop.ranks_per_domain;
    double hop = price.collective(Collective::send_recv, message_bytes(q), {2, together, together * nics}).seconds;
    if (between && q.options.rates == Rates::calibrated) hop += q.pricer->constants().message_s;
    seconds[between ? 1 : 0] = std::max(0.0, hop - hidden);
  }
  const auto hop = [&](std::int32_t from, std::int32_t to) {
    if (to < 0) return 0.0;
    const std::int32_t a = order.rank_of_stage[static_cast<std::size_t>(from)],
                       b = order.rank_of_stage[static_cast<std::size_t>(to)];
    if (a == b) return 0.0;
    // Neighbours, or the last and the first rank.
    const std::int32_t low = std::min(a, b), at = std::max(a, b) - low == 1 ? low : q.layout.pp - 1;
    return seconds[crosses[static_cast<std::size_t>(at)] ? 1 : 0];
  };
  for (std::int32_t s = 0; s < order.stages(); ++s) {
    p.hop_next[static_cast<std::size_t>(s)] = hop(s, order.next[static_cast<std::size_t>(s)]);
    p.hop_previous[static_cast<std::size_t>(s)] = hop(s, order.previous[static_cast<std::size_t>(s)]);
  }
}

/// Every forward and backward pass that may meet on a rank, whichever of the orders of a step pairs them.
void price_pairs(const StepQuestion& q, Pipeline& p) {
  const Order& order = p.order();
  const std::int32_t n = order.stages();
  PairTable pairs(p.stages, q.layout.delay_wgrad.value_or(true));
  const auto slot = [&](std::int32_t s) {
    return static_cast<std::size_t>(order.layer_slot[static_cast<std::size_t>(s)]);
  };
  p.pair_device.assign(static_cast<std::size_t>(n) * static_cast<std::size_t>(n), 0);
  p.times.overlapped_pair = p.pair_device;
  for (std::int32_t f = 0; f < n; ++f) {
    for (std::int32_t b = 0; b < n; ++b) {
      if (order.rank_of_stage[static_cast<std::size_t>(f)] != order.rank_of_stage[static_cast<std::size_t>(b)])
        continue;
      const PairTime& pair = pairs.of(slot(f), slot(b));
      const auto at = static_cast<std::size_t>(f) * static_cast<std::size_t>(n) + static_cast<std::size_t>(b);
      p.pair_device[at] = pair.device;
      p.times.overlapped_pair[at] =
          pair.seconds + p.pass_s + p.held(PassKind::forward, f) + p.held(PassKind::backward, b);
    }
  }
}

}  // namespace

double pair_seconds(const StageCost& forward, const StageCost& backward, double contention) {
  const double exchange = forward.forward_a2a + backward.backward_a2a;
  const double compute = forward.forward_s + backward.backward_s - exchange;
  // A pair's all-to-alls run beside its compute, which slows by the SMs that they hold.
  return std::max(compute + contention * std::min(exchange, compute), exchange);
}

PairTime layered_pair(const StageCost& forward, const StageCost& backward, bool delayed) {
  Cost apart = forward.forward;
  apart += backward.input_grad;
  apart += backward.weight_grad;
  double outside = apart.device();
  for (const LayerLanes& lanes : forward.lanes) outside -= lanes.forward();
  for (const LayerLanes& lanes : backward.lanes) outside -= lanes.backward();
  PairTime out;
  out.device = outside + overlapped_seconds(forward.lanes, backward.lanes, delayed);
  apart.hide(Part::ep, apart.device() - out.device);
  out.seconds = apart.seconds();
  return out;
}

namespace {

/// Alike for every pair that they may be in.
bool same_passes(const StageCost& a, const StageCost& b) {
  const auto same = [](const Cost& x, const Cost& y) { return x.parts == y.parts && x.host == y.host; };
  return same(a.forward, b.forward) && same(a.input_grad, b.input_grad) && same(a.weight_grad, b.weight_grad) &&
         a.lanes == b.lanes;
}

}  // namespace

PairTable::PairTable(const std::vector<StageCost>& stages, bool delayed) : stages_(stages), delayed_(delayed) {}

const PairTime& PairTable::of(std::size_t forward, std::size_t backward) {
  for (std::size_t s = kind_.size(); s < stages_.size(); ++s) {
    std::size_t first = 0;
    while (first < s && (kind_[first] != first || !same_passes(stages_[first], stages_[s]))) ++first;
    kind_.push_back(first);
  }
  const auto [at, fresh] = known_.try_emplace({kind_[forward], kind_[backward]});
  if (fresh) at->second = layered_pair(stages_[forward], stages_[backward], delayed_);
  return at->second;
}

Pipeline build_pipeline(const StepQuestion& q, const Groups& groups, std::int64_t microbatches) {
  Pipeline p;
  const Layout& l = q.layout;
  const ScheduleRow& schedule = find_schedule(l.schedule_name());
  ScheduleQuestion ask;
  ask.ranks = l.pp;
  ask.microbatches = static_cast<int>(microbatches);
  ask.chunks = schedule.fixed_chunks ? schedule.default_chunks : l.vpp;
  ask.group = l.group;
  const bool paired = ask.overlap_pairs = l.ep_overlap == EpOverlap::batch_1f1b;
  p.slices = split_stages(l, *q.model);
  p.stages = price_stages(q, groups, p.slices);
  if (const auto why = schedule.refuse(ask))
    throw InputError("--layout", "schedule " + std::string(schedule.name) + ": " + *why);
  const bool each_pass = q.options.keep_trace || q.options.all_ranks || q.options.spread.any() || documents_vary(q);
  p.compiled = &compiled_order(schedule, each_pass ? ShortStep{ask} : short_step(ask));
  const Order& order = p.compiled->order;
  const StepPricer price(q);
  p.copies = q.stack.p2p_copies;
  p.blocking = !q.stack.p2p_copies && !q.stack.p2p_overlap;
  price_hops(q, groups, paired, p);
  const double pass = p.pass_s = q.options.rates == Rates::calibrated && l.pp > 1 ? q.stack.constants.pass_s : 0;
  const auto n = static_cast<std::size_t>(order.stages());
  for (auto* v : {&p.times.forward, &p.times.backward, &p.times.input_grad, &p.times.weight_grad, &p.times.overlapped,
                  &p.times.hop_forward, &p.times.hop_backward})
    v->assign(n, 0);
  const auto slots = static_cast<std::int32_t>(p.stages.size());
  for (std::size_t s = 0; s < n; ++s) {
    const StageCost& stage = p.stages.at(static_cast<std::size_t>(order.layer_slot[s]));
    const auto at = static_cast<std::int32_t>(s);
    p.times.forward[s] = stage.forward_s + pass + p.held(PassKind::forward, at);
    p.times.backward[s] = stage.backward_s + pass + p.held(PassKind::backward, at);
    p.times.input_grad[s] = stage.input_grad_s + pass + p.held(PassKind::input_grad, at);
    p.times.weight_grad[s] = stage.weight_grad_s;
    if (!p.copies) {
      p.times.hop_forward[s] = p.hop_next[s];
      p.times.hop_backward[s] = p.hop_previous[s];
    }
    // The backward half of a pair belongs to the stage of the other direction on the same rank.
    const std::int32_t partner = slots - 1 - order.layer_slot[s];
    p.times.overlapped[s] =
        pair_seconds(stage, p.stages.at(static_cast<std::size_t>(partner)), price.contention(Part::ep)) + pass +
        p.held(PassKind::overlapped, at);
  }
  if (paired) price_pairs(q, p);
  if (!each_pass) choose_length(p, schedule, ask);
  return p;
}

double Pipeline::held(PassKind kind, std::int32_t stage) const {
  const auto s = static_cast<std::size_t>(stage);
  const double copied = copies ? (hop_next[s] + hop_previous[s]) / 2 : 0;
  switch (kind) {
    case PassKind::forward:
      return (blocking ? hop_next[s] : 0) + copied;
    case PassKind::backward:
      return (blocking ? hop_previous[s] : 0) + copied;
    case PassKind::input_grad:
      return copied;
    case PassKind::overlapped:  // its halves have neighbours alike
      return 2 * copied;
    default:
      return 0;
  }
}

double Pipeline::longest_hop() const {
  double longest = 0;
  for (const double hop : hop_next) longest = std::max(longest, hop);
  return longest;
}

const Replay& Pipeline::replay() {
  const Replay& r = compiled->replayer.run(times);
  if (periods == 0) return r;
  longer_ = extended(*compiled->steady, r, period_s, periods);
  return longer_;
}

double Pipeline::times_run(std::size_t rank, std::size_t position) const {
  if (periods == 0) return 1;
  const SteadyOrder& s = *compiled->steady;
  const auto at = static_cast<std::int32_t>(position);
  return at < s.cut[rank] && at >= s.cut[rank] - s.passes[rank] ? 1 + static_cast<double>(periods) : 1;
}

std::vector<std::int32_t> Pipeline::held_by(int rank) const {
  std::vector<std::int32_t> out;
  for (std::size_t s = 0; s < order().rank_of_stage.size(); ++s)
    if (order().rank_of_stage[s] == rank) out.push_back(static_cast<std::int32_t>(s));
  return out;
}

PassWork work_of(const StepQuestion& q, const Pipeline& p, const Pass& pass) {
  PassWork out;
  const StageCost& stage = p.stage(pass.stage);
  double seconds = 0;  // before bookkeeping and sends
  switch (pass.kind) {
    case PassKind::forward:
      out.device = stage.forward;
      seconds = stage.forward_s;
      break;
    case PassKind::backward:
      out.device = stage.input_grad;
      out.device += stage.weight_grad;
      seconds = stage.backward_s;
      break;
    case PassKind::input_grad:
      out.device = stage.input_grad;
      seconds = stage.input_grad_s;
      break;
    case PassKind::weight_grad:
      out.device = stage.weight_grad;
      return {out.device, stage.weight_grad_s - out.device.device(), 0};
    case PassKind::overlapped: {
      const StageCost& other = p.stage(pass.stage2);
      out.device = stage.forward;
      out.device += other.input_grad;
      out.device += other.weight_grad;
      if (!p.pair_device.empty()) {
        const std::size_t n = p.order().rank_of_stage.size();
        const std::size_t at = static_cast<std::size_t>(pass.stage) * n + static_cast<std::size_t>(pass.stage2);
        out.sends = p.held(PassKind::forward, pass.stage) + p.held(PassKind::backward, pass.stage2);
        out.device.hide(Part::ep, std::max(0.0, out.device.device() - p.pair_device[at]));
        out.launch = p.times.overlapped_pair[at] - out.sends - out.device.device();
        return out;
      }
      const double apart = stage.forward_s + other.backward_s;
      // The pair's time is kept by the stage of its forward half, with the partner that the placement gives it.
      out.sends = p.held(pass.kind, pass.stage);
      seconds = p.times.overlapped[static_cast<std::size_t>(pass.stage)] - p.pass_s - out.sends;
      out.launch = apart - out.device.device();
      out.device.hide(Part::ep, std::min(apart - seconds, out.device.part(Part::ep)));
      out.launch += p.pass_s;
      return out;
    }
  }
  (void)q;
  out.sends = p.held(pass.kind, pass.stage);
  out.launch = seconds - out.device.device() + p.pass_s;
  return out;
}

}  // namespace shardplan
