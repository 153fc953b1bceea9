#include "hardware/measure/cpu_jobs.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "hardware/measure/block_kernels.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_step.hpp"
#include "hardware/measure/rank_threads.hpp"
#include "hardware/measure/ring.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

/// Two ranks, their transport and their data; they stay, so that no sample pays for first pages or new threads.
struct Pair {
  std::vector<std::vector<float>> data;
  std::unique_ptr<RankTransport> transport;
  std::unique_ptr<RankTeam> team;
  std::vector<RankClock> clocks{2};

  Pair(std::vector<ChannelEnds> channels, std::int64_t floats, const RankTransportMaker& maker)
      : data(2, std::vector<float>(static_cast<std::size_t>(floats), 1.0f)),
        transport(maker(std::move(channels), 2, false)),
        team(std::make_unique<RankTeam>(transport->local_ranks(), true)) {}

  /// Virtual time of the later one of the ranks' `body`.
  template <class Body>
  double run(const Body& body) {
    transport->begin_step();
    std::fill(clocks.begin(), clocks.end(), RankClock());
    team->run(
        [&](int r) {
          body(r, clocks[static_cast<std::size_t>(r)], data[static_cast<std::size_t>(r)]);
          transport->finish(r);
        },
        [&] { transport->abort(); });
    return std::max(clocks[0].virtual_now(), clocks[1].virtual_now());
  }
};

/// One way of a message there and back: copied in by the sender and out by the receiver, CPU seconds of both.
std::function<double()> message_run(std::int64_t floats, const RankTransportMaker& maker) {
  auto pair = std::make_shared<Pair>(std::vector<ChannelEnds>{{0, 1, floats}, {1, 0, floats}}, floats, maker);
  return [pair] {
    const double both = pair->run([&](int r, RankClock& clock, std::vector<float>& own) {
      const auto receive = [&] {
        clock.begin(pair->transport->wait(r, 1 - r));
        pair->transport->copy_out(1 - r, own.data());
        clock.end();
      };
      if (r == 1) receive();
      clock.begin();
      pair->transport->copy_in(r, own.data());
      clock.end();
      pair->transport->ring(r, clock.virtual_now());
      if (r == 0) receive();
    });
    return both / 2;
  };
}

std::function<double()> all_reduce_run(std::int64_t floats, const RankTransportMaker& maker) {
  std::vector<ChannelEnds> channels;
  const std::vector<int> first = add_ring_channels(channels, ranks_up_to(2), floats);
  auto pair = std::make_shared<Pair>(std::move(channels), floats, maker);
  return [pair, first] {
    return pair->run([&](int r, RankClock& clock, std::vector<float>& own) {
      // By the rank itself, as it writes its gradients before they are reduced.
      std::fill(own.begin(), own.end(), 1.0f);
      ring_all_reduce(*pair->transport, r, r, first, own, clock);
    });
  };
}

/// Half of `floats` to either rank, the own one included: `floats` = what a rank sends in all, as nccl-tests counts.
std::function<double()> all_to_all_run(std::int64_t floats, const RankTransportMaker& maker) {
  std::vector<ChannelEnds> channels;
  for (int s = 0; s < 2; ++s) {
    for (int d = 0; d < 2; ++d) channels.push_back({s, d, floats / 2});
  }
  auto pair = std::make_shared<Pair>(std::move(channels), 2 * floats, maker);
  return [pair, floats] {
    return pair->run([&](int r, RankClock& clock, std::vector<float>& own) {
      std::fill_n(own.begin(), floats, 1.0f);  // by the rank itself, as it sorts its rows before they are sent
      clock.begin();
      for (int d = 0; d < 2; ++d) pair->transport->copy_in(2 * r + d, own.data() + d * floats / 2);
      clock.end();
      for (int d = 0; d < 2; ++d) pair->transport->ring(2 * r + d, clock.virtual_now());
      double latest = 0;
      for (int s = 0; s < 2; ++s) latest = std::max(latest, pair->transport->wait(r, 2 * s + r));
      clock.begin(latest);
      for (int s = 0; s < 2; ++s) pair->transport->copy_out(2 * s + r, own.data() + floats + s * floats / 2);
      clock.end();
    });
  };
}

