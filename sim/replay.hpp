#pragma once
// Replays an Order with times: one sweep in topological order over flat arrays.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/order.hpp"

namespace shardplan {

/// Seconds per virtual stage. Vectors have Order::stages() entries. per_microbatch_scale: empty, or one factor a micro-batch.
struct PassTimes {
  std::vector<double> forward;
  std::vector<double> backward;     // of PassKind::backward; empty = input_grad + weight_grad
  std::vector<double> input_grad;
  std::vector<double> weight_grad;
  std::vector<double> overlapped;   // of a pair whose forward half is on this stage; empty = forward + backward of its halves
  std::vector<double> hop_forward;  // latency from stage s to next[s] on another rank; empty = 0. Same rank: none is paid.
  std::vector<double> hop_backward; // from stage s to previous[s]
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
  double busy = 0, idle = 0;     // idle = makespan - busy
  int peak_chunks_until_input_grad = 0, peak_chunks_until_weight_grad = 0;
};

struct Replay {
  double makespan = 0;
  double max_stage_window = 0;   // longest rank window, first start to last end
  std::vector<RankReplay> ranks;
  std::vector<std::vector<double>> start, end;  // by rank and position, only with keep_pass_times
  double over_ideal() const;  // (makespan - busy_max) / busy_max
  double over_total() const;  // 1 - sum(busy) / (p makespan)
  double window() const;      // (max_stage_window - busy_max) / max_stage_window
};

/// Throws InputError("schedule", ...) with the waiting cycle where the order deadlocks.
Replay replay(const Order&, const PassTimes&, const ReplayOptions& = {});

}  // namespace shardplan
