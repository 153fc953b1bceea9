#include "hardware/measure_cuda/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
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
  check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
  return 1e-3 * milliseconds / launches;
}

double Bench::graph_seconds(const Launch& run, int launches) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  run(stream_);  // warm, outside the capture
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < launches; ++i) run(stream_);
  check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  const double seconds =
      timed([&](cudaStream_t s) { check(cudaGraphLaunch(executable, s), "cudaGraphLaunch"); }, 1) / launches;
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return seconds;
}

double Bench::once(Job& job, int launches) {
  if (job.point.state == "cold") return timed(job.launch, 1);
  if (job.point.state == "graph") return graph_seconds(job.launch, launches);
  return timed(job.launch, launches);
}

void Bench::sample(Job& job, int samples) {
  timed(job.launch, 2);  // warm-up: module load, heuristics, clocks
  const double first = timed(job.launch, 1);
  const int launches = static_cast<int>(std::clamp(kHotSeconds / std::max(first, 1e-7), 1.0, 100.0));
  constexpr int kTries = 5;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<double> taken;
    for (int i = 0; i < samples; ++i) taken.push_back(once(job, launches));
    if (!throttled()) {
      job.point.samples.insert(job.point.samples.end(), taken.begin(), taken.end());
      return;
    }
    job.point.throttled += samples;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // The clock does not come back: keep what it gives, and say so.
  job.point.flags.push_back("throttled");
  for (int i = 0; i < samples; ++i) job.point.samples.push_back(once(job, launches));
}

void run_jobs(Bench& bench, std::vector<Job>& jobs, int rounds, int samples_a_round, double seconds) {
  const double end = wall_seconds() + seconds;
  for (int round = 0; round < rounds; ++round) {
    for (Job& job : jobs) {
      if (round > 0 && wall_seconds() > end) return;  // the first round always ends: every point needs samples
      bench.sample(job, samples_a_round);
    }
  }
}

}  // namespace shardplan::cuda