StepJob exchange_job(const std::string& kind, std::int64_t floats, const RankTransportMaker& maker,
                     const std::string& transport) {
  StepJob job;
  job.point.kernel = kind;
  job.point.words = {{"dtype", "fp32"}, {"transport", transport}};
  job.point.bytes = 4.0 * static_cast<double>(floats);
  job.point.numbers = {{"bytes", job.point.bytes}, {"ranks", 2}};
  job.run = kind == "send-recv"    ? message_run(floats, maker)
            : kind == "all-reduce" ? all_reduce_run(floats, maker)
                                   : all_to_all_run(floats, maker);
  return job;
}

MeasuredPoint step_point(const std::string& schedule, const BlockShape& s) {
  MeasuredPoint p;
  p.kernel = "step";
  p.words = {{"schedule", schedule}, {"clock", "virtual: compute measured, waiting computed"}};
  p.numbers = {{"tokens", static_cast<double>(s.tokens)},
               {"hidden", static_cast<double>(s.hidden)},
               {"inner", static_cast<double>(s.inner)}};
  return p;
}

StepJob pipeline_job(const std::string& schedule, int ranks, int microbatches, int replicas, const BlockShape& shape,
                     const RankTransportMaker& maker) {
  const ScheduleRow& row = find_schedule(schedule);
  ScheduleQuestion q;
  q.ranks = ranks;
  q.microbatches = microbatches;
  q.chunks = row.default_chunks;
  ExecutorOptions options;
  options.shape = shape;
  options.blocks_per_slot = 2 / q.chunks;
  options.replicas = replicas;
  options.transport = maker;
  options.pin = true;  // a core a rank, as messages were timed: two ranks of one core exchange several times faster
  auto executor = std::make_shared<PipelineExecutor>(row.order(q), options);
  StepJob job{step_point(schedule, shape), [executor] { return executor->step().virtual_makespan; }, {}};
  job.point.numbers.insert({{"ranks", static_cast<double>(ranks)},
                            {"microbatches", static_cast<double>(microbatches)},
                            {"replicas", static_cast<double>(replicas)},
                            {"chunks", static_cast<double>(q.chunks)},
                            {"blocks", static_cast<double>(2 * ranks)}});
  job.point.flops = 3 * shape.flops() * 2.0 * ranks * microbatches * replicas;
  return job;
}

StepJob expert_job(int experts_per_rank, double skew, const BlockShape& block, const RankTransportMaker& maker) {
  ExpertStepShape shape;
  shape.ranks = 2;
  shape.experts_per_rank = experts_per_rank;
  shape.block = block;
  shape.skew = skew;
  shape.pin = true;
  auto experts = std::make_shared<ExpertStep>(shape, maker);
  StepJob job{step_point("experts", block), [experts] { return experts->step().virtual_makespan; }, {}};
  job.point.numbers.insert({{"ranks", static_cast<double>(shape.ranks)},
                            {"experts_per_rank", static_cast<double>(shape.experts_per_rank)},
                            {"top_k", static_cast<double>(shape.top_k)},
                            {"layers", static_cast<double>(shape.layers)},
                            {"skew", shape.skew},
                            {"seed", static_cast<double>(shape.seed)}});
  const double router = 2.0 * static_cast<double>(block.tokens * block.hidden) * shape.experts();
  job.point.flops = 3 * (block.flops() * shape.top_k + router) * shape.layers * shape.ranks;
  return job;
}

}  // namespace

std::vector<StepJob> exchange_jobs(bool quick, const RankTransportMaker& maker, const std::string& transport) {
  std::vector<StepJob> jobs;
  for (std::int64_t floats = 256; floats <= (quick ? 1 << 18 : 1 << 20); floats *= 4) {
    for (const char* kind : {"send-recv", "all-reduce", "all-to-all"})
      jobs.push_back(exchange_job(kind, floats, maker, transport));
  }
  return jobs;
}

std::vector<StepJob> step_jobs(const RankTransportMaker& maker) {
  std::vector<StepJob> jobs;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1"}) {
    for (const int ranks : {2, 4}) {
      if (ranks == 2 || usable_cores() >= 4) jobs.push_back(pipeline_job(schedule, ranks, 4, 1, {64, 128, 128}, maker));
    }
  }
  jobs.push_back(pipeline_job("1f1b", 1, 4, 2, {32, 128, 128}, maker));
  for (const double skew : {0.0, 0.5}) jobs.push_back(expert_job(4, skew, {128, 128, 128}, maker));
  return jobs;
}

void run_steps(std::vector<StepJob>& jobs, int samples) {
  for (StepJob& job : jobs) {
    job.run();
    for (int i = 0; i < samples; ++i) job.samples.push_back(job.run());
  }
}

}  // namespace shardplan
