#pragma once
// Replays an Order whose passes are lists of operations on a rank's streams, in the same sweep.
#include <cstdint>
#include <span>
#include <vector>

#include "sim/replay.hpp"
#include "sim/streams.hpp"

namespace shardplan {

/// Which operations each pass runs. Equal passes share a list; a last micro-batch that also reduces gradients has its
/// own.
struct OperationTable {
  int streams = 1;
  std::vector<StreamOp> operations;                     // all lists, one after the other
  std::vector<std::int32_t> begin;                      // lists + 1
  std::vector<std::vector<std::int32_t>> list_of_pass;  // by rank and position
  std::span<const StreamOp> list(int i) const {
    return std::span(operations).subspan(begin[i], begin[i + 1] - begin[i]);
  }
};

struct OperationReplay {
  double makespan = 0;                          // until the last operation, background too
  std::vector<double> pass_end, drained;        // by rank: end of its last pass; of its last operation
  std::vector<std::vector<double>> start, end;  // of passes, by rank and position
  std::vector<double> operation_end;            // in the order of nodes, see OperationReplayer::operation_begin
};

/// An Order compiled for many replays of operations (asynchronous messages). Messages leave when their pass ends.
class OperationReplayer {
 public:
  explicit OperationReplayer(const Order&);

  /// hop_forward and hop_backward as in PassTimes. `contention`: overlapping streams slow each other (RankStreams);
  /// otherwise each operation takes its own time. Valid until the next run.
  const OperationReplay& run(const OperationTable&, const std::vector<double>& hop_forward,
                             const std::vector<double>& hop_backward, bool contention);
  /// By rank and position: where a pass's operations begin in operation_end.
  const std::vector<std::vector<std::int32_t>>& operation_begin() const { return operation_begin_; }
  /// Bytes of the arrays that a run sweeps.
  std::size_t bytes() const;

 private:
  void check(const OperationTable&) const;

  ReplayNodes nodes_;
  std::vector<RankStreams> streams_;
  bool streams_contend_ = false;
  int stream_count_ = 0;
  std::vector<double> latency_, end_;
  std::vector<std::vector<std::int32_t>> operation_begin_;
  OperationReplay answer_;
};

}  // namespace shardplan
