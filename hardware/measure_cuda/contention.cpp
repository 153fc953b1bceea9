// A product beside copies on another stream, and an attention-less layer.
#include <algorithm>
#include <cmath>

#include "hardware/measure/samples.hpp"
#include "hardware/measure_cuda/check.hpp"
#include "hardware/measure_cuda/parts.hpp"
#if SHARDPLAN_CUDA_KERNELS
#include "hardware/measure_cuda/kernels.hpp"
#endif

namespace shardplan::cuda {
namespace {

/// Runs copies on its own stream while a product is timed: the driver's, or those of a kernel that holds `blocks` SMs
/// as the kernels of NCCL and DeepEP do.
class Neighbour {
 public:
  Neighbour(const GemmArena& arena, int blocks) : arena_(&arena), target_(kBytes), blocks_(blocks) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    for (cudaEvent_t* event : {&begin_, &end_}) check(cudaEventCreate(event), "cudaEventCreate");
  }
  ~Neighbour() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  static constexpr std::size_t kBytes = std::size_t{64} << 20;
  void start(int copies) {
    copies_ = copies;
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < copies; ++i) copy();
    check(cudaGetLastError(), "kernel launch");
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  }
  /// Still copying: what was timed beside it had company to its end.
  bool busy() const { return cudaEventQuery(end_) == cudaErrorNotReady; }
  double seconds_a_copy() {
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1e-3 * milliseconds / copies_;
  }

 private:
  void copy() {
#if SHARDPLAN_CUDA_KERNELS
    if (blocks_ > 0)
      return copy_kernel(arena_->bf16.data(), target_.data(), static_cast<std::int64_t>(kBytes / 16), stream_, blocks_);
#endif
    check(cudaMemcpyAsync(target_.data(), arena_->bf16.data(), kBytes, cudaMemcpyDeviceToDevice, stream_),
          "cudaMemcpyAsync");
  }

  const GemmArena* arena_;
  Buffer target_;
  int blocks_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int copies_ = 1;
};

Point beside_copies(Bench& bench, const PlannedGemm& gemm, Neighbour& neighbour, double copy_alone, int samples) {
  const Launch launch = [&](cudaStream_t s) { gemm.launch(s); };
  Point point = gemm.point();
  point.kernel = "gemm-beside-copy";
  point.state = "hot";
  bench.timed(launch, 3);
  std::vector<double> alone, beside_copy;
  for (int i = 0; i < samples; ++i) {
    constexpr int kLaunches = 5;
    alone.push_back(bench.timed(launch, kLaunches));
    // Enough copies to outlast the products even at a third of their speed.
    neighbour.start(static_cast<int>(std::ceil(4 * kLaunches * alone.back() / copy_alone)) + 4);
    point.samples.push_back(bench.timed(launch, kLaunches));
    if (!neighbour.busy()) point.flags = {"unverified"};
    beside_copy.push_back(neighbour.seconds_a_copy());
  }
  point.numbers["alone_s"] = median(alone);
  point.numbers["copy_alone_s"] = copy_alone;
  point.numbers["copy_beside_s"] = median(beside_copy);
  point.numbers["copy_bytes"] = static_cast<double>(Neighbour::kBytes);
  return point;
}

struct LayerStep {
  Job job;
  bool backward;
};

