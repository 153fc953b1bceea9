// A step of the executor on all its ranks, and the calibration of its passes.
#include <algorithm>
#include <limits>
#include <thread>

#include "base/errors.hpp"
#include "hardware/measure/executor_state.hpp"
#include "hardware/measure/ring.hpp"

namespace shardplan {

void PipelineExecutor::Impl::reset(Rank& rank) {
  for (auto& [key, act] : rank.live) rank.free.push_back(act);
  rank.live.clear();
  rank.state.assign(static_cast<std::size_t>(order.stages() * m), ChunkState::nothing);
  std::fill(rank.gradient.begin(), rank.gradient.end(), 0.0f);
  rank.clock = RankClock();
  rank.record = RankRecord();
  rank.until_input = rank.until_weight = 0;
}

void PipelineExecutor::Impl::check_finished(const Rank& rank) const {
  for (int s = 0; s < order.stages(); ++s) {
    if (rank_of(s) != rank.rank) continue;
    for (int i = 0; i < m; ++i) {
      if (rank.state[static_cast<std::size_t>(s * m + i)] != ChunkState::finished)
        throw InputError("schedule", "rank " + std::to_string(rank.rank) + " never finishes micro-batch " +
                                         std::to_string(i) + " on stage " + std::to_string(s));
    }
  }
}

void PipelineExecutor::Impl::all_reduce(Rank& rank) {
  const std::vector<int>& first = ring_first[static_cast<std::size_t>(rank.rank)];
  const double before = rank.clock.cpu();
  ring_all_reduce(*transport, rank.thread, rank.replica, first, rank.gradient, rank.clock);
  rank.record.all_reduce_cpu = rank.clock.cpu() - before;
  for (const std::int64_t n :
       ring_channel_floats(options.replicas, rank.replica, static_cast<std::int64_t>(rank.gradient.size()))) {
    ++rank.record.all_reduce_messages;
    rank.record.all_reduce_bytes += n * static_cast<std::int64_t>(sizeof(float));
  }
}

void PipelineExecutor::Impl::run_rank(Rank& rank) {
  for (const Pass& pass : order.passes[static_cast<std::size_t>(rank.rank)])
    rank.record.passes.push_back(run_pass(rank, pass));
  check_finished(rank);
  if (options.replicas > 1) all_reduce(rank);
  transport->finish(rank.thread);
  rank.record.virtual_end = rank.clock.virtual_now();
  rank.record.activation_buffers = static_cast<std::int64_t>(rank.pool.size());
}

void PipelineExecutor::Impl::report_stuck() const {
  std::string what = "the step is stuck:";
  const int pipeline_channels = options.replicas * order.stages() * m * 2;
  int named = 0;
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    const int c = transport->stuck_on()[t];
    if (c < 0 || named == 4) continue;
    what += std::string(named++ == 0 ? " rank " : "; rank ") + std::to_string(ranks[t].rank) + " waits for ";
    if (c >= pipeline_channels) {
      what += "the gradient all-reduce";
      continue;
    }
    const int stage = c / 2 / m % order.stages();
    what += std::string(c % 2 == 0 ? "the activation" : "the gradient") + " of micro-batch " +
            std::to_string(c / 2 % m) + " from stage " + std::to_string(stage);
  }
  throw InputError("schedule", what);
}

StepRecord PipelineExecutor::Impl::summary(const std::vector<RankUsage>& usage) {
  StepRecord step;
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  step.cpu_over_wall = 1;
  const std::vector<int>& local = transport->local_ranks();
  for (std::size_t t = 0; t < local.size(); ++t) {
    Rank& rank = ranks[static_cast<std::size_t>(local[t])];
    if (!rank.record.passes.empty()) begin = std::min(begin, rank.record.passes.front().wall_start);
    step.virtual_makespan = std::max(step.virtual_makespan, rank.record.virtual_end);
    end = std::max(end, usage[t].wall_end);
    const double share = options.spin ? usage[t].cpu / (usage[t].wall_end - usage[t].wall_start)
                                      : (rank.clock.wall() > 0 ? rank.clock.cpu() / rank.clock.wall() : 1);
    step.cpu_over_wall = std::min(step.cpu_over_wall, share);
  }
  for (Rank& rank : ranks) {
    for (PassRecord& pass : rank.record.passes) {
      pass.wall_start -= begin;
      pass.wall_end -= begin;
    }
    step.ranks.push_back(std::move(rank.record));
  }
  step.wall_makespan = end - begin;
  step.checksum = options.digest ? checksum.load() : 0;
  return step;
}

StepRecord PipelineExecutor::Impl::step() {
  for (Rank& rank : ranks) reset(rank);
  transport->begin_step();
  checksum = 0;
  waiting = true;
  const auto usage =
      team->run([&](int t) { run_rank(ranks[static_cast<std::size_t>(t)]); }, [&] { transport->abort(); });
  if (transport->stuck()) report_stuck();
  return summary(usage);
}

void PipelineExecutor::Impl::calibrate_rank(Rank& rank, bool split, bool cpu,
                                            std::vector<std::vector<std::vector<double>>>& out) {
  const auto run = [&](PassKind kind, int stage, int microbatch) {
    const PassRecord record = run_pass(rank, Pass{kind, stage, microbatch, -1, -1});
    out[static_cast<std::size_t>(kind)][static_cast<std::size_t>(stage)].push_back(cpu ? record.cpu() : record.wall());
    // Ranks that share cores find their caches used by others after every wait of a step: so they do here.
    if (!options.spin) std::this_thread::yield();
  };
  for (int s = 0; s < order.stages(); ++s) {
    if (rank_of(s) != rank.rank) continue;
    for (int i = 0; i < m; ++i) run(PassKind::forward, s, i);
    for (int i = 0; i < m; ++i) run(split ? PassKind::input_grad : PassKind::backward, s, i);
    for (int i = 0; split && i < m; ++i) run(PassKind::weight_grad, s, i);
  }
}

PipelineExecutor::Samples PipelineExecutor::Impl::calibrate(int rounds, bool split, bool cpu) {
  using ByKind = std::vector<std::vector<std::vector<double>>>;
  std::vector<ByKind> own(ranks.size(),
                          ByKind(4, std::vector<std::vector<double>>(static_cast<std::size_t>(order.stages()))));
  waiting = false;
  for (int round = 0; round < rounds; ++round) {
    for (Rank& rank : ranks) reset(rank);
    team->run(
        [&](int t) {
          calibrate_rank(ranks[static_cast<std::size_t>(t)], split, cpu, own[static_cast<std::size_t>(t)]);
        },
        [] {});
  }
  ByKind all(4, std::vector<std::vector<double>>(static_cast<std::size_t>(order.stages())));
  for (const ByKind& one : own) {
    for (std::size_t kind = 0; kind < 4; ++kind) {
      for (std::size_t s = 0; s < all[kind].size(); ++s)
        all[kind][s].insert(all[kind][s].end(), one[kind][s].begin(), one[kind][s].end());
    }
  }
  return {all[0], all[1], all[2], all[3]};
}

}  // namespace shardplan
