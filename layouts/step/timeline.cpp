#include "layouts/step/timeline.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace shardplan {
namespace {

CriticalPath critical_path_of(const StepQuestion& q, const Pipeline& p, const StepReport& s) {
  CriticalPath out;
  double finish = -1;
  for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
    if (s.ranks[rank].finish <= finish) continue;
    finish = s.ranks[rank].finish;
    out.last_rank = static_cast<int>(rank);
  }
  std::map<std::pair<int, PassKind>, CriticalShare> shares;
  double end = 0;
  for (const CriticalPass& c : p.compiled->replayer.critical_path(out.last_rank)) {
    const Pass& pass = p.order().passes[static_cast<std::size_t>(c.rank)][static_cast<std::size_t>(c.position)];
    CriticalShare& share = shares[{c.rank, pass.kind}];
    share.rank = c.rank;
    share.kind = pass.kind;
    ++share.passes;
    share.seconds += c.end - c.start;
    share.work += work_of(q, p, pass).device;
    out.sends_s += c.start - end;
    end = c.end;
  }
  for (auto& [key, share] : shares) out.shares.push_back(share);
  std::stable_sort(out.shares.begin(), out.shares.end(),
                   [](const CriticalShare& a, const CriticalShare& b) { return a.seconds > b.seconds; });
  out.reduction_s = finish - end;
  out.slowest_rank_s = s.slowest_rank_s;
  out.optimizer_s = s.optimizer_s;
  out.gather_s = s.gather_exposed_s;
  out.fixed_s = s.fixed_s;
  return out;
}

constexpr int kCompute = 0, kMessages = 1, kCollectives = 2;

void add_gathers(const Pipeline& p, const DataParallel& dp, int rank, Trace& trace) {
  double t = 0;
  for (const std::int32_t s : p.held_by(rank)) {
    const double seconds = dp.gather(p.stage(s).parameters);
    if (seconds > 0)
      trace.slices.push_back(
          {rank, kCollectives, t, seconds, "parameter gather, stage " + std::to_string(s), "parameter_gather"});
    t += seconds;
  }
}

void add_reductions(const Reduction& r, int rank, double shift, double finish, Trace& trace) {
  double last = 0;
  for (std::size_t i = 0; i < r.buckets.size(); ++i) {
    const Interval& b = r.buckets[i];
    trace.slices.push_back({rank, kCollectives, shift + b.start, b.end - b.start,
                            "gradient reduction, bucket " + std::to_string(i), "gradient_reduction"});
    last = std::max(last, b.end);
  }
  // Contention with the backward pass, and earlier rounds of reduce-scatters (ZeRO 2) that found no room.
  if (r.exposed > 0 && finish - last > 1e-9 * finish && last > 0)
    trace.slices.push_back({rank, kCollectives, shift + last, finish - last,
                            "gradient reduction: slowed, earlier rounds", "gradient_reduction"});
}

}  // namespace

void add_timeline(const StepQuestion& q, const Pipeline& p, const Replay& r, const DataParallel& dp, StepReport& out) {
  out.critical = critical_path_of(q, p, out);
  Trace trace = trace_of(p.order(), r);
  const double shift = out.gather_exposed_s;
  for (TraceSlice& s : trace.slices) s.start += shift;
  for (TraceFlow& f : trace.flows) {
    f.from_time += shift;
    f.to_time += shift;
  }
  double all_reduced = 0;
  for (const RankStep& rank : out.ranks) all_reduced = std::max(all_reduced, rank.finish);
  all_reduced += out.slowest_rank_s;
  const int replicas = q.layout.tp * q.layout.cp * q.layout.dp;
  for (TraceThread& t : trace.threads)
    t.process_name = "pipeline rank " + std::to_string(t.process) + " (of " + std::to_string(replicas) + " GPUs)";
  for (int rank = 0; rank < q.layout.pp; ++rank) {
    const std::string process = "pipeline rank " + std::to_string(rank) + " (of " + std::to_string(replicas) + " GPUs)";
    trace.threads.push_back({rank, kCollectives, process, "gradients and parameters"});
    add_gathers(p, dp, rank, trace);
    add_reductions(reduce_on_rank(q, p, r, dp, static_cast<std::size_t>(rank)), rank, shift,
                   out.ranks[static_cast<std::size_t>(rank)].finish, trace);
    LocalParameters held;
    for (const std::int32_t s : p.held_by(rank)) held += p.stage(s).parameters;
    // The global gradient norm is a barrier: every rank steps when the last one's gradients are reduced.
    const double seconds = dp.optimizer(held);
    if (seconds > 0) trace.slices.push_back({rank, kCompute, shift + all_reduced, seconds, "optimizer", "optimizer"});
    if (out.fixed_s > 0)
      trace.slices.push_back({rank, kCompute, shift + all_reduced + out.optimizer_s, out.fixed_s,
                              "host: data, clipping, logging", "fixed"});
  }
  out.trace = std::make_shared<const Trace>(std::move(trace));
}

}  // namespace shardplan
