#pragma once
// Every rank of a job, or those that differ.
//
// The simple story: equal ranks take equal times, one pipeline stands for all. What it omits is here: ranks whose times
// differ (jitter, stragglers), and the proof that nothing is lost (StepOptions::all_ranks prices and replays each
// pipeline by itself).
#include "layouts/step/pipeline.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

struct JobReplay {
  /// What data-parallel peers see: pass by pass the latest start and end over all replicas. Gradient reduction starts
  /// when the slowest replica has its bucket.
  Replay merged;
  std::vector<JobRank> ranks;  // all_ranks: every rank, by number; finish is left to the reduction
  ReplicaSpread replicas;
};

/// Ranks meet where they exchange: tensor and context ranks in every layer, expert-parallel ranks in every MoE layer,
/// fully sharded ranks in every unit; those take the slowest member's time for each pass. Other replicas run on their
/// own and meet at gradient reduction. All ranks have the links of the representative group (group_shape). Without
/// all_ranks only pipelines that hold a rank with another time are replayed by themselves.
/// InputError where a straggler is no rank of the job.
JobReplay replay_job(const StepQuestion&, const Groups&, const Pipeline& representative);

}  // namespace shardplan
