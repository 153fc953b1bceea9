#include "layouts/step/all_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "layouts/ranks.hpp"
#include "layouts/step/data_parallel.hpp"
#include "models/documents.hpp"

namespace shardplan {
namespace {

using PassSeconds = std::vector<std::vector<double>>;  // by pipeline rank and position

double pass_seconds(const PassTimes& t, const Pass& pass) {
  const auto s = static_cast<std::size_t>(pass.stage);
  switch (pass.kind) {
    case PassKind::forward:
      return t.forward[s];
    case PassKind::backward:
      return t.backward[s];
    case PassKind::input_grad:
      return t.input_grad[s];
    case PassKind::weight_grad:
      return t.weight_grad[s];
    case PassKind::overlapped:
      return t.overlapped_pair.empty()
                 ? t.overlapped[s]
                 : t.overlapped_pair[s * t.forward.size() + static_cast<std::size_t>(pass.stage2)];
  }
  return 0;
}

PassSeconds priced(const Pipeline& p) {
  PassSeconds out;
  for (const auto& list : p.order().passes) {
    auto& row = out.emplace_back();
    row.reserve(list.size());
    for (const Pass& pass : list) row.push_back(pass_seconds(p.times, pass));
  }
  return out;
}

/// Data-parallel indices that move in step, as sets with their least member as name.
std::vector<int> lockstep(const StepQuestion& q, const Groups& groups) {
  const Layout& l = q.layout;
  std::vector<int> parent(static_cast<std::size_t>(l.dp));
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int d) {
    while (parent[static_cast<std::size_t>(d)] != d) d = parent[static_cast<std::size_t>(d)];
    return d;
  };
  const auto join = [&](int a, int b) {
    const int x = root(a), y = root(b);
    parent[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
  };
  const bool experts = q.model->has_moe() && l.ep * l.etp > 1;
  const bool sharded = DataParallel(q, groups).sharded_units();
  std::int64_t stage = 0, dense = 0;
  int first_of_experts = 0, first_of_shard = 0;
  for (int rank = 0; rank < l.gpus() && (experts || sharded); ++rank) {
    const RankPlace at = place_of(l, rank);
    if (at.pp != 0) continue;
    if (experts) {
      if (stage++ % (std::int64_t{l.ep} * l.etp) == 0) first_of_experts = at.dp;
      join(first_of_experts, at.dp);
    }
    if (sharded && at.tp == 0) {
      if (dense++ % l.dense_shard_ranks() == 0) first_of_shard = at.dp;
      join(first_of_shard, at.dp);
    }
  }
  std::vector<int> out;
  for (int d = 0; d < l.dp; ++d) out.push_back(root(d));
  return out;
}

/// Attention of every micro-batch of every replica over its mean, [dp][micro-batch]; empty where all are alike. A
/// micro-batch has neighbouring sequences, neighbouring replicas neighbouring micro-batches (Megatron's samplers).
/// Context-parallel ranks share a sequence evenly, whatever its documents.
PassSeconds drawn_attention(const StepQuestion& q) {
  if (!documents_vary(q)) return {};
  const Layout& l = q.layout;
  const std::vector<double> one = draw_attention(q.workload.global_batch, static_cast<double>(q.workload.seq_len),
                                                 q.options.mean_document, q.options.spread.seed);
  const auto m = static_cast<std::size_t>(microbatches(l, q.workload)), dp = static_cast<std::size_t>(l.dp),
             mbs = static_cast<std::size_t>(l.mbs);
  PassSeconds out(dp, std::vector<double>(m, 0));
  for (std::size_t i = 0; i < one.size(); ++i) out[i / mbs % dp][i / mbs / dp] += one[i] / static_cast<double>(mbs);
  return out;
}

/// Share of a pass's seconds that are attention's, of its forward half and of its backward half.
struct AttentionShare {
  double first = 0, second = 0;
};
AttentionShare attention_share(const Pipeline& p, const Pass& pass) {
  const StageCost& stage = p.stage(pass.stage);
  const double seconds = pass_seconds(p.times, pass);
  if (!(seconds > 0)) return {};
  const double forward = stage.forward.part(Part::attention) / seconds;
  switch (pass.kind) {
    case PassKind::forward:
      return {forward, 0};
    case PassKind::backward:
      return {(stage.input_grad.part(Part::attention) + stage.weight_grad.part(Part::attention)) / seconds, 0};
    case PassKind::input_grad:
      return {stage.input_grad.part(Part::attention) / seconds, 0};
    case PassKind::weight_grad:
      return {stage.weight_grad.part(Part::attention) / seconds, 0};
    case PassKind::overlapped: {
      const StageCost& other = p.stage(pass.stage2);
      return {forward, (other.input_grad.part(Part::attention) + other.weight_grad.part(Part::attention)) / seconds};
    }
  }
  return {};
}

/// What a pipeline rank's passes take over their priced seconds, by position, for a replica's micro-batches. A pass
/// held by the host's launches is lengthened like one held by the device.
std::vector<double> document_factors(const Pipeline& p, int pp, const std::vector<double>& attention) {
  std::vector<double> out;
  for (const Pass& pass : p.order().passes[static_cast<std::size_t>(pp)]) {
    const AttentionShare share = attention_share(p, pass);
    double factor = 1 + share.first * (attention[static_cast<std::size_t>(pass.microbatch)] - 1);
    if (pass.microbatch2 >= 0) factor += share.second * (attention[static_cast<std::size_t>(pass.microbatch2)] - 1);
    out.push_back(factor);
  }
  return out;
}

/// Raises `most` to this rank's factors, pass by pass; `documents` = what its micro-batches take over the mean, or
/// empty.
void draw(const RankSpread& spread, std::int64_t rank, const std::vector<double>& documents,
          std::vector<double>& most) {
  const auto slow = spread.stragglers.find(rank);
  const double factor = slow == spread.stragglers.end() ? 1 : slow->second;
  const double variance = std::log1p(spread.jitter * spread.jitter), sigma = std::sqrt(variance);
  Random random(Random(spread.seed).next() ^ (static_cast<std::uint64_t>(rank) * 0xD1342543DE82EF95ULL));
  for (std::size_t i = 0; i < most.size(); ++i) {
    const double own = spread.jitter > 0 ? factor * std::exp(sigma * random.normal() - variance / 2) : factor;
    most[i] = std::max(most[i], documents.empty() ? own : own * documents[i]);
  }
}

/// Slowest member's factor of each pass of a lockstep block.
PassSeconds block_factors(const StepQuestion& q, const Pipeline& p, const PassSeconds& attention,
                          const std::vector<int>& members) {
  const Layout& l = q.layout;
  PassSeconds out;
  for (int pp = 0; pp < l.pp; ++pp) {
    auto& row = out.emplace_back(p.order().passes[static_cast<std::size_t>(pp)].size(), 0.0);
    for (const int dp : members) {
      std::vector<double> documents;
      if (!attention.empty()) documents = document_factors(p, pp, attention[static_cast<std::size_t>(dp)]);
      if (!q.options.spread.any()) {  // tensor and context ranks take what their replica takes
        draw(q.options.spread, rank_at(l, {0, 0, dp, pp}), documents, row);
        continue;
      }
      for (int cp = 0; cp < l.cp; ++cp)
        for (int tp = 0; tp < l.tp; ++tp) draw(q.options.spread, rank_at(l, {tp, cp, dp, pp}), documents, row);
    }
  }
  return out;
}

void merge(Replay& merged, const Replay& one, bool first) {
  if (first) {
    merged = one;
    return;
  }
  const auto raise = [](std::vector<std::vector<double>>& into, const std::vector<std::vector<double>>& from) {
    for (std::size_t r = 0; r < into.size(); ++r)
      for (std::size_t i = 0; i < into[r].size(); ++i) into[r][i] = std::max(into[r][i], from[r][i]);
  };
  raise(merged.start, one.start);
  raise(merged.end, one.end);
  for (std::size_t r = 0; r < merged.ranks.size(); ++r) {
    merged.ranks[r].first_start = std::min(merged.ranks[r].first_start, one.ranks[r].first_start);
    merged.ranks[r].last_end = std::max(merged.ranks[r].last_end, one.ranks[r].last_end);
    merged.ranks[r].busy = std::max(merged.ranks[r].busy, one.ranks[r].busy);
  }
  if (one.makespan > merged.makespan) merged.messages = one.messages;
  merged.makespan = std::max(merged.makespan, one.makespan);
  merged.max_stage_window = std::max(merged.max_stage_window, one.max_stage_window);
}

void check_stragglers(const StepQuestion& q) {
  for (const auto& [rank, factor] : q.options.spread.stragglers)
    if (rank < 0 || rank >= q.layout.gpus())
      throw InputError("--straggler", "rank " + std::to_string(rank) + " is not among the job's " +
                                          std::to_string(q.layout.gpus()) + " ranks");
}

class JobReplayer {
 public:
  JobReplayer(const StepQuestion& q, const Groups& groups, const Pipeline& p)
      : q_(q), groups_(groups), p_(p), attention_(drawn_attention(q)) {}

