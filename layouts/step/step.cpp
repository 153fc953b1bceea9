#include "layouts/step/step.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "base/errors.hpp"
#include "layouts/step/price.hpp"
#include "layouts/step/stage_cost.hpp"
#include "models/flops.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

/// Bytes of one pipeline message: 16-bit activations of the micro-batch, sliced over tensor ranks where the sequence is
/// sharded or the stack scatters and gathers.
double message_bytes(const StepQuestion& q) {
  const Layout& l = q.layout;
  const double full =
      2.0 * l.mbs * static_cast<double>(q.workload.seq_len) / l.cp * static_cast<double>(q.model->hidden);
  return l.sequence_parallel() || q.stack.p2p_slices ? full / l.tp : full;
}

/// An order and its compiled replay, kept for the layouts that share them: building one costs ten times its sweep.
struct CompiledOrder {
  Order order;
  Replayer replayer;
};

/// One shelf a thread: a Replayer's buffers are not to be shared. Emptied when it has grown large.
CompiledOrder& compiled_order(const ScheduleRow& schedule, const ScheduleQuestion& ask) {
  constexpr std::size_t kMost = 64;
  using Key = std::tuple<std::string_view, int, int, int, int>;
  thread_local std::map<Key, std::unique_ptr<CompiledOrder>> shelf;
  const Key key{schedule.name, ask.ranks, ask.microbatches, ask.chunks, ask.group};
  const auto found = shelf.find(key);
  if (found != shelf.end()) return *found->second;
  if (shelf.size() >= kMost) shelf.clear();
  ReplayOptions options;
  options.keep_pass_times = true;
  Order order = schedule.order(ask);
  Replayer replayer(order, options);
  return *(shelf[key] = std::make_unique<CompiledOrder>(CompiledOrder{std::move(order), std::move(replayer)}));
}

struct Pipeline {
  CompiledOrder* compiled = nullptr;
  std::vector<StageCost> stages;  // by layer slot
  PassTimes times;
  double hop = 0;

  const Order& order() const { return compiled->order; }
};

double pair_seconds(const StageCost& forward, const StageCost& backward, double contention) {
  const double exchange = forward.forward_a2a + backward.backward_a2a;
  const double compute = forward.forward_s + backward.backward_s - exchange;
  // A pair's all-to-alls run beside its compute, which slows by the SMs that they hold.
  return std::max(compute + contention * std::min(exchange, compute), exchange);
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
  p.stages = price_stages(q, groups, split_stages(l, *q.model));
  if (const auto why = schedule.refuse(ask))
    throw InputError("--layout", "schedule " + std::string(schedule.name) + ": " + *why);
  p.compiled = &compiled_order(schedule, ask);
  const Order& order = p.compiled->order;
  const StepPricer price(q);
  if (l.pp > 1 && q.options.on(Effect::p2p)) {
    p.hop = price.collective(Collective::send_recv, message_bytes(q), groups.hop).seconds;
    if (q.options.rates == Rates::calibrated) p.hop += groups.hop.crosses() ? q.pricer->constants().message_s : 0;
  }
  const double pass = q.options.rates == Rates::calibrated && l.pp > 1 ? q.stack.constants.pass_s : 0;
  const double blocking = q.stack.p2p_overlap ? 0 : p.hop;  // a send that holds the compute stream
  const auto n = static_cast<std::size_t>(order.stages());
  for (auto* v : {&p.times.forward, &p.times.backward, &p.times.input_grad, &p.times.weight_grad, &p.times.overlapped,
                  &p.times.hop_forward, &p.times.hop_backward})
    v->assign(n, 0);
  const int copies = order.parameter_copies;
  const auto slots = static_cast<std::int32_t>(p.stages.size());
  for (std::size_t s = 0; s < n; ++s) {
    const StageCost& stage = p.stages.at(static_cast<std::size_t>(order.layer_slot[s]));
    p.times.forward[s] = stage.forward_s + pass + (order.next[s] >= 0 ? blocking : 0);
    p.times.backward[s] = stage.backward_s + pass + (order.previous[s] >= 0 ? blocking : 0);
    p.times.input_grad[s] = stage.input_grad_s + pass;
    p.times.weight_grad[s] = stage.weight_grad_s;
    p.times.hop_forward[s] = p.times.hop_backward[s] = p.hop;
    // The backward half of a pair belongs to the stage of the other direction on the same rank.
    const std::int32_t partner = copies == 2 ? slots - 1 - order.layer_slot[s] : slots - 1 - order.layer_slot[s];
    p.times.overlapped[s] =
        pair_seconds(stage, p.stages.at(static_cast<std::size_t>(partner)), price.contention(Part::ep)) + pass;
  }
  return p;
}

