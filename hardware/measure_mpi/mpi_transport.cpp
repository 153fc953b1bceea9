#include "hardware/measure_mpi/mpi_transport.hpp"

#include <mpi.h>

#include <cstring>
#include <thread>

#include "hardware/measure/host_clock.hpp"

namespace shardplan {
namespace {

class MpiTransport : public RankTransport {
 public:
  MpiTransport(std::vector<ChannelEnds> channels, int ranks, double patience_s)
      : RankTransport(std::move(channels)), patience_s_(patience_s), slots_(channels_.size()) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);  // steps of different executors cannot take each other's messages
    MPI_Comm_rank(comm_, &own_);
    if (own_ < ranks) local_ranks_ = {own_};
    for (std::size_t c = 0; c < slots_.size(); ++c) {
      if (channels_[c].from == own_ || channels_[c].to == own_)
        slots_[c].message.assign(static_cast<std::size_t>(channels_[c].floats), 0.0f);
    }
    stuck_on_.assign(static_cast<std::size_t>(ranks), -1);
  }
  ~MpiTransport() override {
    if (!stuck_) MPI_Comm_free(&comm_);
  }

  const std::vector<int>& local_ranks() const override { return local_ranks_; }

  void begin_step() override {
    for (Slot& s : slots_) s.state = State::empty;
  }

  void copy_in(int channel, const float* message) override {
    Slot& s = slot(channel);
    if (s.message.empty()) return;
    std::memcpy(s.message.data(), message, s.message.size() * sizeof(float));
    if (ends(channel).to == own_) return;
    sends_.emplace_back();
    MPI_Isend(s.message.data(), static_cast<int>(s.message.size()), MPI_FLOAT, ends(channel).to, 2 * channel, comm_,
              &sends_.back());
  }

  void ring(int channel, double sent_at) override {
    Slot& s = slot(channel);
    s.sent_at = sent_at;
    if (ends(channel).to == own_) {
      s.state = State::taken;
      return;
    }
    sends_.emplace_back();
    MPI_Isend(&s.sent_at, 1, MPI_DOUBLE, ends(channel).to, 2 * channel + 1, comm_, &sends_.back());
  }

  double wait(int rank, int channel) override {
    Slot& s = slot(channel);
    if (s.state != State::empty) return s.sent_at;
    const double overdue = wall_now() + patience_s_;
    for (int arrived = 0; !arrived;) {
      MPI_Iprobe(ends(channel).from, 2 * channel + 1, comm_, &arrived, MPI_STATUS_IGNORE);
      if (arrived) break;
      if (ends(channel).from == own_ || wall_now() > overdue) {
        stuck_ = true;
        stuck_on_[static_cast<std::size_t>(rank)] = channel;
        throw StepAborted{};
      }
      std::this_thread::yield();
    }
    MPI_Recv(&s.sent_at, 1, MPI_DOUBLE, ends(channel).from, 2 * channel + 1, comm_, MPI_STATUS_IGNORE);
    s.state = State::announced;
    return s.sent_at;
  }

  void copy_out(int channel, float* out) override {
    Slot& s = slot(channel);
    if (s.message.empty()) return;
    if (s.state == State::announced) {
      receive(channel, out);
      s.state = State::taken;
    } else {
      std::memcpy(out, s.message.data(), s.message.size() * sizeof(float));
    }
  }

  const float* peek(int channel) override {
    Slot& s = slot(channel);
    if (s.state == State::announced && !s.message.empty()) receive(channel, s.message.data());
    s.state = State::taken;
    return s.message.data();
  }

  void finish(int) override {
    MPI_Waitall(static_cast<int>(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE);
    sends_.clear();
  }

  /// The other processes are stopped by whoever started this one: see main.cpp.
  void abort() override {}
  bool stuck() const override { return stuck_; }
  const std::vector<int>& stuck_on() const override { return stuck_on_; }

 private:
  enum class State { empty, announced, taken };
  struct Slot {
    std::vector<float> message;
    double sent_at = 0;
    State state = State::empty;
  };
  Slot& slot(int channel) { return slots_[static_cast<std::size_t>(channel)]; }
  void receive(int channel, float* into) {
    MPI_Recv(into, static_cast<int>(ends(channel).floats), MPI_FLOAT, ends(channel).from, 2 * channel, comm_,
             MPI_STATUS_IGNORE);
  }

  const double patience_s_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int own_ = 0;
  std::vector<int> local_ranks_;
  std::vector<Slot> slots_;
  std::vector<MPI_Request> sends_;
  bool stuck_ = false;
  std::vector<int> stuck_on_;
};

}  // namespace

std::unique_ptr<RankTransport> make_mpi_transport(std::vector<ChannelEnds> channels, int ranks, double patience_s) {
  return std::make_unique<MpiTransport>(std::move(channels), ranks, patience_s);
}

}  // namespace shardplan
