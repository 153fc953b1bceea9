#pragma once
// Ranks as threads: all leave a start line together, and what each used of its core is recorded.
#include <functional>
#include <memory>
#include <vector>

namespace shardplan {

struct RankUsage {
  double wall_start = 0, wall_end = 0;  // seconds of wall_now()
  double cpu = 0;                       // CPU seconds between the two
  long involuntary_switches = 0;
};

/// Cores that this process may use.
int usable_cores();

/// 0 to n - 1.
std::vector<int> ranks_up_to(int n);

/// Threads that stay, as the processes of a job do: a second run finds their stacks and heaps warm.
class RankTeam {
 public:
  /// A thread for each of these ranks. pin: rank r stays on the r-th usable core (only where there are so many cores).
  RankTeam(std::vector<int> ranks, bool pin);
  /// Ranks 0 to ranks - 1.
  RankTeam(int ranks, bool pin);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  /// Runs body(rank) on every rank, all starting together; answers in the order of the ranks. An exception of a body
  /// calls on_failure() (which must free the others) and is rethrown at the end, the lowest rank's first.
  std::vector<RankUsage> run(const std::function<void(int)>& body, const std::function<void()>& on_failure);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A rank's own time. Work is charged to it by CPU time: virtual_now is a Lamport clock that stands still while the
/// thread is preempted and jumps to the sender's time where a message came later.
class RankClock {
 public:
  /// available: the virtual time from which the work could start.
  void begin(double available = 0);
  void end();

  double virtual_now() const { return virtual_now_; }
  double cpu() const { return cpu_; }
  double wall() const { return wall_; }
  double wall_begin() const { return wall_begin_; }
  double last_cpu() const { return last_cpu_; }
  double last_wall() const { return last_wall_; }

 private:
  double virtual_now_ = 0, cpu_ = 0, wall_ = 0;
  double cpu_begin_ = 0, wall_begin_ = 0, last_cpu_ = 0, last_wall_ = 0;
};

}  // namespace shardplan
