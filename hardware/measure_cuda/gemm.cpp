#include "hardware/measure_cuda/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "hardware/measure_cuda/check.hpp"

namespace shardplan::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20;

/// Column-major shapes of one cuBLASLt call: D[M,N] = op(A) op(B), contraction K.
struct Shape {
  std::int64_t M, N, K;
  bool a_transposed, b_transposed;
};

Shape shape_of(const GemmQuestion& q) {
  const bool fp8 = q.format == Format::e4m3;
  if (q.pass == "forward") return {q.n, q.m, q.k, true, false};
  if (q.pass == "input-grad") return {q.k, q.m, q.n, fp8, false};
  return {q.k, q.n, q.m, fp8, !fp8};
}

cudaDataType_t type_of(Format format) { return format == Format::bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3; }
std::size_t width_of(Format format) { return format == Format::bf16 ? 2 : 1; }

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which, const T& value, const char* what) {
  check(cublasLtMatmulDescSetAttribute(desc, which, &value, sizeof value), what);
}

}  // namespace

GemmArena::GemmArena(std::size_t operand_bytes, std::size_t out_bytes)
    : bf16(random_buffer(operand_bytes, Format::bf16)),
      e4m3(random_buffer(operand_bytes / 2, Format::e4m3)),
      out(out_bytes),
      workspace(kWorkspace),
      one(sizeof(float)) {
  const float value = 1;
  check(cudaMemcpy(one.data(), &value, sizeof value, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaMemset(out.data(), 0, out.bytes()), "cudaMemset");
  // All this ran on the default stream, which the measuring streams do not wait for.
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

struct PlannedGemm::Plan {
  GemmQuestion question;
  Shape shape{};
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  const char *a_data = nullptr, *b_data = nullptr;
  char* d_data = nullptr;
  void* workspace = nullptr;
  cudaDataType_t d_type = CUDA_R_16BF;
  float beta = 0;

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
    if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
    if (d != nullptr) cublasLtMatrixLayoutDestroy(d);
    if (desc != nullptr) cublasLtMatmulDescDestroy(desc);
  }

  void describe(const GemmArena& arena) {
    check(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t op_a = shape.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            op_b = shape.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, op_a, "TRANSA");
    set(desc, CUBLASLT_MATMUL_DESC_TRANSB, op_b, "TRANSB");
    if (question.sm_target > 0)
      set(desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{question.sm_target}, "SM_COUNT_TARGET");
    if (question.format == Format::e4m3) {
      const void* one = arena.one.data();
      set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, one, "A_SCALE_POINTER");
      set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, one, "B_SCALE_POINTER");
      // As training does: fast accumulation forward, precise accumulation backward.
      const std::int8_t fast = question.pass == "forward" ? 1 : 0;
      set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast, "FAST_ACCUM");
    }
  }

  void lay_out() {
    const cudaDataType_t type = type_of(question.format);
    const std::int64_t a_rows = shape.a_transposed ? shape.K : shape.M,
                       a_columns = shape.a_transposed ? shape.M : shape.K;
    const std::int64_t b_rows = shape.b_transposed ? shape.N : shape.K,
                       b_columns = shape.b_transposed ? shape.K : shape.N;
    const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    check(cublasLtMatrixLayoutCreate(&a, type, u(a_rows), u(a_columns), a_rows), "layout of A");
    check(cublasLtMatrixLayoutCreate(&b, type, u(b_rows), u(b_columns), b_rows), "layout of B");
    check(cublasLtMatrixLayoutCreate(&d, d_type, u(shape.M), u(shape.N), shape.M), "layout of D");
  }

  void place(const GemmArena& arena) {
    const Buffer& operands = question.format == Format::bf16 ? arena.bf16 : arena.e4m3;
    const std::size_t width = width_of(question.format);
    const std::size_t a_bytes = (static_cast<std::size_t>(shape.M * shape.K) * width + 255) / 256 * 256;
    const std::size_t b_bytes = static_cast<std::size_t>(shape.K * shape.N) * width;
    const std::size_t d_bytes = static_cast<std::size_t>(shape.M * shape.N) * (d_type == CUDA_R_32F ? 4 : 2);
    if (a_bytes + b_bytes > operands.bytes() || d_bytes > arena.out.bytes())
      throw std::runtime_error("larger than the arena");
    a_data = operands.data();
    b_data = operands.data() + a_bytes;
    d_data = arena.out.data();
    workspace = arena.workspace.data();
  }

  void choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const std::size_t bytes = kWorkspace;
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                               sizeof bytes),
          "workspace");
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw std::runtime_error("cuBLASLt has no algorithm for this product");
    algorithm = result.algo;
  }
};

