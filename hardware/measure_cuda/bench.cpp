#include "hardware/measure_cuda/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/random.hpp"
#include "hardware/measure_cuda/check.hpp"

namespace shardplan::cuda {
namespace {

constexpr double kLeastClockShare = 0.75;
constexpr double kHotSeconds = 200e-6;  // a hot sample lasts at least this long

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint16_t encode_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// FP8 E4M3 (OCP): 1 sign, 4 exponent (bias 7), 3 mantissa bits, largest 448. Rounds to nearest; small values to
/// subnormals.
std::uint8_t encode_e4m3(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::min(std::abs(value), 448.0f);
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f 2^exponent, f in [0.5, 1)
  const int e = std::max(exponent - 1, -6);
  const int mantissa = static_cast<int>(std::lround(std::ldexp(magnitude, 3 - e)));  // 8..16 normal, below 8 subnormal
  if (mantissa >= 16) return static_cast<std::uint8_t>(sign | std::min((e + 1 + 7) << 3, 0x7e));
  if (mantissa >= 8) return static_cast<std::uint8_t>(sign | ((e + 7) << 3) | (mantissa - 8));
  return static_cast<std::uint8_t>(sign | mantissa);
}

}  // namespace

float decode(Format format, const unsigned char* at) {
  if (format == Format::bf16) {
    const std::uint32_t bits = (std::uint32_t{at[1]} << 24) | (std::uint32_t{at[0]} << 16);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  const int exponent = (*at >> 3) & 0xf, mantissa = *at & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (*at & 0x80) != 0 ? -magnitude : magnitude;
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  void* raw = nullptr;
  check(cudaMalloc(&raw, std::max<std::size_t>(bytes, 256)), "cudaMalloc");
  data_ = static_cast<char*>(raw);
}
Buffer::~Buffer() {
  if (data_ != nullptr) cudaFree(data_);
}
Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer random_buffer(std::size_t bytes, Format format) {
  Random random(42);
  const std::size_t width = format == Format::bf16 ? 2 : 1;
  std::vector<unsigned char> block(std::min<std::size_t>(bytes, (std::size_t{1} << 20) * width));
  for (std::size_t i = 0; i + width <= block.size(); i += width) {
    const float value = static_cast<float>(random.normal());
    if (format == Format::bf16) {
      const std::uint16_t bits = encode_bf16(value);
      std::memcpy(&block[i], &bits, 2);
    } else {
      block[i] = encode_e4m3(value);
    }
  }
  Buffer buffer(bytes);
  check(cudaMemcpy(buffer.data(), block.data(), block.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  for (std::size_t filled = block.size(); filled < bytes;) {
    const std::size_t n = std::min(filled, bytes - filled);
    check(cudaMemcpy(buffer.data() + filled, buffer.data(), n, cudaMemcpyDeviceToDevice), "cudaMemcpy");
    filled += n;
  }
  return buffer;
}

Bench::Bench(const DeviceFacts& facts) : least_mhz_(kLeastClockShare * facts.clock_mhz) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  check(cudaEventCreate(&end_), "cudaEventCreate");
  flush_bytes_ = std::max<std::size_t>(2 * static_cast<std::size_t>(facts.l2_bytes), std::size_t{256} << 20);
  check(cudaMalloc(&flush_, flush_bytes_), "cudaMalloc of the flush buffer");
}

Bench::~Bench() {
  cudaFree(flush_);
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

void Bench::flush() { check(cudaMemsetAsync(flush_, 0x5a, flush_bytes_, stream_), "cudaMemsetAsync"); }

bool Bench::throttled() const {
  const double mhz = monitor_.sm_mhz();
  return mhz > 0 && mhz < least_mhz_;
}

double Bench::timed(const Launch& run, int launches) {
  flush();
  check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  for (int i = 0; i < launches; ++i) run(stream_);
  check(cudaGetLastError(), "kernel launch");  // of kernels launched with <<<>>>, which answer nothing
  check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return 1e-3 * milliseconds / launches;
}

namespace {

/// `launches` in a row as one graph. A launch that fails ends the capture: the stream stays usable.
class Graph {
 public:
  Graph(cudaStream_t stream, const Launch& run, int launches) {
    run(stream);  // warm, outside the capture: module load, workspaces
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      for (int i = 0; i < launches; ++i) run(stream);
    } catch (...) {
      if (cudaStreamEndCapture(stream, &graph_) == cudaSuccess) cudaGraphDestroy(graph_);
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph_, 0);
    cudaGraphDestroy(graph_);
    check(made, "cudaGraphInstantiate");
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

void Bench::take(Job& job, int launches, int samples, std::vector<double>& into) {
  if (job.point.state != "graph") {
    const int in_a_row = job.point.state == "cold" ? 1 : launches;
    for (int i = 0; i < samples; ++i) into.push_back(timed(job.launch, in_a_row));
    return;
  }
  const Graph graph(stream_, job.launch, launches);
  const Launch run = [&](cudaStream_t s) { graph.launch(s); };
  timed(run, 1);  // a graph's first launch uploads it
  for (int i = 0; i < samples; ++i) into.push_back(timed(run, 1) / launches);
}

void Bench::sample(Job& job, int samples) {
  timed(job.launch, 2);  // warm-up: module load, heuristics, clocks
  const double first = timed(job.launch, 1);
  const int launches = static_cast<int>(std::clamp(kHotSeconds / std::max(first, 1e-7), 1.0, 100.0));
  constexpr int kTries = 5;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<double> taken;
    take(job, launches, samples, taken);
    if (!throttled()) {
      job.point.samples.insert(job.point.samples.end(), taken.begin(), taken.end());
      return;
    }
    job.point.throttled += samples;
    // Low because it is hot (a pause helps) or because it was idle (work does): one after the other.
    std::this_thread::sleep_for(std::chrono::milliseconds(attempt % 2 == 0 ? 0 : 100));
    const double busy_until = wall_seconds() + 0.03;
    while (attempt % 2 == 0 && wall_seconds() < busy_until) timed(job.launch, launches);
  }
  // The clock does not come back: keep what it gives, and say so.
  if (std::find(job.point.flags.begin(), job.point.flags.end(), "throttled") == job.point.flags.end())
    job.point.flags.push_back("throttled");
  take(job, launches, samples, job.point.samples);
}

void run_jobs(Bench& bench, std::vector<Job>& jobs, int rounds, int samples_a_round, double seconds,
              std::vector<std::string>& notes) {
  const double end = wall_seconds() + seconds;
  std::vector<bool> failed(jobs.size(), false);
  std::size_t failures = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      // Every point needs the first round's samples: it may take twice its time, but no more.
      if (wall_seconds() > (round > 0 ? end : end + seconds)) {
        if (round == 0)
          notes.push_back(std::to_string(jobs.size() - i) + " of " + std::to_string(jobs.size()) +
                          " kernels were not reached in time");
        return;
      }
      if (failed[i]) continue;
      try {
        bench.sample(jobs[i], samples_a_round);
      } catch (const std::exception& e) {
        failed[i] = true;
        jobs[i].point.samples.clear();
        if (++failures <= 3) notes.push_back(jobs[i].point.kernel + " failed: " + e.what());
        cudaGetLastError();
      }
    }
  }
}

}  // namespace shardplan::cuda
