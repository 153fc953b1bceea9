#pragma once
// Prices the CPU backend's own work from a measuring file: the products, the elementwise parts and the copies that a
// pass of the executor consists of. With replay() this predicts a step that was never run.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hardware/kernels.hpp"
#include "hardware/measure/block_kernels.hpp"
#include "hardware/measure/expert_step.hpp"
#include "hardware/measure/measuring.hpp"
#include "sim/order.hpp"
#include "sim/replay.hpp"

namespace shardplan {

/// Log seconds at scattered sizes. Between and beyond them: a plane through the nearest points in log size, weighted by
/// inverse square distance and held towards `slope` (seconds growing in proportion to the work), so that a measured
/// point answers itself.
class ScatteredTable {
 public:
  void add(const std::vector<double>& sizes, double seconds);
  bool empty() const { return points_.empty(); }
  std::size_t size() const { return points_.size(); }
  double seconds(const std::vector<double>& sizes) const;
  /// Mean of |predicted / measured - 1| with each point left out in turn.
  double leave_one_out() const;

 private:
  struct Point {
    std::vector<double> logs;
    double log_seconds;
  };
  double predict(const std::vector<double>& logs, std::size_t without) const;
  std::vector<Point> points_;
};

class HostModel {
 public:
  /// InputError where a table that a step needs is missing.
  explicit HostModel(const MeasuringFile&);

  /// Sizes of the forward product, whatever the pass (hardware/kernels.hpp).
  double gemm(GemmPass, std::int64_t m, std::int64_t n, std::int64_t k) const;
  /// copy | add | relu | mask of n floats; send-recv: a message of n floats, copied in by one core and out by another;
  /// all-reduce of n floats between two ranks.
  double elementwise(const std::string& kind, std::int64_t n) const;

  /// One stage of the executor: its products, elementwise parts, and the copies of its messages.
  PassTimes pass_times(const Order&, const BlockShape&, int blocks_per_slot) const;
  /// Ring all-reduce of `floats` among `members`: 2 (n - 1) steps of floats / n each, so n - 1 times what two ranks
  /// take for 2 / n of it.
  double all_reduce(int members, std::int64_t floats) const;
  /// Phases of an expert step, as ExpertStepRecord::phases.
  std::vector<std::vector<double>> expert_phases(const ExpertStepShape&) const;

  /// One copy into or out of a mailbox whose other end is another core's, seconds.
  double half_message(std::int64_t floats) const;

  struct TableError {
    std::string table;
    std::size_t points;
    double leave_one_out;
  };
  std::vector<TableError> errors() const;
  /// The highest rate of any measured product, FLOP/s, and of the largest copy, bytes/s (read + written).
  double best_gemm_rate() const { return best_rate_; }
  double copy_rate() const { return copy_rate_; }

 private:
  std::map<std::string, ScatteredTable> tables_;
  double best_rate_ = 0, copy_rate_ = 0;
};

}  // namespace shardplan
