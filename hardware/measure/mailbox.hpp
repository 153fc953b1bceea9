#pragma once
// Messages between rank threads: one slot a message, copied in by the sender and out by the receiver, as a transport
// with eager buffers does. Every channel carries one message a step.
//
// A step that cannot go on is noticed without a timeout: a rank that waits for an empty slot is idle, a finished rank
// is idle, and when all are idle while one still waits, nobody is left to fill the slot.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace shardplan {

/// Thrown out of receive() on every waiting rank when the step is stuck or another rank failed.
struct StepAborted {};

class Mailbox {
 public:
  /// channel_floats: the length of each channel's message. spin: waiting burns its core (lowest latency; only where
  /// every rank has a core); otherwise the thread sleeps.
  Mailbox(std::vector<std::int64_t> channel_floats, int ranks, bool spin);
  ~Mailbox();

  /// Empties every slot. No thread may be inside.
  void begin_step();

  /// Sending takes two calls, so that the copy is inside the sender's clock and the stamp after it: copy_in, then ring
  /// with the sender's virtual time. Once per channel and step.
  void copy_in(int channel, const float* message);
  void ring(int channel, double sent_at);
  /// Waits for the message; returns its virtual time. Throws StepAborted.
  double wait(int rank, int channel);
  /// Copies the message out; only after wait().
  void copy_out(int channel, float* out) const;
  const float* peek(int channel) const;
  std::int64_t floats(int channel) const;

  /// The rank has no more messages to wait for.
  void finish(int rank);
  /// Wakes everybody with StepAborted.
  void abort();

  /// The channel that each stuck rank waits for (-1 = it does not), filled when a step was found stuck.
  const std::vector<int>& stuck_on() const { return waiting_for_; }
  bool stuck() const { return stuck_; }

 private:
  struct Channel {
    std::vector<float> slot;
    std::atomic<int> state{0};  // 0 empty, 1 full, 2 aborted
    double sent_at = 0;
    int waiting_rank = -1;  // under mutex_
  };
  void abort_locked();
  void check_stuck_locked();

  std::vector<std::unique_ptr<Channel>> channels_;
  const int ranks_;
  const bool spin_;
  std::mutex mutex_;
  int idle_ = 0;
  int waiting_ = 0;
  bool stuck_ = false, aborted_ = false;
  std::vector<int> waiting_for_;
};

}  // namespace shardplan
