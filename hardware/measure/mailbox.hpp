#pragma once
// Messages between rank threads: one slot a message, copied in by the sender and out by the receiver, as a transport
// with eager buffers does.
//
// A step that cannot go on is noticed without a timeout: a rank that waits for an empty slot is idle, a finished rank
// is idle, and when all are idle while one still waits, nobody is left to fill the slot.
#include <atomic>
#include <mutex>

#include "hardware/measure/transport.hpp"

namespace shardplan {

class Mailbox : public RankTransport {
 public:
  /// spin: waiting burns its core (lowest latency; only where every rank has a core); otherwise the thread sleeps.
  Mailbox(std::vector<ChannelEnds>, int ranks, bool spin);

  const std::vector<int>& local_ranks() const override { return all_ranks_; }
  void begin_step() override;
  void copy_in(int channel, const float* message) override;
  void ring(int channel, double sent_at) override;
  double wait(int rank, int channel) override;
  void copy_out(int channel, float* out) override;
  const float* peek(int channel) override;
  void finish(int rank) override;
  void abort() override;
  bool stuck() const override { return stuck_; }
  const std::vector<int>& stuck_on() const override { return waiting_for_; }

 private:
  struct Slot {
    std::vector<float> message;
    std::atomic<int> state{0};  // 0 empty, 1 full, 2 aborted
    double sent_at = 0;
    int waiting_rank = -1;  // under mutex_
  };
  Slot& slot(int channel) { return *slots_[static_cast<std::size_t>(channel)]; }
  void abort_locked();
  void check_stuck_locked();

  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<int> all_ranks_;
  const bool spin_;
  std::mutex mutex_;
  std::size_t idle_ = 0, waiting_ = 0;
  bool stuck_ = false, aborted_ = false;
  std::vector<int> waiting_for_;
};

}  // namespace shardplan
