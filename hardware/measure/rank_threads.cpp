#include "hardware/measure/rank_threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <thread>

#include "hardware/measure/host_clock.hpp"
#include "hardware/measure/mailbox.hpp"

namespace shardplan {
namespace {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) cores.push_back(i);
    }
  }
  return cores;
}

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a hint: measuring goes on without it
}

long involuntary_switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

int usable_cores() { return std::max<int>(1, static_cast<int>(allowed_cores().size())); }

std::vector<RankUsage> run_ranks(int ranks, bool pin, const std::function<void(int)>& body,
                                 const std::function<void()>& on_failure) {
  const std::vector<int> cores = allowed_cores();
  pin = pin && ranks <= static_cast<int>(cores.size());
  std::vector<RankUsage> usage(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::barrier start_line(ranks);
  const auto one_rank = [&](int rank) {
    if (pin) pin_to(cores[static_cast<std::size_t>(rank)]);
    RankUsage& own = usage[static_cast<std::size_t>(rank)];
    start_line.arrive_and_wait();
    const long switches = involuntary_switches();
    const double cpu = thread_cpu_now();
    own.wall_start = wall_now();
    try {
      body(rank);
    } catch (const StepAborted&) {
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      on_failure();
    }
    own.wall_end = wall_now();
    own.cpu = thread_cpu_now() - cpu;
    own.involuntary_switches = involuntary_switches() - switches;
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(one_rank, rank);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return usage;
}

void RankClock::begin(double available) {
  virtual_now_ = std::max(virtual_now_, available);
  wall_begin_ = wall_now();
  cpu_begin_ = thread_cpu_now();
}

void RankClock::end() {
  last_cpu_ = thread_cpu_now() - cpu_begin_;
  last_wall_ = wall_now() - wall_begin_;
  cpu_ += last_cpu_;
  wall_ += last_wall_;
  virtual_now_ += last_cpu_;
}

}  // namespace shardplan
