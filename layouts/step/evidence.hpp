#pragma once
// On what a predicted step stands: the measured runs behind its constants and behind its interval.
#include <string>
#include <vector>

#include "layouts/step/step.hpp"

namespace shardplan {

/// One constant and the measured runs that it was fitted on; 0 = none, its neutral value is assumed.
struct EvidenceRow {
  std::string scope;     // h100-sxm | h100 | infiniband-400 | megatron-core
  std::string constant;  // bf16 | attention_cudnn | network_factor | stack
  int runs = 0;
};

struct Evidence {
  std::vector<EvidenceRow> rows;   // matrix products, attention, collectives (between nodes, in one node), the stack
  std::string kind;                // of runs that the interval is of: dense | host-bound | with experts
  double left_out_sd = 0;          // of ln(predicted / measured) of the stack's runs of that kind, left out of a fit
  bool left_out_measured = false;  // else assumed: the stack has no such runs
  std::vector<std::string> measured_stacks;  // of the same framework that do, where it has none
  std::vector<std::string> wider_for;        // what makes the interval wider than that: "fewer than 5 runs of ..."
};

/// `step` is this question's. At datasheet rates nothing stands on runs: no rows.
Evidence evidence_of(const StepQuestion&, const StepReport& step);

}  // namespace shardplan
