#pragma once
// How ranks exchange messages. Two implementations: Mailbox (ranks are threads of this process) and MpiTransport (a
// rank is a process of Open MPI; measure_mpi/). Every channel carries one message a step, from one rank to another.
//
// Sending takes two calls, so that the copy is inside the sender's clock and the stamp after it: copy_in, then ring
// with the sender's virtual time. Receiving takes two as well: wait, which is nobody's work, then copy_out or peek.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace shardplan {

/// Thrown out of wait() on every waiting rank when the step is stuck or another rank failed.
struct StepAborted {};

struct ChannelEnds {
  int from = 0, to = 0;  // ranks
  std::int64_t floats = 0;
};

class RankTransport {
 public:
  virtual ~RankTransport() = default;

  /// The ranks whose work this process does, rising. A step runs these and no others.
  virtual const std::vector<int>& local_ranks() const = 0;
  std::int64_t floats(int channel) const { return channels_[static_cast<std::size_t>(channel)].floats; }

  /// Before every step, no rank being inside one.
  virtual void begin_step() = 0;
  virtual void copy_in(int channel, const float* message) = 0;
  virtual void ring(int channel, double sent_at) = 0;
  /// Waits for the message; returns its virtual time. Throws StepAborted.
  virtual double wait(int rank, int channel) = 0;
  /// Copies the message out, once, or shows it where it lies. Only after wait().
  virtual void copy_out(int channel, float* out) = 0;
  virtual const float* peek(int channel) = 0;
  /// The rank has no more messages to wait for.
  virtual void finish(int rank) = 0;
  /// Wakes everybody with StepAborted.
  virtual void abort() = 0;

  /// Whether the step was found stuck, and the channel that each stuck rank waits for (-1 = it does not).
  virtual bool stuck() const = 0;
  virtual const std::vector<int>& stuck_on() const = 0;

 protected:
  explicit RankTransport(std::vector<ChannelEnds> channels) : channels_(std::move(channels)) {}
  const ChannelEnds& ends(int channel) const { return channels_[static_cast<std::size_t>(channel)]; }
  const std::vector<ChannelEnds> channels_;
};

/// Makes the transport of one executor. spin: every rank has a core, waiting may burn it.
using RankTransportMaker =
    std::function<std::unique_ptr<RankTransport>(std::vector<ChannelEnds>, int ranks, bool spin)>;

/// A mailbox of this process's threads.
std::unique_ptr<RankTransport> make_mailbox(std::vector<ChannelEnds>, int ranks, bool spin);

}  // namespace shardplan
