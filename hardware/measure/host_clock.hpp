#pragma once
// The two clocks of a measurement: wall time, and the CPU time of the calling thread (it stands still while the thread
// is preempted, so it can be trusted on a loaded machine).
#include <ctime>

namespace shardplan {

inline double read_clock(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds since an arbitrary start.
inline double wall_now() { return read_clock(CLOCK_MONOTONIC); }
/// CPU seconds that the calling thread has used.
inline double thread_cpu_now() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace shardplan
