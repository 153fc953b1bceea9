#pragma once
// Inside a rank, streams that overlap slow each other: an event loop over a few streams, rates constant between events.
// Plain arrays in, end times out; no GPU is known here.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardplan {

/// The two things that a rank's streams share.
enum class Shared : std::uint8_t { sm, hbm };
inline constexpr std::size_t kShared = 2;

/// One operation of a pass. Shares are of the whole rank, 0 .. 1.
struct StreamOp {
  double seconds = 0;                   // alone
  std::array<double, kShared> holds{};  // what it takes away from the others while it runs
  std::array<double, kShared> needs{};  // what it needs to run at full speed
  std::int16_t stream = 0;
  std::int16_t joins = -1;  // waits for all that was issued before this pass on that stream
  std::int32_t after = -1;  // index in the same pass of an operation that must have ended
  bool background = false;  // the pass ends without it; it runs on
};

/// A kernel that needs all SMs and a share of the memory's bandwidth: communication slows it by 1 / (1 - share held).
inline StreamOp compute_op(double seconds, double hbm = 0) { return {seconds, {0, hbm}, {1, hbm}, 0, -1, -1, false}; }
/// Communication that keeps a share of the SMs to itself and needs a share of the memory's bandwidth.
inline StreamOp communication_op(double seconds, double sm, double hbm, std::int16_t stream = 1) {
  return {seconds, {sm, hbm}, {0, hbm}, stream, -1, -1, false};
}

/// One rank's streams while its passes run one after the other.
///
/// While operations i run together, i proceeds at
///   speed_i = min(1, min over shared x with needs_i[x] > 0 of (1 - sum over j != i of holds_j[x]) / needs_i[x]),
/// and never below 1 / (operations running). For needs = 1 that is the slow-down 1 / (1 - share held), both ways.
/// Speeds change only when an operation starts or ends. A stream runs its operations in the order of issue. Left out:
/// caches, clocks and power, and that a kernel's last wave needs fewer SMs.
class RankStreams {
 public:
  explicit RankStreams(int streams, bool contention = true);
  void reset();

  /// Issues a pass at `from` (not before the end of the one before) and returns when all of it but background has
  /// ended. `ends`: one entry an operation, or empty; of background operations those entries are set when they end, at
  /// the latest in drain(), so the array must live until then.
  double run(double from, std::span<const StreamOp> ops, std::span<double> ends = {});
  /// Runs what is left in the background; returns the end of the last operation ever issued.
  double drain();

 private:
  struct Item {
    StreamOp op;
    double left = 0;              // seconds at full speed
    std::int32_t id = -1;         // operations are numbered as they are issued
    std::int32_t after = -1;      // id that must have ended
    std::int32_t join_count = 0;  // operations of op.joins that must have ended
    double* end = nullptr;
  };
  struct Stream {
    std::vector<Item> queue;
    std::size_t head = 0;
    std::int32_t issued = 0, ended = 0;
    double last_end = 0;
  };

  double run_freely(double from, std::span<const StreamOp> ops, std::span<double> ends);
  void issue(std::span<const StreamOp> ops, std::span<double> ends);
  bool ready(const Item& item) const;
  void collect_running();
  double next_end();
  void progress(double seconds, double ends_within);
  void advance(double until, bool until_pass_ended);

  bool contention_;
  double now_ = 0;
  int blocking_ = 0;         // operations of the pass that have not ended
  std::vector<char> ended_;  // by id
  std::vector<Stream> streams_;
  std::vector<int> running_;    // streams whose first operation runs
  std::vector<double> speed_;   // of those
  std::vector<double> buffer_;  // ends of a pass where the caller wants none
  std::vector<double> joined_;  // by stream: last end before the pass
};

}  // namespace shardplan
