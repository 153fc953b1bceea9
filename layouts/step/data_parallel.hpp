#pragma once
// What data-parallel ranks exchange once a step: gradients after the last backward passes, parameters before the next
// forward ones, and the optimizer between.
#include <string>
#include <vector>

#include "layouts/step/pipeline.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {

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
    const Collective op = q_.layout.zero_stage() >= 1 && q_.stack.broadcast_root_s <= 0 ? Collective::reduce_scatter
                                                                                        : Collective::all_reduce;
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

  /// Seconds to gather the updated parameters in 16 bits (FP32 training: 32).
  double gather(const LocalParameters& p) const {
    if (sharded_units() || q_.layout.zero_stage() == 0 || !q_.options.on(Effect::dp_communication)) return 0;
    // Broadcasts of all shards in turn move what an all-gather moves; each waits for the one before it.
    double roots = 0;
    if (q_.options.rates == Rates::calibrated) {
      roots = groups_.dense_shard.ranks * q_.stack.broadcast_root_s;
      if (q_.options.on(Effect::launch_floor)) roots += groups_.dense_shard.ranks * p.tensors * q_.stack.gather_slice_s;
    }
    const double wide = price_.wide_bytes();
    return roots + price_.collective(Collective::all_gather, wide * p.dense, groups_.dense_shard).seconds +
           price_.collective(Collective::all_gather, wide * p.expert, groups_.expert_shard).seconds;
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

/// Seconds on the communication stream, from the start of the first pass.
struct Interval {
  double start = 0, end = 0;
};

/// Gradient reduction of one rank. Buckets become ready evenly over the last backward pass of each of its stages.
struct Reduction {
  double exposed = 0, total = 0;
  std::vector<Interval> buckets;
};
Reduction reduce_on_rank(const StepQuestion&, const Pipeline&, const Replay&, const DataParallel&, std::size_t rank);

/// Parameter gathers under the next step's forward: stage by stage, each needed when its first forward pass starts.
double gather_exposed(const StepQuestion&, const Pipeline&, const Replay&, const DataParallel&);

}  // namespace shardplan
