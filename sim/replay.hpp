#pragma once
// Replays an Order with times: one sweep in topological order over flat arrays.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

/// Seconds per virtual stage. Vectors have Order::stages() entries. per_microbatch_scale: empty, or one factor a
/// micro-batch on every compute time (not on hops). A pair with its own duration is scaled by the mean of its halves'.
struct PassTimes {
  std::vector<double> forward;
  std::vector<double> backward;  // of PassKind::backward; empty = input_grad + weight_grad
  std::vector<double> input_grad;
  std::vector<double> weight_grad;
  std::vector<double>
      overlapped;  // of a pair whose forward half is on this stage; empty = forward + backward of its halves
  std::vector<double> overlapped_pair;  // stages x stages, [forward half's][backward half's]: wins over `overlapped`
  std::vector<double>
      hop_forward;  // latency from stage s to next[s] on another rank; empty = 0. Same rank: none is paid.
  std::vector<double> hop_backward;  // from stage s to previous[s]
  std::vector<double> per_microbatch_scale;
};

enum class P2pMode { async, rendezvous };
struct ReplayOptions {
  P2pMode p2p = P2pMode::async;
  bool stream_per_peer = true;   // rendezvous: one communication stream a peer, else one in-order stream a rank
  bool keep_pass_times = false;  // fill Replay::start / end
};

struct RankReplay {
  double first_start = 0, last_end = 0;
  double busy = 0, idle = 0;  // idle = makespan - busy
  int peak_chunks_until_input_grad = 0, peak_chunks_until_weight_grad = 0;
};

/// A message between two ranks: it leaves when its pass has ended (rendezvous: when both streams are free, too).
struct ReplayMessage {
  int from_rank = 0, from_position = 0;
  int to_rank = 0, to_position = 0;  // the pass that waits for it
  double start = 0, end = 0;
};

struct Replay {
  double makespan = 0;
  double max_stage_window = 0;  // longest rank window, first start to last end
  std::vector<RankReplay> ranks;
  std::vector<std::vector<double>> start, end;  // by rank and position, only with keep_pass_times
  std::vector<ReplayMessage> messages;          // likewise; in the topological order of their receivers
  double over_ideal() const;                    // (makespan - busy_max) / busy_max
  double over_total() const;                    // 1 - sum(busy) / (p makespan)
  double window() const;                        // (max_stage_window - busy_max) / max_stage_window
};

/// Throws InputError("schedule", ...) where a pass is missing or stands twice, and with the waiting cycle where the
/// order deadlocks.
Replay replay(const Order&, const PassTimes&, const ReplayOptions& = {});

/// One pass of the chain that decides the makespan, in time order. `waited` is the latency between the end of the
/// pass before it in the chain and its start (a hop, or a blocking message).
struct CriticalPass {
  int rank = 0;
  int position = 0;  // in Order::passes[rank]
  double start = 0, end = 0;
  double waited = 0;
};
/// The chain of passes that decides the makespan, first to last. Where several chains are equally long, the one through
/// the earliest ranks.
std::vector<CriticalPass> critical_path(const Order&, const PassTimes&, const ReplayOptions& = {});

/// Keys into the tables of a run. Durations: four a stage, then one a pair, then one a hop (of messages).
struct ReplayKeys {
  int stages = 0, pairs = 0;
  int single(int stage, PassKind kind) const { return stage * 4 + static_cast<int>(kind); }
  int pair(int index) const { return stages * 4 + index; }
  int message(int hop) const { return stages * 4 + pairs + hop; }
  int durations() const { return stages * 4 + pairs + hops(); }
  // Hops: 0 = none, then one forward and one backward a stage, named by the sending stage.
  int hop_forward(int stage) const { return 1 + stage; }
  int hop_backward(int stage) const { return 1 + stages + stage; }
  int hops() const { return 1 + 2 * stages; }
};

/// An Order as the flat arrays that a Replayer sweeps.
struct ReplayNodes {
  ReplayKeys keys;
  int passes = 0, microbatches = 0;
  // By node, in topological order.
  std::vector<std::int32_t> rank;      // = Order::ranks for a message
  std::vector<std::int32_t> position;  // in Order::passes[rank]; -1 = a message
  std::vector<std::int32_t> time_key, microbatch, microbatch2;
  std::vector<std::int32_t> edge_begin, edge_from, edge_hop;
  std::vector<std::int32_t> pair_forward, pair_backward;  // the stages of every kind of pair
  std::vector<std::int32_t> first_node, last_node;        // by rank, -1 = the rank has no pass
  std::vector<RankReplay> peaks;
};

/// An Order compiled once for many replays with other times: topological order, flat arrays, buffers. A run allocates
/// nothing after the first. Not to be shared between threads while one runs; copies are independent.
///
/// Nodes are passes (and, for rendezvous, messages) in topological order. A node ends at
///   end[i] = duration[i] + max over its edges (end[from] + latency[hop]),
/// edges being: the pass before it on its rank, and the messages it waits for from other ranks.
class Replayer {
 public:
  explicit Replayer(const Order&, const ReplayOptions& = {});

  /// Valid until the next run.
  const Replay& run(const PassTimes&);
  /// Only the makespan.
  double makespan(const PassTimes&);
  /// Only the makespan, where every pass has its own duration, by rank and position as in Order::passes (a step that
  /// was recorded); a hop or message costs `hop` seconds. InputError where the shape is another.
  double recorded_makespan(const std::vector<std::vector<double>>& seconds, double hop = 0);
  /// The whole replay of a recorded step, hops as in PassTimes (empty = 0); valid until the next run.
  const Replay& run_recorded(const std::vector<std::vector<double>>& seconds, const std::vector<double>& hop_forward,
                             const std::vector<double>& hop_backward);
  /// Of the last run. With a rank: the chain that decides when that rank's last pass ends.
  std::vector<CriticalPass> critical_path(int rank = -1) const;

  /// Nodes of one sweep: passes, and messages where they are nodes.
  int nodes() const { return static_cast<int>(nodes_.rank.size()); }

 private:
  void prepare(const PassTimes&);
  void prepare_hops(const std::vector<double>& forward, const std::vector<double>& backward);
  void sweep();
  double sweep_recorded(const std::vector<std::vector<double>>& seconds);
  double start_of(int node) const;
  void keep_times();
  const Replay& report();

  int ranks_ = 0;
  bool keep_ = false;
  ReplayNodes nodes_;
  // Buffers of a run.
  std::vector<double> duration_;  // by time key
  std::vector<double> latency_;   // by hop key
  std::vector<double> scale_;     // by micro-batch; empty = none
  std::vector<double> end_;       // by node
  std::vector<double> busy_;      // by rank, then one slot for messages
  Replay answer_;
};

}  // namespace shardplan
