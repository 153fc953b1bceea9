#include "hardware/measure/rank_digest.hpp"

#include <cstdio>

#include "hardware/measure/digest.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_step.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

StepDigest pipeline_digest(const char* schedule, int ranks, int replicas, const RankTransportMaker& maker) {
  const ScheduleRow& row = find_schedule(schedule);
  ScheduleQuestion q;
  q.ranks = ranks;
  q.microbatches = 2 * ranks;
  q.chunks = row.default_chunks;
  ExecutorOptions options;
  options.shape = {6, 8, 12};
  options.replicas = replicas;
  options.digest = true;
  options.transport = maker;
  PipelineExecutor executor(row.order(q), options);
  executor.step();
  const StepRecord step = executor.step();  // a second one: nothing of the first is left in the transport
  StepDigest out;
  out.step = std::string(schedule) + ", " + std::to_string(ranks) + " ranks, " + std::to_string(q.microbatches) +
             " micro-batches, " + std::to_string(replicas) + " replicas";
  out.gradients = step.checksum;
  for (int b = 0; b < executor.blocks(); ++b) {
    const std::vector<float> gradient = executor.gradient(b);  // after the all-reduce
    if (!gradient.empty()) out.gradients += digest_of(gradient, static_cast<std::uint64_t>(b) + (1ULL << 50));
  }
  for (const RankRecord& rank : step.ranks) {
    out.messages += rank.messages + rank.all_reduce_messages;
    out.bytes += rank.message_bytes + rank.all_reduce_bytes;
  }
  return out;
}

StepDigest expert_digest(int ranks, const RankTransportMaker& maker) {
  ExpertStepShape shape;
  shape.ranks = ranks;
  shape.layers = 2;
  shape.block = {10, 8, 12};
  shape.skew = 0.5;
  ExpertStep experts(shape, maker);
  experts.step();
  const ExpertStepRecord step = experts.step();
  StepDigest out;
  out.step = "experts, " + std::to_string(ranks) + " ranks, " + std::to_string(shape.layers) + " layers";
  for (const int r : experts.local_ranks()) {
    const auto identity = static_cast<std::uint64_t>(r) * 4;
    out.gradients += digest_of(experts.output(r), identity) + digest_of(experts.input_gradient(r), identity + 1) +
                     digest_of(experts.expert_gradient(r), identity + 2) +
                     digest_of(experts.router_gradient(r), identity + 3);
    out.messages += step.messages / ranks;  // every rank sends as many
    for (int d = 0; d < ranks; ++d) {
      // Out and back, forward and backward: what is sent comes back.
      const std::int64_t away = experts.routing().rows_between(r, d) + experts.routing().rows_between(d, r);
      if (d != r)
        out.bytes +=
            std::int64_t{2} * shape.layers * away * shape.block.hidden * static_cast<std::int64_t>(sizeof(float));
    }
  }
  return out;
}

}  // namespace

std::vector<StepDigest> digest_steps(int ranks, const RankTransportMaker& maker) {
  std::vector<StepDigest> out;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1"})
    out.push_back(pipeline_digest(schedule, ranks, 1, maker));
  out.push_back(pipeline_digest("1f1b", ranks / 2, 2, maker));
  out.push_back(expert_digest(ranks, maker));
  return out;
}

std::string text_of(const std::vector<StepDigest>& steps) {
  std::string out;
  for (const StepDigest& s : steps) {
    char line[200];
    std::snprintf(line, sizeof line, "%s: gradients %016llx, %lld messages, %lld bytes\n", s.step.c_str(),
                  static_cast<unsigned long long>(s.gradients), static_cast<long long>(s.messages),
                  static_cast<long long>(s.bytes));
    out += line;
  }
  return out;
}

}  // namespace shardplan
