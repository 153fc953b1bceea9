#include "layouts/step/data_parallel.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

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
    Chunk chunk{0, 0, dp.reduce(stage.parameters), 4 * (stage.parameters.dense + stage.parameters.expert)};
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
    out.buckets.push_back({last, last + out.total});
    return out;
  }
  std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.end < b.end; });
  double t = 0;
  for (const Chunk& c : chunks) {
    const int buckets = std::max(1, static_cast<int>(std::min(64.0, std::ceil(c.bytes / q.stack.bucket_bytes))));
    for (int b = 1; b <= buckets && c.seconds > 0; ++b) {
      const double start = std::max(t, c.start + (c.end - c.start) * b / buckets);
      t = start + c.seconds / buckets;
      out.buckets.push_back({start, t});
    }
  }
  const StepPricer price(q);
  out.exposed = std::max(0.0, t - last);
  double hidden = out.total - std::min(out.total, out.exposed);
  if (q.layout.zero_stage() == 2) {
    // ZeRO 2 keeps only shards of the gradients: every round of micro-batches ends with a reduce-scatter of its chunk.
    // A round is a group of consecutive micro-batches of one chunk (interleaved), or what is in flight (1F1B).
    const std::int64_t group = q.layout.group > 0 ? q.layout.group : q.layout.pp;
    const std::int64_t rounds = (microbatches(q.layout, q.workload) + group - 1) / group;
    const double earlier = static_cast<double>(rounds - 1) * out.total, room = r.ranks[rank].busy;
    out.exposed += std::max(0.0, earlier - room);
    hidden += std::min(earlier, room);
  }
  out.exposed += price.contention(Part::fsdp) * hidden;
  return out;
}

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

}  // namespace shardplan
