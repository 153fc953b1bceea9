#include "hardware/measure/mailbox.hpp"

#include <cstring>
#include <numeric>

namespace shardplan {
namespace {

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

std::unique_ptr<RankTransport> make_mailbox(std::vector<ChannelEnds> channels, int ranks, bool spin) {
  return std::make_unique<Mailbox>(std::move(channels), ranks, spin);
}

Mailbox::Mailbox(std::vector<ChannelEnds> channels, int ranks, bool spin)
    : RankTransport(std::move(channels)), all_ranks_(static_cast<std::size_t>(ranks)), spin_(spin) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  for (const ChannelEnds& c : channels_) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->message.assign(static_cast<std::size_t>(c.floats), 0.0f);
  }
  begin_step();
}

void Mailbox::begin_step() {
  for (auto& s : slots_) {
    s->state.store(0);
    s->waiting_rank = -1;
  }
  idle_ = waiting_ = 0;
  stuck_ = aborted_ = false;
  waiting_for_.assign(all_ranks_.size(), -1);
}

void Mailbox::copy_in(int channel, const float* message) {
  Slot& s = slot(channel);
  if (!s.message.empty()) std::memcpy(s.message.data(), message, s.message.size() * sizeof(float));
}

void Mailbox::ring(int channel, double sent_at) {
  Slot& s = slot(channel);
  const std::lock_guard lock(mutex_);
  s.sent_at = sent_at;
  if (s.waiting_rank >= 0) {
    waiting_for_[static_cast<std::size_t>(s.waiting_rank)] = -1;
    s.waiting_rank = -1;
    --idle_;
    --waiting_;
  }
  if (s.state.load() == 2) return;
  s.state.store(1, std::memory_order_release);
  if (!spin_) s.state.notify_all();
}

double Mailbox::wait(int rank, int channel) {
  Slot& s = slot(channel);
  if (s.state.load(std::memory_order_acquire) == 0) {
    {
      const std::lock_guard lock(mutex_);
      if (s.state.load() == 0) {
        s.waiting_rank = rank;
        waiting_for_[static_cast<std::size_t>(rank)] = channel;
        ++idle_;
        ++waiting_;
        check_stuck_locked();
      }
    }
    while (s.state.load(std::memory_order_acquire) == 0) {
      if (spin_)
        pause_core();
      else
        s.state.wait(0);
    }
  }
  if (s.state.load(std::memory_order_acquire) == 2) throw StepAborted{};
  return s.sent_at;
}

void Mailbox::copy_out(int channel, float* out) {
  const Slot& s = slot(channel);
  if (!s.message.empty()) std::memcpy(out, s.message.data(), s.message.size() * sizeof(float));
}

const float* Mailbox::peek(int channel) { return slot(channel).message.data(); }

void Mailbox::finish(int) {
  const std::lock_guard lock(mutex_);
  ++idle_;
  check_stuck_locked();
}

void Mailbox::abort() {
  const std::lock_guard lock(mutex_);
  abort_locked();
}

void Mailbox::abort_locked() {
  if (aborted_) return;
  aborted_ = true;
  for (auto& s : slots_) {
    s->state.store(2);
    s->state.notify_all();
  }
}

void Mailbox::check_stuck_locked() {
  if (idle_ < all_ranks_.size() || waiting_ == 0 || aborted_) return;
  stuck_ = true;
  abort_locked();
}

}  // namespace shardplan