PlannedGemm::PlannedGemm(cublasLtHandle_t handle, const GemmArena& arena, const GemmQuestion& question)
    : plan_(std::make_shared<Plan>()) {
  Plan& p = *plan_;
  p.question = question;
  p.shape = shape_of(question);
  p.handle = handle;
  if (question.pass == "weight-grad") {  // accumulates into an FP32 gradient
    p.d_type = CUDA_R_32F;
    p.beta = 1;
  }
  p.describe(arena);
  p.lay_out();
  p.place(arena);
  p.choose();
}

void PlannedGemm::launch(cudaStream_t stream) const {
  const Plan& p = *plan_;
  const float alpha = 1;
  check(cublasLtMatmul(p.handle, p.desc, &alpha, p.a_data, p.a, p.b_data, p.b, &p.beta, p.d_data, p.d, p.d_data, p.d,
                       &p.algorithm, p.workspace, kWorkspace, stream),
        "cublasLtMatmul");
}

Point PlannedGemm::point() const {
  const GemmQuestion& q = plan_->question;
  Point point;
  point.kernel = "gemm";
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  point.numbers = {{"m", d(q.m)}, {"n", d(q.n)}, {"k", d(q.k)}};
  if (q.sm_target > 0) point.numbers["sm_target"] = q.sm_target;
  point.words = {{"dtype", q.format == Format::bf16 ? "bf16" : "fp8"}, {"pass", q.pass}, {"library", "cublaslt"}};
  const double width = static_cast<double>(width_of(q.format));
  point.flops = 2 * d(q.m) * d(q.n) * d(q.k);
  const Shape& s = plan_->shape;
  point.bytes = width * (d(s.M) * d(s.K) + d(s.K) * d(s.N)) + d(s.M) * d(s.N) * (plan_->d_type == CUDA_R_32F ? 8 : 2);
  return point;
}

