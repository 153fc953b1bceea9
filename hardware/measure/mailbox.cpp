#include "hardware/measure/mailbox.hpp"

#include <cstring>

namespace shardplan {
namespace {

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Mailbox::Mailbox(std::vector<std::int64_t> channel_floats, int ranks, bool spin) : ranks_(ranks), spin_(spin) {
  for (const std::int64_t n : channel_floats) {
    channels_.push_back(std::make_unique<Channel>());
    channels_.back()->slot.assign(static_cast<std::size_t>(n), 0.0f);
  }
  begin_step();
}

Mailbox::~Mailbox() = default;

void Mailbox::begin_step() {
  for (auto& channel : channels_) {
    channel->state.store(0);
    channel->waiting_rank = -1;
  }
  idle_ = waiting_ = 0;
  stuck_ = aborted_ = false;
  waiting_for_.assign(static_cast<std::size_t>(ranks_), -1);
}

void Mailbox::copy_in(int channel, const float* message) {
  Channel& c = *channels_[static_cast<std::size_t>(channel)];
  if (!c.slot.empty()) std::memcpy(c.slot.data(), message, c.slot.size() * sizeof(float));
}

void Mailbox::ring(int channel, double sent_at) {
  Channel& c = *channels_[static_cast<std::size_t>(channel)];
  const std::lock_guard lock(mutex_);
  c.sent_at = sent_at;
  if (c.waiting_rank >= 0) {
    waiting_for_[static_cast<std::size_t>(c.waiting_rank)] = -1;
    c.waiting_rank = -1;
    --idle_;
    --waiting_;
  }
  if (c.state.load() == 2) return;
  c.state.store(1, std::memory_order_release);
  if (!spin_) c.state.notify_all();
}

double Mailbox::wait(int rank, int channel) {
  Channel& c = *channels_[static_cast<std::size_t>(channel)];
  if (c.state.load(std::memory_order_acquire) == 0) {
    {
      const std::lock_guard lock(mutex_);
      if (c.state.load() == 0) {
        c.waiting_rank = rank;
        waiting_for_[static_cast<std::size_t>(rank)] = channel;
        ++idle_;
        ++waiting_;
        check_stuck_locked();
      }
    }
    while (c.state.load(std::memory_order_acquire) == 0) {
      if (spin_)
        pause_core();
      else
        c.state.wait(0);
    }
  }
  if (c.state.load(std::memory_order_acquire) == 2) throw StepAborted{};
  return c.sent_at;
}

void Mailbox::copy_out(int channel, float* out) const {
  const Channel& c = *channels_[static_cast<std::size_t>(channel)];
  if (!c.slot.empty()) std::memcpy(out, c.slot.data(), c.slot.size() * sizeof(float));
}

const float* Mailbox::peek(int channel) const { return channels_[static_cast<std::size_t>(channel)]->slot.data(); }

std::int64_t Mailbox::floats(int channel) const {
  return static_cast<std::int64_t>(channels_[static_cast<std::size_t>(channel)]->slot.size());
}

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
  for (auto& channel : channels_) {
    channel->state.store(2);
    channel->state.notify_all();
  }
}

void Mailbox::check_stuck_locked() {
  if (idle_ < ranks_ || waiting_ == 0 || aborted_) return;
  stuck_ = true;
  abort_locked();
}

}  // namespace shardplan