/// Gradient reduction of one rank. Buckets become ready evenly over the last backward pass of each of its stages.
struct Reduction {
  double exposed = 0, total = 0;
};

class DataParallel {
 public:
  DataParallel(const StepQuestion& q, const Groups& groups) : q_(q), groups_(groups), price_(q) {}

  bool sharded_units() const {
    const int zero = q_.layout.zero_stage();
    return zero == 3 || (zero == 2 && q_.stack.framework == "pytorch");
  }

  /// Seconds to reduce the gradients of these parameters.
  double reduce(const LocalParameters& p, int copies) const {
    if (sharded_units() || !q_.options.on(Effect::dp_communication)) return 0;
    const double bytes = gradient_bytes();
    const Collective op =
        q_.layout.zero_stage() >= 1 && !q_.stack.broadcast_zero1 ? Collective::reduce_scatter : Collective::all_reduce;
    GroupShape dense = groups_.dense_shard, expert = groups_.expert_shard;
    for (GroupShape* g : {&dense, &expert}) {
      if (copies == 2) g->ranks *= 2;  // both copies of a stage are reduced together
    }
    double t =
        price_.collective(op, bytes * p.dense, dense).seconds + price_.collective(op, bytes * p.expert, expert).seconds;
    if (groups_.dense_replica.ranks > 1)
      t += price_.collective(Collective::all_reduce, bytes * p.dense / groups_.dense_shard.ranks, groups_.dense_replica)
               .seconds;
    return t;
  }

  /// Seconds to gather the updated parameters in 16 bits.
  double gather(const LocalParameters& p) const {
    if (sharded_units() || q_.layout.zero_stage() == 0 || !q_.options.on(Effect::dp_communication)) return 0;
    if (q_.stack.broadcast_zero1) {
      const double share = 2 * p.dense / groups_.dense_shard.ranks;
      return groups_.dense_shard.ranks * price_.collective(Collective::broadcast, share, groups_.dense_shard).seconds;
    }
    return price_.collective(Collective::all_gather, 2 * p.dense, groups_.dense_shard).seconds +
           price_.collective(Collective::all_gather, 2 * p.expert, groups_.expert_shard).seconds;
  }

  double optimizer(const LocalParameters& p) const {
    const int zero = q_.layout.zero_stage();
    const double dense = zero >= 1 ? p.dense / groups_.dense_shard.ranks : p.dense;
    const double expert = zero >= 1 ? p.expert / std::max(1, groups_.expert_shard.ranks) : p.expert;
    double t =
        price_.memory(MemoryKernel::optimizer, (dense + expert) * q_.stack.optimizer_bytes_per_parameter).seconds;
    return t;
  }

 private:
  double gradient_bytes() const {
    if (q_.layout.grad_reduce_fp32) return *q_.layout.grad_reduce_fp32 ? 4 : 2;
    return q_.stack.grad_reduce_bytes;
  }

  const StepQuestion& q_;
  const Groups& groups_;
  StepPricer price_;
};

Reduction reduce_on_rank(const StepQuestion& q, const Pipeline& p, const Replay& r, const DataParallel& dp,
                         std::size_t rank) {
  struct Chunk {
    double start, end, seconds, bytes;
  };
  std::vector<Chunk> chunks;
  const auto& passes = p.order().passes[rank];
  Reduction out;
  for (std::size_t s = 0; s < p.order().rank_of_stage.size(); ++s) {
    if (p.order().rank_of_stage[s] != static_cast<std::int32_t>(rank)) continue;
    const StageCost& stage = p.stages[static_cast<std::size_t>(p.order().layer_slot[s])];
    Chunk chunk{0, 0, dp.reduce(stage.parameters, p.order().parameter_copies),
                4 * (stage.parameters.dense + stage.parameters.expert)};
    for (std::size_t i = passes.size(); i-- > 0;) {
      const Pass& pass = passes[i];
      const bool mine = (pass.kind != PassKind::forward && pass.kind != PassKind::input_grad &&
                         pass.kind != PassKind::overlapped && pass.stage == static_cast<std::int32_t>(s)) ||
                        (pass.kind == PassKind::overlapped && pass.stage2 == static_cast<std::int32_t>(s));
      if (!mine) continue;
      chunk.start = r.start[rank][i];
      chunk.end = r.end[rank][i];
      break;
    }
    out.total += chunk.seconds;
    chunks.push_back(chunk);
  }
  const double last = r.ranks[rank].last_end;
  if (!q.stack.overlap_grad_reduce || (!q.stack.overlap_sharded_reduce && q.layout.zero_stage() >= 1)) {
    out.exposed = out.total;
    return out;
  }
  std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.end < b.end; });
  double t = 0;
  for (const Chunk& c : chunks) {
    const int buckets = std::max(1, static_cast<int>(std::min(64.0, std::ceil(c.bytes / q.stack.bucket_bytes))));
    for (int b = 1; b <= buckets; ++b) t = std::max(t, c.start + (c.end - c.start) * b / buckets) + c.seconds / buckets;
  }
  const StepPricer price(q);
  out.exposed = std::max(0.0, t - last);
  double hidden = out.total - std::min(out.total, out.exposed);
  if (q.layout.zero_stage() == 2) {
    // ZeRO 2 keeps only shards of the gradients: every round of micro-batches ends with a reduce-scatter of its chunk.
    // A round is a group of consecutive micro-batches of one chunk (interleaved), or what is in flight (1F1B).
    const std::int64_t group = q.layout.group > 0 ? q.layout.group : q.layout.pp;
    const double rounds = static_cast<double>((microbatches(q.layout, q.workload) + group - 1) / group);
    const double earlier = (rounds - 1) * out.total, room = r.ranks[rank].busy;
    out.exposed += std::max(0.0, earlier - room);
    hidden += std::min(earlier, room);
  }
  out.exposed += price.contention(Part::fsdp) * hidden;
  return out;
}

