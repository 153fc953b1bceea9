#include "hardware/measure/cpu_jobs.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "hardware/measure/block_kernels.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_step.hpp"
#include "hardware/measure/mailbox.hpp"
#include "hardware/measure/rank_threads.hpp"
#include "hardware/measure/ring.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

/// Two ranks, their mailbox and their data; they stay, so that no sample pays for first pages or new threads.
struct Pair {
  std::vector<int> first;  // each rank's first channel of the ring
  std::vector<std::vector<float>> data;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<RankTeam> team;
  std::vector<RankClock> clocks{2};

  Pair(const std::vector<std::int64_t>& lengths, std::int64_t floats)
      : data(2, std::vector<float>(static_cast<std::size_t>(floats), 1.0f)),
        mailbox(std::make_unique<Mailbox>(lengths, 2, false)),
        team(std::make_unique<RankTeam>(2, true)) {}

  /// CPU and virtual time of each rank's `body`.
  template <class Body>
  void run(const Body& body) {
    mailbox->begin_step();
    std::fill(clocks.begin(), clocks.end(), RankClock());
    team->run(
        [&](int r) {
          body(r, clocks[static_cast<std::size_t>(r)], data[static_cast<std::size_t>(r)]);
          mailbox->finish(r);
        },
        [&] { mailbox->abort(); });
  }
};

/// One way of a message there and back: copied in by the sender and out by the receiver, CPU seconds of both.
double message_seconds(Pair& pair) {
  pair.run([&](int r, RankClock& clock, std::vector<float>& own) {
    const auto receive = [&] {
      clock.begin(pair.mailbox->wait(r, 1 - r));
      pair.mailbox->copy_out(1 - r, own.data());
      clock.end();
    };
    if (r == 1) receive();
    clock.begin();
    pair.mailbox->copy_in(r, own.data());
    clock.end();
    pair.mailbox->ring(r, clock.virtual_now());
    if (r == 0) receive();
  });
  return pair.clocks[0].virtual_now() / 2;
}

double all_reduce_seconds(Pair& pair) {
  pair.run([&](int r, RankClock& clock, std::vector<float>& own) {
    std::fill(own.begin(), own.end(), 1.0f);  // by the rank itself, as it writes its gradients before they are reduced
    ring_all_reduce(*pair.mailbox, r, r, pair.first, own, clock);
  });
  return std::max(pair.clocks[0].virtual_now(), pair.clocks[1].virtual_now());
}

StepJob exchange_job(const std::string& kind, std::int64_t floats) {
  StepJob job;
  job.point.kernel = kind;
  job.point.words = {{"dtype", "fp32"}, {"transport", "threads and mailbox"}};
  job.point.bytes = 4.0 * static_cast<double>(floats);
  job.point.numbers = {{"bytes", job.point.bytes}, {"ranks", 2}};
  if (kind == "send-recv") {
    auto pair = std::make_shared<Pair>(std::vector<std::int64_t>{floats, floats}, floats);
    job.run = [pair] { return message_seconds(*pair); };
    return job;
  }
  std::vector<std::int64_t> lengths;
  std::vector<int> first;
  for (int r = 0; r < 2; ++r) {
    first.push_back(static_cast<int>(lengths.size()));
    for (const std::int64_t n : ring_channel_floats(2, r, floats)) lengths.push_back(n);
  }
  auto pair = std::make_shared<Pair>(lengths, floats);
  pair->first = first;
  job.run = [pair] { return all_reduce_seconds(*pair); };
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

StepJob pipeline_job(const std::string& schedule, int ranks, int microbatches, int replicas, const BlockShape& shape) {
  const ScheduleRow& row = find_schedule(schedule);
  ScheduleQuestion q;
  q.ranks = ranks;
  q.microbatches = microbatches;
  q.chunks = row.default_chunks;
  ExecutorOptions options;
  options.shape = shape;
  options.blocks_per_slot = 2 / q.chunks;
  options.replicas = replicas;
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

StepJob expert_job(int experts_per_rank, double skew, const BlockShape& block) {
  ExpertStepShape shape;
  shape.ranks = 2;
  shape.experts_per_rank = experts_per_rank;
  shape.block = block;
  shape.skew = skew;
  shape.pin = true;
  auto experts = std::make_shared<ExpertStep>(shape);
  StepJob job{step_point("experts", block), [experts] { return experts->step().virtual_makespan; }, {}};
  job.point.numbers.insert({{"ranks", static_cast<double>(shape.ranks)},
                            {"experts_per_rank", static_cast<double>(shape.experts_per_rank)},
                            {"top_k", static_cast<double>(shape.top_k)},
                            {"layers", static_cast<double>(shape.layers)},
                            {"skew", shape.skew},
                            {"seed", static_cast<double>(shape.seed)}});
  job.point.flops = 3 * block.flops() * shape.top_k * shape.layers * shape.ranks;
  return job;
}

}  // namespace

std::vector<StepJob> exchange_jobs(bool quick) {
  std::vector<StepJob> jobs;
  for (std::int64_t floats = 256; floats <= (quick ? 1 << 18 : 1 << 20); floats *= 4) {
    for (const char* kind : {"send-recv", "all-reduce"}) jobs.push_back(exchange_job(kind, floats));
  }
  return jobs;
}

std::vector<StepJob> step_jobs() {
  std::vector<StepJob> jobs;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1"}) {
    for (const int ranks : {2, 4}) {
      if (ranks == 2 || usable_cores() >= 4) jobs.push_back(pipeline_job(schedule, ranks, 4, 1, {64, 128, 128}));
    }
  }
  jobs.push_back(pipeline_job("1f1b", 1, 4, 2, {32, 128, 128}));
  jobs.push_back(expert_job(4, 0.5, {128, 128, 128}));
  return jobs;
}

void run_steps(std::vector<StepJob>& jobs, int samples) {
  for (StepJob& job : jobs) {
    job.run();
    for (int i = 0; i < samples; ++i) job.samples.push_back(job.run());
  }
}

}  // namespace shardplan