double PlannedGemm::error(cudaStream_t stream) const {
  const Plan& p = *plan_;
  const Shape& s = p.shape;
  const std::size_t width = width_of(p.question.format), d_width = p.d_type == CUDA_R_32F ? 4 : 2;
  std::vector<unsigned char> a(static_cast<std::size_t>(s.M * s.K) * width),
      b(static_cast<std::size_t>(s.K * s.N) * width), d(static_cast<std::size_t>(s.M * s.N) * d_width);
  check(cudaMemsetAsync(p.d_data, 0, d.size(), stream), "cudaMemsetAsync");
  launch(stream);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaMemcpy(a.data(), p.a_data, a.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(b.data(), p.b_data, b.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(d.data(), p.d_data, d.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  const auto at = [&](const std::vector<unsigned char>& from, std::int64_t i) {
    return static_cast<double>(decode(p.question.format, &from[static_cast<std::size_t>(i) * width]));
  };
  double worst = 0, largest = 0;
  for (std::int64_t column = 0; column < s.N; ++column) {
    for (std::int64_t row = 0; row < s.M; ++row) {
      double want = 0;
      for (std::int64_t l = 0; l < s.K; ++l)
        want += at(a, s.a_transposed ? row * s.K + l : l * s.M + row) *
                at(b, s.b_transposed ? l * s.N + column : column * s.K + l);
      const auto i = static_cast<std::size_t>(column * s.M + row);
      float got = 0;
      if (d_width == 4)
        std::copy_n(&d[i * 4], 4, reinterpret_cast<unsigned char*>(&got));
      else
        got = decode(Format::bf16, &d[i * 2]);
      worst = std::max(worst, std::abs(want - got));
      largest = std::max(largest, std::abs(want));
    }
  }
  return worst / largest;
}

bool gemms_are_right(cublasLtHandle_t handle, const GemmArena& arena, cudaStream_t stream,
                     std::vector<std::string>& notes) {
  // BF16 results round at 2^-9; FP8 with fast accumulation loses more.
  bool right = true;
  for (const Format format : {Format::bf16, Format::e4m3}) {
    for (const char* pass : {"forward", "input-grad", "weight-grad"}) {
      const double tolerance = format == Format::bf16 ? 0.01 : 0.03;
      try {
        const double error = PlannedGemm(handle, arena, {64, 96, 128, format, pass, 0}).error(stream);
        if (error <= tolerance) continue;
        notes.push_back(std::string(pass) + " product differs from FP64 by " + std::to_string(error) +
                        " of its largest value");
        right = false;
      } catch (const std::exception& e) {
        notes.push_back(std::string(format == Format::bf16 ? "bf16 " : "fp8 ") + pass +
                        " product not measured: " + e.what());
      }
    }
  }
  return right;
}

std::vector<Job> gemm_jobs(cublasLtHandle_t handle, const GemmArena& arena, const DeviceFacts& facts, bool quick,
                           std::vector<std::string>& notes) {
  const std::vector<std::int64_t> tokens =
      quick ? std::vector<std::int64_t>{16, 256, 4096} : std::vector<std::int64_t>{16, 64, 256, 1024, 4096, 16384};
  const std::vector<std::int64_t> outputs =
      quick ? std::vector<std::int64_t>{4096} : std::vector<std::int64_t>{4096, 7168, 8192};
  const std::vector<std::int64_t> inputs =
      quick ? std::vector<std::int64_t>{2048, 7168} : std::vector<std::int64_t>{1536, 2048, 4096, 7168, 14336};
  std::vector<Job> jobs;
  std::size_t left_out = 0;
  const auto put = [&](const GemmQuestion& q, const char* state) {
    try {
      const PlannedGemm gemm(handle, arena, q);
      Job job{gemm.point(), [gemm](cudaStream_t stream) { gemm.launch(stream); }};
      job.point.state = state;
      jobs.push_back(std::move(job));
    } catch (const std::exception&) {
      ++left_out;
    }
  };
  for (const Format format : {Format::bf16, Format::e4m3}) {
    for (const char* pass : {"forward", "input-grad", "weight-grad"}) {
      for (const std::int64_t m : tokens) {
        for (const std::int64_t n : outputs) {
          for (const std::int64_t k : inputs) put({m, n, k, format, pass, 0}, "cold");
        }
      }
    }
    for (const int sms : {facts.sms, facts.sms * 112 / 132, facts.sms * 96 / 132})
      put({4096, 4096, 7168, format, "forward", sms}, "cold");
    put({4096, 4096, 7168, format, "forward", 0}, "hot");
    put({16, 4096, 7168, format, "forward", 0}, "graph");
  }
  if (left_out > 0)
    notes.push_back(std::to_string(left_out) + " products were left out: no algorithm, or larger than the arena");
  return jobs;
}

namespace {

/// 8 experts, 8192 tokens in all; popularity falls as (rank + 1)^-skew, counts in multiples of 16.
Job grouped_job(cublasLtHandle_t handle, const GemmArena& arena, Format format, double skew) {
  constexpr int kExperts = 8;
  double total = 0;
  for (int e = 0; e < kExperts; ++e) total += std::pow(e + 1, -skew);
  std::vector<PlannedGemm> parts;
  Point point;
  for (int e = 0; e < kExperts; ++e) {
    const auto rows = static_cast<std::int64_t>(8192 * std::pow(e + 1, -skew) / total) / 16 * 16;
    parts.emplace_back(handle, arena, GemmQuestion{std::max<std::int64_t>(rows, 16), 4096, 7168, format, "forward", 0});
    const Point part = parts.back().point();
    point.flops += part.flops;
    point.bytes += part.bytes;
    point.words = part.words;
  }
  point.kernel = "grouped-gemm";
  point.words["method"] = "a loop of products on one stream";
  point.numbers = {{"experts", kExperts}, {"tokens", 8192}, {"n", 4096}, {"k", 7168}, {"skew", skew}};
  return {point, [parts](cudaStream_t stream) {
            for (const PlannedGemm& part : parts) part.launch(stream);
          }};
}

}  // namespace

std::vector<Job> grouped_jobs(cublasLtHandle_t handle, const GemmArena& arena, bool quick,
                              std::vector<std::string>& notes) {
  std::vector<Job> jobs;
  for (const Format format : {Format::bf16, Format::e4m3}) {
    for (const double skew : {0.0, 1.0}) {
      if (quick && skew > 0) continue;
      try {
        jobs.push_back(grouped_job(handle, arena, format, skew));
      } catch (const std::exception& e) {
        notes.push_back(std::string(format == Format::bf16 ? "bf16" : "fp8") +
                        " grouped products left out: " + e.what());
        break;
      }
    }
  }
  return jobs;
}

}  // namespace shardplan::cuda
