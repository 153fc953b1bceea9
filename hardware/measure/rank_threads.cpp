#include "hardware/measure/rank_threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <numeric>
#include <thread>

#include "hardware/measure/host_clock.hpp"
#include "hardware/measure/transport.hpp"

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

std::vector<int> ranks_up_to(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int usable_cores() { return std::max<int>(1, static_cast<int>(allowed_cores().size())); }

struct RankTeam::State {
  std::barrier<> start, finish;                    // of all ranks and the caller
  const std::function<void(int)>* body = nullptr;  // nullptr = leave
  const std::function<void()>* on_failure = nullptr;
  const std::vector<int> ranks;
  std::vector<RankUsage> usage;
  std::vector<std::exception_ptr> failures;
  std::vector<std::jthread> threads;

  explicit State(std::vector<int> own)
      : start(static_cast<std::ptrdiff_t>(own.size()) + 1),
        finish(static_cast<std::ptrdiff_t>(own.size()) + 1),
        ranks(std::move(own)),
        usage(ranks.size()),
        failures(ranks.size()) {}

  void run_body(std::size_t place) {
    RankUsage& own = usage[place];
    const long switches = involuntary_switches();
    const double cpu = thread_cpu_now();
    own.wall_start = wall_now();
    try {
      (*body)(ranks[place]);
    } catch (const StepAborted&) {
    } catch (...) {
      failures[place] = std::current_exception();
      (*on_failure)();
    }
    own.wall_end = wall_now();
    own.cpu = thread_cpu_now() - cpu;
    own.involuntary_switches = involuntary_switches() - switches;
  }

  void serve(std::size_t place) {
    for (;;) {
      start.arrive_and_wait();
      if (body == nullptr) return;
      run_body(place);
      finish.arrive_and_wait();
    }
  }
};

RankTeam::RankTeam(std::vector<int> ranks, bool pin) : state_(std::make_unique<State>(std::move(ranks))) {
  const std::vector<int> cores = allowed_cores();
  const std::vector<int>& own = state_->ranks;
  pin = pin && !own.empty() && own.back() < static_cast<int>(cores.size());
  for (std::size_t place = 0; place < own.size(); ++place) {
    state_->threads.emplace_back([this, place, core = pin ? cores[static_cast<std::size_t>(own[place])] : -1] {
      if (core >= 0) pin_to(core);
      state_->serve(place);
    });
  }
}

RankTeam::RankTeam(int ranks, bool pin) : RankTeam(ranks_up_to(ranks), pin) {}

RankTeam::~RankTeam() {
  state_->body = nullptr;
  state_->start.arrive_and_wait();
  state_->threads.clear();
}

std::vector<RankUsage> RankTeam::run(const std::function<void(int)>& body, const std::function<void()>& on_failure) {
  state_->body = &body;
  state_->on_failure = &on_failure;
  std::fill(state_->failures.begin(), state_->failures.end(), nullptr);
  state_->start.arrive_and_wait();
  state_->finish.arrive_and_wait();
  for (const std::exception_ptr& failure : state_->failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return state_->usage;
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
