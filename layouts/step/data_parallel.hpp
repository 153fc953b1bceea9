#pragma once
// What data-parallel ranks exchange once a step: gradients after the last backward passes, parameters before the next
// forward ones, and the optimizer between.
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "layouts/ranks.hpp"
#include "layouts/step/pipeline.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {

class DataParallel {
 public:
  DataParallel(const StepQuestion& q, const Groups& groups)
      : q_(q), dense_(groups.dense_shard), replicas_(groups.dense_replica), expert_(groups.expert_shard), price_(q) {
    // A bidirectional schedule holds every stage on two ranks: both copies share gradients and optimizer states.
    dense_.ranks *= q.layout.parameter_copies();
    expert_.ranks *= q.layout.parameter_copies();
  }

  bool sharded_units() const {
    const int zero = q_.layout.zero_stage();
    return zero == 3 || (zero == 2 && q_.stack.framework == "pytorch");
  }

  /// Seconds to reduce the gradients of these parameters.
  double reduce(const LocalParameters& p) const {
    if (sharded_units() || !q_.options.on(Effect::dp_communication)) return 0;
    const double bytes = gradient_bytes(q_);
    const Collective op = q_.layout.zero_stage() >= 1 && q_.stack.broadcast_root_s <= 0 ? Collective::reduce_scatter
                                                                                        : Collective::all_reduce;
    double t = price_.collective(op, bytes * p.dense, dense_).seconds +
               price_.collective(op, bytes * p.expert, expert_).seconds;
    if (replicas_.ranks > 1)
      t += price_.collective(Collective::all_reduce, bytes * p.dense / dense_.ranks, replicas_).seconds;
    return t;
  }

  /// Seconds to gather the updated parameters in 16 bits (FP32 training: 32).
  double gather(const LocalParameters& p) const {
    if (sharded_units() || q_.layout.zero_stage() == 0 || !q_.options.on(Effect::dp_communication)) return 0;
    // Broadcasts of all shards in turn move what an all-gather moves; each waits for the one before it.
    double roots = 0;
    if (q_.options.rates == Rates::calibrated) {
      roots = dense_.ranks * q_.stack.broadcast_root_s;
      if (q_.options.on(Effect::launch_floor)) roots += dense_.ranks * p.tensors * q_.stack.gather_slice_s;
    }
    const double wide = price_.wide_bytes();
    return roots + price_.collective(Collective::all_gather, wide * p.dense, dense_).seconds +
           price_.collective(Collective::all_gather, wide * p.expert, expert_).seconds;
  }

  /// Seconds of the update on one rank that holds these parameters, after the global gradient norm: memory traffic on
  /// the GPU, or on the host with offload=optimizer.
  double optimizer(const LocalParameters& p) const {
    const int zero = q_.layout.zero_stage();
    const double dense = zero >= 1 ? p.dense / dense_.ranks : p.dense;
    const double expert = zero >= 1 ? p.expert / std::max(1, expert_.ranks) : p.expert;
    if (q_.layout.offload_optimizer) return on_host(dense + expert) + gradient_norm();
    return price_.memory(MemoryKernel::optimizer, (dense + expert) * q_.stack.optimizer_bytes_per_parameter).seconds +
           gradient_norm();
  }

  /// Seconds of the all-reduce of the squared gradient norm: one FP32 number over all ranks, all latency. Its partial
  /// sums, a read of the gradients, are in the optimizer's bytes.
  double gradient_norm() const {
    if (!q_.options.on(Effect::dp_communication)) return 0;
    const int domain = domain_gpus(q_.pricer->cluster(), q_.layout.gpus());
    const double nics = q_.pricer->cluster().node.nics.value / std::max(1, q_.pricer->cluster().node.gpus);
    GroupShape all;
    all.ranks = q_.layout.gpus();
    all.ranks_per_domain = std::min(domain, all.ranks);
    all.nics_per_domain = all.ranks_per_domain * nics;
    return price_.collective(Collective::all_reduce, 4, all).seconds;
  }

 private:
  /// Gradients to the host, the optimizer there, weights of 16 bits back, one after the other (Megatron's
  /// --optimizer-cpu-offload without --overlap-cpu-optimizer-d2h-h2d; ZeRO-Offload hides some of the transfers):
  ///   n (g + w) / B_link + n t / (B_host / GPUs of a node)
  /// n = parameters of this rank's shard, g and w = bytes of a gradient and a weight, t = memory traffic of the
  /// optimizer, bytes a parameter. The optimizer is taken to stream at the host memory's peak; its arithmetic, NUMA
  /// and Python's share are left out.
  double on_host(double parameters) const {
    const Node& node = q_.pricer->cluster().node;
    const double link = node.pcie_bytes_per_second.value, memory = node.host_memory_bytes_per_second.value;
    if (!(link > 0)) throw InputError("--cluster", "offload=optimizer needs the node's pcie_bandwidth");
    if (!(memory > 0)) throw InputError("--cluster", "offload=optimizer needs the node's host_memory_bandwidth");
    const double gradient = q_.layout.grad_accumulate_fp32.value_or(q_.stack.fp32_accumulate) ? 4 : price_.wide_bytes();
    return parameters * (gradient + price_.wide_bytes()) / link +
           parameters * q_.stack.optimizer_bytes_per_parameter * node.gpus / memory;
  }

  const StepQuestion& q_;
  GroupShape dense_, replicas_, expert_;  // of both copies, where a schedule holds two
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
