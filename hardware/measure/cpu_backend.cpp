#include "hardware/measure/cpu_backend.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "hardware/measure/block_kernels.hpp"
#include "hardware/measure/cpu_jobs.hpp"
#include "hardware/measure/host_clock.hpp"
#include "hardware/measure/mpi_ranks.hpp"
#include "hardware/measure/rank_threads.hpp"

namespace shardplan {
namespace {

constexpr int kPasses = 8;  // over all kernels and steps, so that a slow moment hits all alike
// Where the machine is so loaded that threads wait for one another's cores, a quick measurement has fewer passes: of
// messages and steps, whose ranks wait at every hand-over, after the first time; of kernels after the second.
constexpr int kFewestPasses = 3;
constexpr double kQuickExchangeSeconds = 12, kQuickSeconds = 22;
constexpr std::int64_t kRotatedFloats = 1 << 20;  // 4 MiB: operands come from beyond L2, as they do in a step
constexpr std::int64_t kLargestFloats = 1 << 20;  // of one operand
constexpr std::int64_t kRow = 128;                // floats of a row of the kernels that go by rows

/// One thread's memory: random operands that are only read, and room that is written. Each operand of a kernel has a
/// third.
struct Arena {
  std::vector<float> read, write;

  explicit Arena(std::uint64_t seed) : write(3 * kRotatedFloats, 0.01f) {
    Random random(seed);
    read.resize(write.size());
    for (float& x : read) x = static_cast<float>(random.uniform() - 0.5);
  }
};

/// A third of an arena, cut into buffers that a kernel uses in turn.
class Rotation {
 public:
  Rotation(std::vector<float>& arena, int third, std::int64_t floats)
      : begin_(arena.data() + third * kRotatedFloats), floats_(floats), buffers_(kRotatedFloats / floats) {}
  float* next() { return begin_ + floats_ * (at_++ % buffers_); }