  JobReplay run() {
    const Layout& l = q_.layout;
    const std::vector<int> block_of = lockstep(q_, groups_);
    if (q_.options.all_ranks) out_.ranks.resize(static_cast<std::size_t>(l.gpus()));
    std::set<int> touched;
    for (const auto& [rank, factor] : q_.options.spread.stragglers)
      touched.insert(block_of[static_cast<std::size_t>(place_of(l, static_cast<int>(rank)).dp)]);
    std::int64_t equal = 0;  // blocks that the representative stands for
    for (int block = 0; block < l.dp; ++block) {
      if (block_of[static_cast<std::size_t>(block)] != block) continue;
      const bool own = q_.options.spread.jitter > 0 || !attention_.empty() || touched.contains(block);
      if (!own && !q_.options.all_ranks && ++equal > 1) {
        count(representative_, 1);
        continue;
      }
      std::vector<int> members;
      for (int d = block; d < l.dp; ++d)
        if (block_of[static_cast<std::size_t>(d)] == block) members.push_back(d);
      replay_block(members, own);
      if (!own) representative_ = last_;
    }
    out_.replicas.mean /= static_cast<double>(out_.replicas.replicas);
    for (RankReplay& rank : out_.merged.ranks) rank.idle = out_.merged.makespan - rank.busy;
    // The slowest replica's times stay in the replayer: the critical path is asked of them.
    if (!slowest_.empty()) p_.compiled->replayer.run_recorded(slowest_, p_.times.hop_forward, p_.times.hop_backward);
    return std::move(out_);
  }