/// Parameter gathers under the next step's forward: stage by stage, each needed when its first forward pass starts.
double gather_exposed(const StepQuestion& q, const Pipeline& p, const Replay& r, const DataParallel& dp) {
  double worst = 0;
  for (std::size_t rank = 0; rank < p.order().passes.size(); ++rank) {
    double t = 0;
    std::vector<bool> seen(p.order().rank_of_stage.size(), false);
    double late = 0;
    for (std::size_t i = 0; i < p.order().passes[rank].size(); ++i) {
      const Pass& pass = p.order().passes[rank][i];
      if (pass.kind != PassKind::forward && pass.kind != PassKind::overlapped) continue;
      const auto s = static_cast<std::size_t>(pass.stage);
      if (seen[s]) continue;
      seen[s] = true;
      const StageCost& stage = p.stages[static_cast<std::size_t>(p.order().layer_slot[s])];
      const double gather = dp.gather(stage.parameters);
      if (!q.stack.overlap_param_gather || q.options.rates == Rates::datasheet) {
        late += gather;
        continue;
      }
      // Within a stage the first layer's bucket must be there; the rest arrives under the layers before it.
      t += gather;
      const double buckets =
          std::max(1.0, std::ceil(4 * (stage.parameters.dense + stage.parameters.expert) / q.stack.bucket_bytes));
      const double slack = (r.end[rank][i] - r.start[rank][i]) * (1 - 1 / buckets);
      late = std::max(late, t - slack - r.start[rank][i]);
    }
    worst = std::max(worst, late);
  }
  return worst;
}

void count_flops(const StepQuestion& q, StepReport& out) {
  const double tokens = static_cast<double>(q.workload.global_batch) * static_cast<double>(q.workload.seq_len);
  out.tokens = tokens;
  out.model_flops = tokens * training_flops(*q.model, q.workload.seq_len, AttentionCount::causal);
  out.model_flops_full_attention = tokens * training_flops(*q.model, q.workload.seq_len, AttentionCount::full);
  out.hardware_flops = out.model_flops;
}

/// The schedule's refusals and the layout's, as the user's mistakes.
void check(const StepQuestion& q) {
  if (const auto why = refuse_layout(q.layout, *q.model, q.workload, q.layout.gpus()))
    throw InputError("--layout", *why);
}

}  // namespace

double step_lower_bound(const StepQuestion& q) {
  check(q);
  const Groups groups = groups_of(q.layout, q.pricer->cluster());
  const auto m = static_cast<double>(microbatches(q.layout, q.workload));
  const std::vector<StageCost> stages = price_stages(q, groups, split_stages(q.layout, *q.model));
  const ScheduleRow& schedule = find_schedule(q.layout.schedule_name());
  const double contention = StepPricer(q).contention(Part::ep);
  const DataParallel dp(q, groups);
  // A rank is busy with m passes of each of its slices (a bidirectional schedule's two slices share them), and cannot
  // start before the slices ahead of its first have run forward once; with whole backward passes its last gradient then
  // travels home through them (split ones may end on weight gradients instead).
  double bound = 0, ahead = 0, optimizer = 0;
  const bool loop = q.layout.placement() == Placement::loop;
  for (int rank = 0; rank < q.layout.pp; ++rank) {
    double busy = 0;
    LocalParameters held;
    for (int chunk = 0; chunk < q.layout.slices_per_rank(); ++chunk) {
      const auto s = static_cast<std::size_t>(q.layout.slice_of(rank, chunk));
      const StageCost& stage = stages[s];
      const StageCost& partner = stages[stages.size() - 1 - s];
      const double apart = stage.forward_s + std::min(stage.backward_s, stage.input_grad_s + stage.weight_grad_s);
      const double share = q.layout.parameter_copies() == 2 ? 0.5 : 1;
      busy += share * m *
              std::min({apart, pair_seconds(stage, partner, contention), pair_seconds(partner, stage, contention)});
      held += stage.parameters;
    }
    const StageCost& first = stages[static_cast<std::size_t>(q.layout.slice_of(rank, 0))];
    bound = std::max(bound, busy + (loop ? ahead : 0));
    ahead += first.forward_s + (schedule.splits_backward ? 0 : first.backward_s);
    optimizer = std::max(optimizer, dp.optimizer(held));
  }
  if (!q.options.on(Effect::bubble)) bound = 0;
  return bound + optimizer;
}

