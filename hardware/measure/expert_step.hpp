#pragma once
// A mixture-of-experts layer for real: tokens are sent to the ranks of their experts, computed, and sent back and
// summed (forward), and the same for the gradients (backward). One thread a rank, one message a pair of ranks and
// exchange.
//
// Between two exchanges a rank works alone, so a layer's direction is three phases: gather + send | receive, experts,
// send back | receive + sum. An exchange ends for everybody when the last rank has sent: all ranks meet there.
#include <cstdint>
#include <memory>
#include <vector>

#include "hardware/measure/block_kernels.hpp"

namespace shardplan {

struct ExpertStepShape {
  int ranks = 2;
  int experts_per_rank = 2;
  int top_k = 2;
  int layers = 1;
  BlockShape block{64, 64, 64};  // tokens = of one rank; an expert is one residual block
  double skew = 0;               // standard deviation of the experts' log popularity, the same on every rank
  std::uint64_t seed = 1;
  bool spin = false, pin = false;
};

struct ExpertStepRecord {
  std::vector<std::vector<double>>
      phases;  // CPU seconds by rank and phase: 6 a layer, 3 forward (all layers), then 3 backward
  double virtual_makespan = 0, wall_makespan = 0, cpu_over_wall = 0;
  std::int64_t messages = 0, bytes = 0;  // between different ranks
};

class ExpertStep {
 public:
  explicit ExpertStep(const ExpertStepShape&);
  ~ExpertStep();

  ExpertStepRecord step();
  /// Rows (token copies) from rank s to rank d, row-major [s * ranks + d].
  const std::vector<std::int64_t>& rows() const;
  /// Rows of each expert of a rank.
  std::vector<std::int64_t> expert_rows(int rank) const;
  /// Output of the last layer on a rank, [tokens, hidden].
  const std::vector<float>& output(int rank) const;
  /// The same by FP64 loops, without messages.
  std::vector<double> reference_output(int rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The time of phases that all ranks leave together, except a direction's last one, after which a rank goes on alone:
/// what a simulation of such a step must give. phases as in ExpertStepRecord.
double exchange_makespan(const std::vector<std::vector<double>>& phases);

}  // namespace shardplan