 private:
  float* begin_;
  std::int64_t floats_, buffers_, at_ = 0;
};

/// A kernel to time: its record, and a maker of the function that runs it once in a thread's
/// arena.
struct Job {
  MeasuredPoint point;
  std::function<std::function<void()>(Arena&)> make;
  std::vector<double> samples;
};

Job gemm_job(const std::string& pass, std::int64_t m, std::int64_t n, std::int64_t k) {
  Job job;
  job.point.kernel = "gemm";
  job.point.words = {{"dtype", "fp32"}, {"pass", pass}, {"library", "eigen"}};
  job.point.numbers = {{"m", static_cast<double>(m)}, {"n", static_cast<double>(n)}, {"k", static_cast<double>(k)}};
  job.point.flops = 2.0 * static_cast<double>(m * n * k);
  job.point.bytes = 4.0 * static_cast<double>(m * k + k * n + m * n);
  job.point.state = "cold";
  job.make = [=](Arena& arena) -> std::function<void()> {
    auto in = [&arena](int third, std::int64_t floats) {
      return std::make_shared<Rotation>(arena.read, third, floats);
    };
    auto out = std::make_shared<Rotation>(arena.write, 0, pass == "forward" ? m * n : m * k);
    auto gradient = std::make_shared<Rotation>(arena.write, 1, k * n);
    auto x = in(0, m * k), y = in(1, m * n), w = in(2, k * n);
    if (pass == "forward") return [=] { gemm_forward(m, n, k, x->next(), w->next(), out->next()); };
    if (pass == "input-grad") return [=] { gemm_input_grad(m, n, k, y->next(), w->next(), out->next()); };
    return [=] { gemm_weight_grad(m, n, k, x->next(), y->next(), gradient->next()); };
  };
  return job;
}

Job elementwise_job(const std::string& kind, std::int64_t n) {
  Job job;
  job.point.kernel = kind;
  job.point.words = {{"dtype", "fp32"}};
  job.point.numbers = {{"elements", static_cast<double>(n)}};
  job.point.bytes = 4.0 * static_cast<double>(n) * (kind == "add" || kind == "mask" ? 3 : 2);
  job.point.state = "cold";
  job.make = [=](Arena& arena) -> std::function<void()> {
    auto a = std::make_shared<Rotation>(arena.read, 0, n), b = std::make_shared<Rotation>(arena.write, 0, n);
    if (kind == "copy") return [=] { std::memcpy(b->next(), a->next(), static_cast<std::size_t>(n) * sizeof(float)); };
    if (kind == "add") return [=] { add(n, a->next(), b->next()); };
    if (kind == "relu") return [=] { relu(n, b->next()); };
    if (kind == "norm") return [=] { norm_rows(n / kRow, kRow, a->next(), b->next()); };
    if (kind == "permute") {
      std::vector<std::int64_t> from(static_cast<std::size_t>(n / kRow));
      Random random(11);
      for (auto& row : from) row = static_cast<std::int64_t>(random.below(from.size()));
      return [=] { permute(n / kRow, kRow, from.data(), a->next(), b->next()); };
    }
    return [=] { mask(n, a->next(), b->next()); };
  };
  return job;
}

std::vector<Job> kernel_jobs(bool quick) {
  const std::vector<std::int64_t> tokens =
      quick ? std::vector<std::int64_t>{8, 32, 128} : std::vector<std::int64_t>{1, 4, 16, 32, 64, 128, 256, 512};
  const std::vector<std::int64_t> sides =
      quick ? std::vector<std::int64_t>{32, 64, 128, 256} : std::vector<std::int64_t>{16, 32, 64, 128, 256, 512};
  std::vector<Job> jobs;
  for (const char* pass : {"forward", "input-grad", "weight-grad"}) {
    for (const std::int64_t m : tokens) {
      for (const std::int64_t n : sides) {
        for (const std::int64_t k : sides) jobs.push_back(gemm_job(pass, m, n, k));
      }
    }
  }
  for (const char* kind : {"copy", "add", "relu", "mask"}) {
    for (std::int64_t n = 64; n <= (quick ? 1 << 18 : kLargestFloats); n *= 2) jobs.push_back(elementwise_job(kind, n));
  }
  for (const char* kind : {"norm", "permute"}) {
    for (std::int64_t n = kRow; n <= (quick ? 1 << 18 : kLargestFloats); n *= 4)
      jobs.push_back(elementwise_job(kind, n));
  }
  return jobs;
}

/// CPU seconds of one run; short kernels are run several times in a row so that the clock's own cost (about a
/// microsecond) stays below a percent or so.
void sample(const std::function<void()>& run, int repeats, std::vector<double>& out) {
  const double begin = thread_cpu_now();
  for (int i = 0; i < repeats; ++i) run();
  out.push_back((thread_cpu_now() - begin) / repeats);
}

int repeats_for(const std::function<void()>& run) {
  run();
  const double begin = thread_cpu_now();
  run();
  const double once = std::max(thread_cpu_now() - begin, 1e-7);
  return static_cast<int>(std::clamp(1e-4 / once, 1.0, 64.0));
}

/// Every core runs the same kernel at about the same time; all their samples are kept.
void run_kernels(std::vector<Job>& jobs, RankTeam& team, std::vector<Arena>& arenas, int samples_a_pass) {
  std::vector<std::vector<std::vector<double>>> taken(arenas.size(), std::vector<std::vector<double>>(jobs.size()));
  team.run(
      [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        for (std::size_t j = 0; j < jobs.size(); ++j) {
          const auto run = jobs[j].make(arenas[r]);
          const int repeats = repeats_for(run);
          for (int i = 0; i < samples_a_pass; ++i) sample(run, repeats, taken[r][j]);
        }
      },
      [] {});
  for (const auto& by_job : taken) {
    for (std::size_t j = 0; j < jobs.size(); ++j)
      jobs[j].samples.insert(jobs[j].samples.end(), by_job[j].begin(), by_job[j].end());
  }
}

// -------------------------------------------------------------------------------------------------------------
// environment

std::string first_line_with(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const auto colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "unknown";
}

std::map<std::string, double> environment() {
  std::map<std::string, double> out;
  std::ifstream load("/proc/loadavg");
  double one = 0;
  if (load >> one) out["load_1min"] = one;
  return out;
}

}  // namespace

MeasuringFile measure_cpu(const CpuBackendOptions& o) {
  MeasuringFile file;
  if (o.mpi) file.points = measure_mpi_ranks(o.quick);
  file.tool = {{"name", "shardplan"}, {"version", "0.1.0"}, {"arguments", o.arguments}};
  utsname system{};
  uname(&system);
  file.device = {{"name", "host-cpu"},
                 {"cpu", first_line_with("/proc/cpuinfo", "model name")},
                 {"cores", std::to_string(usable_cores())},
                 {"system", std::string(system.sysname) + " " + system.release}};
  file.method = {{"clock", "CPU time of the measuring thread"},
                 {"load", "every core runs the same kernel at the same time"},
                 {"data", "random"},
                 {"cache", "cold: operands of products rotate through 4 MiB each"},
                 {"warm_up", "2 runs a kernel and pass"}};
  file.before = environment();
  const double cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID), wall = wall_now();
  std::vector<Job> jobs = kernel_jobs(o.quick);
  std::vector<Arena> arenas;
  for (int i = 0; i < std::min(usable_cores(), 8); ++i) arenas.emplace_back(static_cast<std::uint64_t>(i) + 1);
  RankTeam team(static_cast<int>(arenas.size()), true);
  std::vector<StepJob> exchanges, steps;
  if (!o.mpi) {
    exchanges = exchange_jobs(o.quick, make_mailbox, "threads and mailbox");
    steps = step_jobs(make_mailbox);
  }
  int passes = 0, exchanged = 0;
  const auto over = [&](double limit) { return o.quick && wall_now() - wall > limit; };
  for (; passes < kPasses && !(passes >= kFewestPasses && over(kQuickSeconds)); ++passes) {
    run_kernels(jobs, team, arenas, o.quick ? 1 : 3);
    if (exchanged >= kFewestPasses && over(kQuickExchangeSeconds)) continue;
    run_steps(exchanges, o.quick ? 2 : 4);
    run_steps(steps, o.quick ? 2 : 4);
    ++exchanged;
  }
  file.method["passes"] = std::to_string(passes) + " over all kernels" +
                          (o.mpi ? "; messages and steps among Open MPI's ranks before them"
                                 : ", " + std::to_string(exchanged) + " over messages and steps");
  const auto keep = [&](auto& job) {
    set_samples(job.point, std::move(job.samples), o.keep_samples);
    file.points.push_back(std::move(job.point));
  };
  for (StepJob& job : exchanges) keep(job);
  for (Job& job : jobs) keep(job);
  for (StepJob& job : steps) keep(job);
  file.after = environment();
  file.after["cpu_seconds"] = read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  file.after["wall_seconds"] = wall_now() - wall;
  return file;
}

}  // namespace shardplan