StepReport simulate_step(const StepQuestion& q) {
  StepReport out;
  check(q);
  const Groups groups = groups_of(q.layout, q.pricer->cluster());
  out.microbatches = microbatches(q.layout, q.workload);
  const Pipeline p = build_pipeline(q, groups, out.microbatches);
  const Replay& r = p.compiled->replayer.run(p.times);
  const DataParallel dp(q, groups);

  out.pipeline_s = r.makespan;
  out.hop_s = p.hop;
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
    for (std::size_t s = 0; s < p.order().rank_of_stage.size(); ++s)
      if (p.order().rank_of_stage[s] == static_cast<std::int32_t>(rank))
        held += p.stages[static_cast<std::size_t>(p.order().layer_slot[s])].parameters;
    optimizer = std::max(optimizer, dp.optimizer(held));
    out.ranks.push_back(step);
  }
  for (const Pass& pass : p.order().passes[static_cast<std::size_t>(out.busiest_rank)]) {
    const auto stage = [&](std::int32_t s) -> const StageCost& {
      return p.stages[static_cast<std::size_t>(p.order().layer_slot[static_cast<std::size_t>(s)])];
    };
    if (pass.kind == PassKind::forward || pass.kind == PassKind::overlapped) out.busiest += stage(pass.stage).forward;
    if (pass.kind == PassKind::input_grad || pass.kind == PassKind::backward)
      out.busiest += stage(pass.stage).input_grad;
    if (pass.kind == PassKind::weight_grad || pass.kind == PassKind::backward)
      out.busiest += stage(pass.stage).weight_grad;
    if (pass.kind == PassKind::overlapped) {
      out.busiest += stage(pass.stage2).input_grad;
      out.busiest += stage(pass.stage2).weight_grad;
    }
  }
  const double busy = r.ranks[static_cast<std::size_t>(out.busiest_rank)].busy;
  out.busy_s = busy;
  out.reduce_exposed_s = finish - r.makespan;
  out.bubble_s = q.options.on(Effect::bubble) ? r.makespan - busy : 0;
  out.optimizer_s = optimizer;
  out.gather_exposed_s = gather_exposed(q, p, r, dp);
  if (q.options.rates == Rates::calibrated && q.options.on(Effect::fixed_cost)) out.fixed_s = q.stack.constants.step_s;
  out.step_time_s = busy + out.bubble_s + out.reduce_exposed_s + out.optimizer_s + out.gather_exposed_s + out.fixed_s;
  // The interval: what the stack's own runs scattered by, which has the tables' errors in it. Without such runs the
  // residual is a prior, and the tables' interval comes on top, independent of it.
  const double z80 = 1.2816;  // half-width of a normal 80 % interval in standard deviations
  const double device = std::max(1e-30, out.busiest.device());
  const double tables = q.stack.constants.fit_rows > 0 ? 0 : std::log(std::max(1.0, out.busiest.high / device));
  const bool experts = q.model->has_moe();
  const double residual = experts ? q.stack.constants.residual_sd_moe : q.stack.constants.residual_sd;
  const double spread = std::sqrt(std::pow(z80 * residual, 2) + 0.25 * tables * tables);
  const bool whiteboard = q.options.rates == Rates::datasheet;
  out.low_s = whiteboard ? out.step_time_s : out.step_time_s * std::exp(-spread);
  out.high_s = whiteboard ? out.step_time_s : out.step_time_s * std::exp(spread);
  for (std::size_t b = 0; b < kBasisNames.size(); ++b)
    if (out.busiest.basis[b] > 0) out.weakest = static_cast<Basis>(b);
  count_flops(q, out);
  return out;
}

}  // namespace shardplan
