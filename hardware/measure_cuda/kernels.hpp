#pragma once
// Memory-bound kernels, built by nvcc where it is there (SHARDPLAN_CUDA_KERNELS). Data are BF16 unless said otherwise.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan::cuda {

/// to = from, n elements of 16 bytes; blocks: 0 = as many as fit the size, else that many and no more (as collective
/// kernels hold a fixed number of SMs).
void copy_kernel(const void* from, void* to, std::int64_t vectors, cudaStream_t, int blocks = 0);
/// RMS normalisation of rows: y = x / sqrt(mean(x^2) + 1e-6), rows x columns BF16.
void norm_kernel(const void* x, void* y, std::int64_t rows, std::int64_t columns, cudaStream_t);
/// Gathers rows: y[i] = x[index[i]].
void permute_kernel(const void* x, const std::int32_t* index, void* y, std::int64_t rows, std::int64_t columns,
                    cudaStream_t);
/// BF16 to FP8 E4M3, one scale for every 128 values of a row (their largest over 448), as block-scaled training casts.
void cast_kernel(const void* x, void* y, float* scales, std::int64_t rows, std::int64_t columns, cudaStream_t);
/// y = silu(gate) * up of rows of 2 x columns.
void swiglu_kernel(const void* x, void* y, std::int64_t rows, std::int64_t columns, cudaStream_t);
/// Does nothing: what a launch costs.
void empty_kernel(cudaStream_t);

}  // namespace shardplan::cuda