/// Tokens x hidden through QKV, output, gate-up and down projections of a Llama-3-8B-like layer, without attention.
std::vector<LayerStep> layer_steps(cublasLtHandle_t handle, const GemmArena& arena, std::int64_t tokens) {
  struct Linear {
    std::int64_t n, k;
  };
  constexpr Linear kLinears[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
  std::vector<LayerStep> steps;
  for (const char* pass : {"forward", "input-grad", "weight-grad"}) {
    for (const Linear& linear : kLinears) {
      const PlannedGemm gemm(handle, arena, {tokens, linear.n, linear.k, Format::bf16, pass, 0});
      steps.push_back({{gemm.point(), [gemm](cudaStream_t s) { gemm.launch(s); }}, std::string(pass) != "forward"});
    }
  }
#if SHARDPLAN_CUDA_KERNELS
  const char* from = arena.bf16.data();
  char* to = arena.out.data();
  for (int i = 0; i < 2; ++i) {
    Job norm;
    norm.point.bytes = 4.0 * static_cast<double>(tokens) * 4096;
    norm.launch = [=](cudaStream_t s) { norm_kernel(from, to, tokens, 4096, s); };
    steps.push_back({norm, false});
  }
  Job activation;
  activation.point.bytes = 6.0 * static_cast<double>(tokens) * 14336;
  activation.launch = [=](cudaStream_t s) { swiglu_kernel(from, to, tokens, 14336, s); };
  steps.push_back({activation, false});
#endif
  return steps;
}

}  // namespace

std::vector<Point> contention_points(Bench& bench, cublasLtHandle_t handle, const GemmArena& arena,
                                     const DeviceFacts& facts, bool quick, Notes& notes) {
  std::vector<Point> points;
  if (arena.bf16.bytes() < Neighbour::kBytes) return points;
  std::vector<int> neighbours = {0};
#if SHARDPLAN_CUDA_KERNELS
  neighbours.push_back(20 * facts.sms / 132);  // as DeepEP's kernels beside DeepSeek's training: 20 of 132
#else
  notes.push_back("products were timed beside the driver's copies only: the plug-in was built without nvcc");
#endif
  for (const int blocks : neighbours) {
    Neighbour neighbour(arena, blocks);
    neighbour.start(3);
    neighbour.seconds_a_copy();  // warm
    neighbour.start(20);
    const double copy_alone = neighbour.seconds_a_copy();
    for (const int sms : {0, facts.sms * 112 / 132, facts.sms * 96 / 132}) {
      const PlannedGemm gemm(handle, arena, {4096, 7168, 4096, Format::bf16, "forward", sms});
      Point point = beside_copies(bench, gemm, neighbour, copy_alone, quick ? 5 : 15);
      point.words["copies"] = blocks > 0 ? "a kernel of some blocks" : "the driver's";
      if (blocks > 0) point.numbers["copy_blocks"] = blocks;
      points.push_back(point);
    }
  }
  (void)notes;
  return points;
}

std::vector<Point> layer_points(Bench& bench, cublasLtHandle_t handle, const GemmArena& arena, bool quick,
                                Notes& notes) {
  std::vector<Point> points;
  constexpr std::int64_t kTokens = 4096;
  std::vector<LayerStep> steps = layer_steps(handle, arena, kTokens);
  for (const bool backward : {false, true}) {
    Job layer;
    layer.point.kernel = "layer";
    layer.point.state = "graph";
    layer.point.words = {{"phase", backward ? "backward" : "forward"}, {"shape", "Llama-3-8B-like without attention"}};
    layer.point.numbers = {{"tokens", static_cast<double>(kTokens)}, {"hidden", 4096}, {"inner", 14336}, {"qkv", 6144}};
    double parts = 0;
    std::vector<Launch> launches;
    for (LayerStep& step : steps) {
      if (step.backward != backward) continue;
      step.job.point.state = "hot";
      step.job.point.samples.clear();
      bench.sample(step.job, quick ? 5 : 9);
      parts += median(step.job.point.samples);
      layer.point.flops += step.job.point.flops;
      layer.point.bytes += step.job.point.bytes;
      launches.push_back(step.job.launch);
    }
    layer.launch = [launches](cudaStream_t s) {
      for (const Launch& launch : launches) launch(s);
    };
    bench.sample(layer, quick ? 5 : 15);
    layer.point.numbers["parts_s"] = parts;
    points.push_back(layer.point);
  }
#if !SHARDPLAN_CUDA_KERNELS
  notes.push_back("the layer is its products only: the plug-in was built without nvcc");
#endif
  (void)notes;
  return points;
}

}  // namespace shardplan::cuda
