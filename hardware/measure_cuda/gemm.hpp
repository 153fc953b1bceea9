#pragma once
// Products by cuBLASLt in the layouts that training uses, and their check against FP64.
//
// m = tokens, n = output features, k = input features of the forward product. Weights [n, k], activations [m, k],
// row-major.
//   forward      Y[m,n]  = X W^T      cuBLASLt (column-major): TN, M = n, N = m, K = k
//   input-grad   dX[m,k] = dY W       BF16: NN, M = k, N = m, K = n; FP8: TN, with a transposed copy of W
//   weight-grad  dW[n,k] += dY^T X    BF16: NT, M = k, N = n, K = m, into FP32; FP8: TN, with transposed copies
#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hardware/measure_cuda/bench.hpp"

namespace shardplan::cuda {

struct GemmQuestion {
  std::int64_t m = 0, n = 0, k = 0;
  Format format = Format::bf16;
  std::string pass = "forward";
  int sm_target = 0;  // 0 = all
};

/// Memory that all products share: random operands of both formats, and room for results.
struct GemmArena {
  Buffer bf16, e4m3, out, workspace, one;  // one: a device float of 1, the scale of FP8 operands
  explicit GemmArena(std::size_t operand_bytes, std::size_t out_bytes);
};

/// A planned product; launch() may be called on any stream. Throws where cuBLASLt has no algorithm.
class PlannedGemm {
 public:
  PlannedGemm(cublasLtHandle_t, const GemmArena&, const GemmQuestion&);
  void launch(cudaStream_t) const;
  Point point() const;
  /// Largest |got - FP64| over the largest |FP64|. For small sizes.
  double error(cudaStream_t) const;

 private:
  struct Plan;
  std::shared_ptr<Plan> plan_;
};

/// The grid: tokens x (n, k) of common models, all passes and formats, reduced SM counts; quick: a tenth of it.
std::vector<Job> gemm_jobs(cublasLtHandle_t, const GemmArena&, const DeviceFacts&, bool quick,
                           std::vector<std::string>& notes);
/// Experts as a loop of products with skewed token counts, timed as one kernel.
std::vector<Job> grouped_jobs(cublasLtHandle_t, const GemmArena&, bool quick, std::vector<std::string>& notes);
/// Small products of every pass and format against FP64; notes what is off. Returns whether all are right.
bool gemms_are_right(cublasLtHandle_t, const GemmArena&, cudaStream_t, std::vector<std::string>& notes);

}  // namespace shardplan::cuda
