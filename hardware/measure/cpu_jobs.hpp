#pragma once
// What the CPU backend times with several ranks: messages, all-reduces and whole steps. Each is one call that gives its
// seconds, so that all can be sampled in turn, several times over.
#include <functional>
#include <vector>

#include "hardware/measure/measuring.hpp"

namespace shardplan {

struct StepJob {
  MeasuredPoint point;
  std::function<double()> run;  // once, seconds of virtual time: compute measured, waiting computed
  std::vector<double> samples;
};

/// Messages and ring all-reduces between two ranks, 1 KiB to 1 MiB (quick) or 4 MiB.
std::vector<StepJob> exchange_jobs(bool quick);
/// Schedules on 2 ranks (and 4, where there are cores for them), a data-parallel step and an expert step. Ranks are
/// pinned, a core each, as those of the exchanges are.
std::vector<StepJob> step_jobs();
/// One run to warm up, then `samples` more that are kept.
void run_steps(std::vector<StepJob>&, int samples);

}  // namespace shardplan
