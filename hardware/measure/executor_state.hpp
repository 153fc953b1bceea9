#pragma once
// The executor's state and its parts: executor_passes.cpp runs one pass, executor_step.cpp a step and a calibration.
// Private to hardware/measure/executor*.cpp.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hardware/measure/executor.hpp"

namespace shardplan {

/// What a micro-batch keeps on a virtual stage from its forward pass to its weight gradient. x and dy have one entry
/// more than blocks: the stage's input and every block's output, and their gradients.
struct Activation {
  std::vector<std::vector<float>> x, a, dy, du;

  Activation(const BlockShape& s, int blocks) {
    const auto wide = static_cast<std::size_t>(s.tokens * s.inner),
               narrow = static_cast<std::size_t>(s.tokens * s.hidden);
    x.assign(static_cast<std::size_t>(blocks) + 1, std::vector<float>(narrow));
    dy = x;
    a.assign(static_cast<std::size_t>(blocks), std::vector<float>(wide));
    du = a;
  }
};

enum class ChunkState : std::uint8_t { nothing, forwarded, input_done, finished };

struct PipelineExecutor::Impl {
  /// One rank thread of one replica.
  struct Rank {
    int replica = 0, rank = 0, thread = 0;
    std::vector<std::unique_ptr<Activation>> pool;  // all that were ever allocated
    std::vector<Activation*> free;
    std::map<std::pair<int, int>, Activation*> live;  // by (stage, micro-batch)
    std::vector<ChunkState> state;                    // by stage * microbatches + micro-batch
    std::vector<float> gradient;                      // of all its blocks, stage after stage
    std::vector<float> scratch;
    std::vector<float> first_input_grad;
    RankClock clock;
    RankRecord record;
    int until_input = 0, until_weight = 0;
  };

  Order order;
  ExecutorOptions options;
  BlockShape shape;
  int m = 0;
  std::vector<std::vector<float>> weights;    // by block
  std::vector<std::vector<float>> inputs;     // by replica * m + micro-batch
  std::vector<std::int64_t> gradient_offset;  // by stage, within its rank's gradient
  std::vector<Rank> ranks;
  std::unique_ptr<RankTransport> transport;
  std::unique_ptr<RankTeam> team;
  std::vector<std::vector<int>> ring_first;  // by rank: each replica's first channel of the all-reduce
  std::atomic<std::uint64_t> checksum{0};
  bool waiting = true;  // false while calibrating

  Impl(const Order&, const ExecutorOptions&);

  int blocks() const {
    const auto last = *std::max_element(order.layer_slot.begin(), order.layer_slot.end());
    return (last + 1) * options.blocks_per_slot;
  }
  int block_of(int stage, int i) const {
    return order.layer_slot[static_cast<std::size_t>(stage)] * options.blocks_per_slot + i;
  }
  int next_of(int stage) const { return order.next[static_cast<std::size_t>(stage)]; }
  int previous_of(int stage) const { return order.previous[static_cast<std::size_t>(stage)]; }
  int rank_of(int stage) const { return order.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::size_t narrow_bytes() const { return static_cast<std::size_t>(shape.tokens * shape.hidden) * sizeof(float); }
  int channel(int replica, int stage, int microbatch, bool gradient) const {
    return ((replica * order.stages() + stage) * m + microbatch) * 2 + (gradient ? 1 : 0);
  }

  void make_data();
  void make_ranks();
  void make_channels();

  [[noreturn]] void wrong(const Rank& rank, const Pass& pass, const std::string& what) const;
  /// Moves the chunk's state on, or says what came too early or twice.
  void advance(Rank& rank, const Pass& pass);
  Activation& acquire(Rank& rank, const Pass& pass);
  void release(Rank& rank, const Pass& pass);
  void count_live(Rank& rank, PassKind kind);
  /// The pass's message, or the model's input where no stage sends one.
  void receive(const Rank& rank, const Pass& pass, float* into);
  void forward(Rank& rank, const Pass& pass, Activation& act);
  /// The loss is 1/2 |Y|^2 of the last output, so its gradient is Y itself.
  void input_gradient(Rank& rank, const Pass& pass, Activation& act);
  void send_gradient(Rank& rank, const Pass& pass, Activation& act);
  void weight_gradient(Rank& rank, const Pass& pass, Activation& act);
  /// The channel that the pass takes its input from, or -1.
  int input_channel(const Rank& rank, const Pass& pass) const;
  /// The channel that it rings when it ends, or -1; `to` = the stage at its other end.
  int output_channel(const Rank& rank, const Pass& pass, int& to) const;
  void ring_out(Rank& rank, const Pass& pass);
  PassRecord run_pass(Rank& rank, const Pass& pass);

  void reset(Rank& rank);
  void check_finished(const Rank& rank) const;
  void all_reduce(Rank& rank);
  void run_rank(Rank& rank);
  [[noreturn]] void report_stuck() const;
  StepRecord summary(const std::vector<RankUsage>& usage);
  StepRecord step();

  void calibrate_rank(Rank& rank, bool split, bool cpu, std::vector<std::vector<std::vector<double>>>& out);
  Samples calibrate(int rounds, bool split, bool cpu);
};

}  // namespace shardplan
