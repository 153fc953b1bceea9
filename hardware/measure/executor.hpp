#pragma once
// Executes an Order for real: one thread (or process) a rank, real products, real messages. The same Order object that
// replay() times.
//
// What a pass does: take its input out of the mailbox (copy), compute its blocks, put its result in (copy), ring.
// Waiting comes before the pass and belongs to nobody. So a pass's duration holds its copies, a hop costs nothing of
// its own, and a replay of the recorded durations must give the step back; PassTimes with hop = 0 is the matching
// model.
//
// Left out: attention, bidirectional orders (two parameter copies) and overlapped passes, which a single core cannot
// overlap.
#include <cstdint>
#include <memory>
#include <vector>

#include "hardware/measure/block_kernels.hpp"
#include "hardware/measure/rank_threads.hpp"
#include "hardware/measure/transport.hpp"
#include "sim/order.hpp"

namespace shardplan {

struct ExecutorOptions {
  BlockShape shape{128, 128, 128};
  int blocks_per_slot = 1;  // blocks of a virtual stage
  int replicas = 1;         // data-parallel copies of the pipeline; gradients are all-reduced at the end when > 1
  bool spin = false;        // wait by spinning: only with ranks * replicas <= cores
  bool pin = false;
  bool digest = false;  // collect the checksum (costs time: not for timed steps)
  int drop_message =
      -1;  // a fault for tests: the k-th message of replica 0 (in stage, micro-batch, direction order) is lost
  RankTransportMaker transport = make_mailbox;
};

/// One pass as it ran, in seconds; wall times since the step's first pass, virtual ones since its start.
struct PassRecord {
  double wall_start = 0, wall_end = 0;
  double virtual_start = 0, virtual_end = 0;
  double wall() const { return wall_end - wall_start; }
  double cpu() const { return virtual_end - virtual_start; }
};

struct RankRecord {
  std::vector<PassRecord> passes;  // in the order's positions
  double all_reduce_cpu = 0;       // CPU seconds of the gradient all-reduce
  double virtual_end = 0;
  int peak_chunks_until_input_grad = 0, peak_chunks_until_weight_grad = 0;
  std::int64_t activation_buffers = 0;                         // chunks' buffers that were really allocated
  std::int64_t messages = 0, message_bytes = 0;                // sent, pipeline
  std::int64_t all_reduce_messages = 0, all_reduce_bytes = 0;  // sent, data parallel
};

struct StepRecord {
  std::vector<RankRecord> ranks;  // replica-major: replica * order.ranks + rank; empty where another process ran it
  double wall_makespan = 0;       // first pass begins to last work ends
  double virtual_makespan = 0;
  double cpu_over_wall = 0;    // least over ranks; of the whole step where ranks spin, else of their passes
  std::uint64_t checksum = 0;  // of all weight and first-stage input gradients, free of order; 0 without digest
};

class PipelineExecutor {
 public:
  /// InputError where the order cannot be executed here.
  PipelineExecutor(const Order&, const ExecutorOptions&);
  ~PipelineExecutor();

  /// Runs one step. InputError("schedule", ...) where the order is wrong: it gets stuck, takes a gradient before its
  /// forward, a weight gradient before its input gradient, or leaves a micro-batch unfinished.
  StepRecord step();

  /// Runs `rounds` times every pass of every rank without waiting for anybody, all forwards first, all ranks at once:
  /// what the passes cost, told by nothing of the schedule. Records in result[rank]: forward, input_grad and
  /// weight_grad (or backward) of each of its stages, CPU and wall seconds.
  struct Samples {
    std::vector<std::vector<double>> forward, backward, input_grad, weight_grad;  // by virtual stage, over replicas
  };
  /// split: time the two halves of a backward pass, else whole ones. cpu: CPU seconds, else wall seconds.
  Samples calibrate(int rounds, bool split, bool cpu);

  /// The gradient of block b (of replica 0) after step(): dW1 then dW2, FP32; empty where another process ran its
  /// rank.
  std::vector<float> gradient(int block) const;
  int blocks() const;
  double message_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same gradients by plain FP64 loops, one micro-batch after another, no threads and no Eigen: what the executor
/// must match. replicas * microbatches micro-batches in all.
std::vector<std::vector<double>> reference_gradients(const BlockShape&, int blocks, int microbatches, int replicas);

/// The executor's data, so that reference and executor agree: weights of a block (W1 then W2), input of a micro-batch.
std::vector<float> executor_weights(const BlockShape&, int block);
std::vector<float> executor_input(const BlockShape&, int replica, int microbatch);

}  // namespace shardplan
