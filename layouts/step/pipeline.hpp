#pragma once
// The passes of a step with their times, ready to be replayed.
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "layouts/step/cost.hpp"
#include "layouts/step/question.hpp"
#include "layouts/step/stage_cost.hpp"
#include "sim/replay.hpp"
#include "sim/steady.hpp"

namespace shardplan {

/// An order and its compiled replay, kept for the layouts that share them: building one costs ten times its sweep.
struct CompiledOrder {
  Order order;
  Replayer replayer;
  std::optional<SteadyOrder> steady = {};  // of a short step that stands for a long one
};

struct Pipeline {
  CompiledOrder* compiled = nullptr;
  std::vector<StageSlice> slices;
  std::vector<StageCost> stages;  // by layer slot
  PassTimes times;
  // A very long step is replayed without most of its steady state (sim/steady.hpp): periods left out, seconds of each.
  std::int64_t periods = 0;
  double period_s = 0;
  double pass_s = 0;  // bookkeeping of a pass, in its time
  /// Seconds of a message between a virtual stage and the next and the previous one of its chain: in a node or between
  /// nodes, 0 where both lie on one rank.
  std::vector<double> hop_next, hop_previous;
  bool blocking = false;            // sends hold the compute stream, in the time of forward and whole backward passes
  bool copies = false;              // passes copy their messages in and out, half of a message's seconds at either end
  std::vector<double> pair_device;  // device seconds of ep-overlap=1f1b's pairs, stages x stages as in `times`

  double longest_hop() const;
  /// Seconds that messages add to a pass of this kind on this virtual stage.
  double held(PassKind, std::int32_t stage) const;

  const Order& order() const { return compiled->order; }
  const StageCost& stage(std::int32_t s) const {
    return stages[static_cast<std::size_t>(order().layer_slot[static_cast<std::size_t>(s)])];
  }
  /// Of the whole step; valid until the next replay of the same order.
  const Replay& replay();
  /// How often the step runs the pass that stands here in the order: once, or once a period of the steady state.
  double times_run(std::size_t rank, std::size_t position) const;
  /// Virtual stages that a pipeline rank holds.
  std::vector<std::int32_t> held_by(int rank) const;

 private:
  Replay longer_;  // with the periods left out
};

/// Prices the stages and compiles the schedule. InputError where the schedule refuses. Every pass stands in the order
/// where the question asks for a trace, for every rank, or for jitter.
Pipeline build_pipeline(const StepQuestion&, const Groups&, std::int64_t microbatches);

/// Seconds of a forward and a backward pass that run as a pair: their all-to-alls hide under the other's compute.
double pair_seconds(const StageCost& forward, const StageCost& backward, double contention);

/// The same for a pair of ep-overlap=1f1b, whose streams run layer by layer; embedding, head and what else lies outside
/// the layers runs alone. `device` without the host's launches, which the pair has of both passes.
struct PairTime {
  double device = 0, seconds = 0;
};
PairTime layered_pair(const StageCost& forward, const StageCost& backward, bool delayed_weight_gradients);

/// layered_pair of any two of these stages; equal pairs are priced once, and only when they are asked for. The stages
/// must outlive it.
class PairTable {
 public:
  PairTable(const std::vector<StageCost>& stages, bool delayed_weight_gradients);
  const PairTime& of(std::size_t forward, std::size_t backward);

 private:
  const std::vector<StageCost>& stages_;
  bool delayed_;
  std::vector<std::size_t> kind_;  // of each stage: the first one like it; empty until a pair is asked for
  std::map<std::pair<std::size_t, std::size_t>, PairTime> known_;
};

/// A pass of the order by what it spends: device seconds by part (what a pair hides taken off), the host's gaps and the
/// sends that held it. seconds() of all three is the pass's time in the replay.
struct PassWork {
  Cost device;
  double launch = 0;  // host launches that the device waited for, bookkeeping of the pass
  double sends = 0;
};
PassWork work_of(const StepQuestion&, const Pipeline&, const Pass&);

}  // namespace shardplan