 private:
  void replay_block(const std::vector<int>& members, bool own) {
    const PassSeconds factors = own ? block_factors(q_, p_, attention_, members) : PassSeconds();
    const Layout& l = q_.layout;
    if (!q_.options.all_ranks) return replay_pipeline(p_, factors, nullptr, {});
    bool first = true;
    for (const int dp : members) {
      for (int cp = 0; cp < l.cp; ++cp) {
        for (int tp = 0; tp < l.tp; ++tp) {
          const Pipeline mine = build_pipeline(q_, groups_, microbatches(l, q_.workload));
          replay_pipeline(mine, factors, &out_.ranks, {tp, cp, dp, 0}, first);
          first = false;
        }
      }
    }
  }

  void replay_pipeline(const Pipeline& p, const PassSeconds& factors, std::vector<JobRank>* ranks, RankPlace at,
                       bool counted = true) {
    PassSeconds seconds = priced(p);
    if (!factors.empty())
      for (std::size_t r = 0; r < seconds.size(); ++r)
        for (std::size_t i = 0; i < seconds[r].size(); ++i) seconds[r][i] *= factors[r][i];
    const Replay& replayed = p.compiled->replayer.run_recorded(seconds, p.times.hop_forward, p.times.hop_backward);
    last_ = replayed.makespan;
    const bool slower = out_.replicas.replayed == 0 || replayed.makespan > out_.merged.makespan;
    merge(out_.merged, replayed, out_.replicas.replayed == 0);
    ++out_.replicas.replayed;
    if (counted) count(replayed.makespan, 1);
    for (int pp = 0; ranks != nullptr && pp < q_.layout.pp; ++pp) {
      at.pp = pp;
      const int number = rank_at(q_.layout, at);
      const RankReplay& r = replayed.ranks[static_cast<std::size_t>(pp)];
      (*ranks)[static_cast<std::size_t>(number)] = {number, at.tp, at.cp, at.dp, pp, r.busy, r.idle, r.last_end, 0};
    }
    if (slower) slowest_ = std::move(seconds);
  }

  void count(double end, std::int64_t times) {
    ReplicaSpread& s = out_.replicas;
    s.least = s.replicas == 0 ? end : std::min(s.least, end);
    s.most = std::max(s.most, end);
    s.mean += end * static_cast<double>(times);
    s.replicas += times;
  }

  const StepQuestion& q_;
  const Groups& groups_;
  const Pipeline& p_;
  const PassSeconds attention_;
  JobReplay out_;
  PassSeconds slowest_;
  double last_ = 0, representative_ = 0;
};

}  // namespace

JobReplay replay_job(const StepQuestion& q, const Groups& groups, const Pipeline& representative) {
  check_stragglers(q);
  return JobReplayer(q, groups, representative).run();
}

}  // namespace shardplan
