#pragma once
// How a kernel is timed. cold: the L2 is overwritten before every launch, which also keeps the queue full, so that the
// events bracket the kernel and no launch latency. hot: launches in a row between two events. graph: the same inside a
// CUDA graph. Samples taken while the SM clock is below 0.75 of the device's clock rate are dropped and counted; clocks
// are never set.
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hardware/measure_cuda/device.hpp"

namespace shardplan::cuda {

using Launch = std::function<void(cudaStream_t)>;

struct Point {
  std::string kernel;
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> words;
  double flops = 0, bytes = 0;
  std::string state = "cold";
  std::vector<double> samples;  // seconds
  std::vector<std::string> flags;
  int throttled = 0;  // samples dropped
};

/// One kernel to be timed, several times with others in between.
struct Job {
  Point point;
  Launch launch;
};

class Bench {
 public:
  explicit Bench(const DeviceFacts&);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  cudaStream_t stream() const { return stream_; }
  const DeviceMonitor& monitor() const { return monitor_; }

  /// Adds about `samples` samples in the job's state.
  void sample(Job&, int samples);
  /// Seconds of one launch of `run` on the stream, by events, after a flush.
  double timed(const Launch& run, int launches);
  void flush();

 private:
  void take(Job&, int launches, int samples, std::vector<double>& into);
  bool throttled() const;

  DeviceMonitor monitor_;
  double least_mhz_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* flush_ = nullptr;
  std::size_t flush_bytes_ = 0;
};

/// Rounds over all jobs, so that a slow moment hits every kernel alike. Stops early at `seconds` (the first round at
/// twice that). A job that fails or is not reached is left without samples, and a note says so.
void run_jobs(Bench&, std::vector<Job>&, int rounds, int samples_a_round, double seconds,
              std::vector<std::string>& notes);

/// Device memory that lives as long as the object.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&&) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Normal random numbers of BF16 (2 bytes) or FP8 E4M3 (1 byte), a megaelement drawn and repeated; never zeros.
enum class Format { bf16, e4m3 };
Buffer random_buffer(std::size_t bytes, Format format);
float decode(Format format, const unsigned char* at);

}  // namespace shardplan::cuda
