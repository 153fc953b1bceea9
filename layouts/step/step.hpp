#pragma once
// One training step: stages priced, the schedule replayed, gradients reduced, the optimizer run.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layouts/step/cost.hpp"
#include "layouts/step/question.hpp"
#include "sim/order.hpp"
#include "sim/trace.hpp"

namespace shardplan {

/// Seconds of one pipeline rank over the whole step.
struct RankStep {
  double busy = 0;            // of its passes
  double pipeline_idle = 0;   // waiting for other ranks
  double reduce_exposed = 0;  // gradient reduction after its last backward pass
  double finish = 0;          // when its gradients are ready
};

/// One rank of the whole job, with --all-ranks.
struct JobRank {
  std::int64_t rank = 0;  // in the layout's order
  int tp = 0, cp = 0, dp = 0, pipeline_rank = 0;
  double busy = 0, idle = 0;  // of its passes, until the last pass of its own pipeline
  double last_end = 0;        // of its last pass
  double finish = 0;          // when its gradients are reduced: the same on all its data-parallel peers
};

/// When the pipelines of a job end: its replicas, those that move in step counted once.
struct ReplicaSpread {
  std::int64_t replicas = 0, replayed = 0;
  double least = 0, mean = 0, most = 0;  // seconds of their last pass's end
};

/// Passes of one kind on one pipeline rank, on the chain that decides the step.
struct CriticalShare {
  int rank = 0;
  PassKind kind = PassKind::forward;
  std::int64_t passes = 0;
  double seconds = 0;
  Cost work;  // of these passes; what exceeds its device seconds is the host's or a blocking send's
};
/// The chain that decides the step: passes and messages to the rank whose gradients are ready last, their reduction,
/// the wait for the slowest of equal ranks, the optimizer, the parameter gather, the host's fixed time. All members add
/// up to the step.
struct CriticalPath {
  std::vector<CriticalShare> shares;  // largest first
  double sends_s = 0;                 // latency of the messages between its passes
  int last_rank = 0;                  // whose gradients are ready last
  double reduction_s = 0, slowest_rank_s = 0, optimizer_s = 0, gather_s = 0, fixed_s = 0;
};

/// Which of a stack's spreads the interval stands on: dense runs, dense runs of which host launches hold more than a
/// tenth beside the device's work, runs with experts.
enum class Scatter : unsigned char { dense, host, moe };

struct StepReport {
  double step_time_s = 0, low_s = 0, high_s = 0;
  double pipeline_s = 0;  // the replay's makespan
  // step_time_s = busy_s + bubble_s + reduce_exposed_s + slowest_rank_s + optimizer_s + gather_exposed_s + fixed_s
  double busy_s = 0;            // passes of the busiest rank, launch-bound time included
  double bubble_s = 0;          // the makespan beyond them
  double reduce_exposed_s = 0;  // data-parallel reduction after the makespan
  double slowest_rank_s = 0;    // wait for the slowest of equal ranks where gradients are reduced (expected)
  double optimizer_s = 0;
  double gather_exposed_s = 0;  // parameter all-gather that nothing hid
  double fixed_s = 0;
  double over_ideal = 0, over_total = 0, window = 0;
  std::int64_t microbatches = 0;
  Cost busiest;    // device seconds of all passes of the busiest rank, what overlapped pairs hide taken off
  Cost recompute;  // what of it runs again in the backward pass
  // busy_s = busiest.device() + launch_s + blocking_s + jitter_s + documents_s
  double launch_s = 0;  // host launches that the device waited for, bookkeeping of passes
  Scatter scatter = Scatter::dense;
  double blocking_s = 0;   // pipeline messages that hold the compute stream
  double jitter_s = 0;     // of --jitter and --straggler, packed documents included
  double documents_s = 0;  // of packed documents alone: the longest replica's attention beyond the mean
  int busiest_rank = 0;
  double hop_s = 0;  // of one pipeline message, the longest
  std::vector<RankStep> ranks;
  std::vector<JobRank> job;            // StepOptions::all_ranks
  ReplicaSpread replicas;              // StepOptions::all_ranks, spread or documents_vary
  CriticalPath critical;               // StepOptions::keep_trace
  std::shared_ptr<const Trace> trace;  // StepOptions::keep_trace
  double model_flops = 0;              // of the whole step: matrix products and causal attention, no recompute
  double model_flops_full_attention = 0;
  double hardware_flops = 0;  // with recomputation
  double tokens = 0;          // of the whole step
  Basis weakest = Basis::measured;
  std::vector<std::string> wider_for;  // what widens the interval beyond the spread of the stack's runs
};

/// Throws InputError where the layout is illegal or asks for what is not modelled.
StepReport simulate_step(const StepQuestion&);

/// A time that no replay of this layout can beat, from the same prices: the search prunes with it.
double step_lower_bound(const StepQuestion&);
/// The same of a layout known to be legal, with its split_stages.
double step_lower_bound(const StepQuestion&, const std::vector<StageSlice>& slices);

}  // namespace shardplan
