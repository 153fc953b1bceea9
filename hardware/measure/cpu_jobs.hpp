#pragma once
// What the CPU backend times with several ranks: messages, all-reduces and whole steps. Each is one call that gives its
// seconds, so that all can be sampled in turn, several times over.
#include <functional>
#include <vector>

#include "hardware/measure/measuring.hpp"
#include "hardware/measure/transport.hpp"

namespace shardplan {

struct StepJob {
  MeasuredPoint point;
  std::function<double()> run;  // once, seconds of virtual time: compute measured, waiting computed
  std::vector<double> samples;
};

/// Messages, ring all-reduces and all-to-alls between two ranks, 1 KiB to 1 MiB (quick) or 4 MiB. `transport`: the
/// maker in words.
std::vector<StepJob> exchange_jobs(bool quick, const RankTransportMaker&, const std::string& transport);
/// Schedules on 2 ranks (and 4, where there are cores for them), a data-parallel step, and expert steps of even and of
/// skewed loads. Ranks are pinned, a core each, as those of the exchanges are.
std::vector<StepJob> step_jobs(const RankTransportMaker&);
/// One run to warm up, then `samples` more that are kept.
void run_steps(std::vector<StepJob>&, int samples);

}  // namespace shardplan
