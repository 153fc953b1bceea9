#pragma once
// Which single change of a layout would help most: a fixed list of changes, each simulated like the layout itself.
#include <string>
#include <vector>

#include "layouts/memory.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

struct Change {
  std::string what;       // "pp4 instead of pp8, dp32 instead of dp16"
  std::string layout;     // canonical text
  bool hardware = false;  // another machine, not another layout
  bool numerics = false;  // changes what is computed (type of the reduction), not only where
  bool in_stack = true;   // the stack's data file lists it
  double step_time_s = 0;
  double gain = 0;           // share of the old step that it saves; negative = slower
  double memory_bytes = 0;   // fullest rank, device
  double memory_change = 0;  // against the layout's own
};

struct ChangeReport {
  std::vector<Change> changes;  // those that fit, best first; ties in the order of the list
  int tried = 0, illegal = 0, too_large = 0;
};

/// Changes tried: tp x2 and /2, pp x2 and /2, cp x2 and /2 (dp takes the rest of the GPUs); ep x2 and /2; the next
/// legal vpp up and down; mbs x2 and /2; recompute none, core_attn, layernorm, full for half of the layers, full; zero
/// 0-3; tp-overlap none, bulk, async; sequence parallelism; cuda-graphs full; schedules 1f1b, interleaved, zb-h1, zb-v,
/// dualpipe; context parallelism by ring, all-gather, Ulysses; transport deepep; ep-overlap shared, 1f1b; fused loss;
/// 16-bit gradient reduction; a network twice as fast. One at a time, same model, batch, precision and number of GPUs.
ChangeReport try_changes(const StepQuestion&, const MemoryOptions&, const StepReport& now, const MemoryReport& memory);

}  // namespace shardplan
