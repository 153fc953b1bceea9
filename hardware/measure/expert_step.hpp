#pragma once
// Mixture-of-experts layers for real, data- and expert-parallel over the same ranks. Forward: the router's product and
// the gates, tokens sent to the ranks of their experts, computed, sent back, summed by their gates and added to the
// layer's input. Backward: the same way for the gradients. In the end the routers' gradients are all-reduced; experts
// live on one rank, theirs are whole. One message a pair of ranks and exchange.
//
// Who goes where is drawn (expert_routing.hpp); the gates are the softmax of the chosen experts' logits. Loss 1/2
// |Y|^2.
//
// Between two exchanges a rank works alone, so a layer's direction is three phases: router, sort, send | receive,
// experts, send back | receive, sum. An exchange ends for everybody when the last rank has sent: all ranks meet there.
#include <cstdint>
#include <memory>
#include <vector>

#include "hardware/measure/expert_routing.hpp"
#include "hardware/measure/transport.hpp"

namespace shardplan {

struct ExpertStepRecord {
  std::vector<std::vector<double>>
      phases;  // CPU seconds by rank and phase: 6 a layer, 3 forward (all layers), then 3 backward
  std::vector<double> all_reduce_cpu;  // by rank
  double exchanged_makespan = 0;       // virtual, until the last phase ends
  double virtual_makespan = 0;         // with the all-reduce
  double wall_makespan = 0, cpu_over_wall = 0;
  std::int64_t messages = 0, bytes = 0;  // of the exchanges, between different ranks
};

class ExpertStep {
 public:
  explicit ExpertStep(const ExpertStepShape&, const RankTransportMaker& = make_mailbox);
  ~ExpertStep();

  /// InputError("experts", ...) where a message was lost. drop_message: a fault for tests: of exchange, sender and
  /// receiver, [(exchange * ranks + sender) * ranks + receiver]; 4 exchanges a layer.
  ExpertStepRecord step(int drop_message = -1);
  const ExpertRouting& routing() const;
  /// The ranks that this process runs.
  const std::vector<int>& local_ranks() const;
  /// After step(), on the process that ran the rank. Output of the last layer [tokens, hidden]; gradient of its input;
  /// of its experts [layer][expert](W1, W2); of all routers, summed over the ranks [layer][hidden, experts].
  const std::vector<float>& output(int rank) const;
  const std::vector<float>& input_gradient(int rank) const;
  const std::vector<float>& expert_gradient(int rank) const;
  const std::vector<float>& router_gradient(int rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The time of phases that all ranks leave together, except a direction's last one, after which a rank goes on alone:
/// what a simulation of such a step must give. phases as in ExpertStepRecord.
double exchange_makespan(const std::vector<std::vector<double>>& phases);

/// The same step by FP64 loops, without messages, in the order of the accessors above.
struct ExpertReference {
  std::vector<std::vector<double>> output, input_gradient, expert_gradient;  // by rank
  std::vector<double> router_gradient;
};
ExpertReference reference_expert_step(const ExpertStepShape&);

/// The step's data, so that it and its reference agree: W1 then W2 of an expert, [hidden, experts] of a router.
std::vector<float> expert_weights(const ExpertStepShape&, int layer, int expert);
std::vector<float> router_weights(const ExpertStepShape&, int layer);

}  // namespace shardplan
