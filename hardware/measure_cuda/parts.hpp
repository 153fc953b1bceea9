#pragma once
// What else the plug-in measures. Each part adds points; notes say what was not measured and why.
#include <cublasLt.h>

#include <string>
#include <vector>

#include "hardware/measure_cuda/bench.hpp"
#include "hardware/measure_cuda/gemm.hpp"

namespace shardplan::cuda {

using Notes = std::vector<std::string>;

/// Copies by the driver, and with nvcc's kernels: copy, norm, permute, cast to FP8, SwiGLU from 64 KiB to 1 GiB.
std::vector<Job> memory_jobs(const GemmArena&, bool quick, Notes&);
/// The memory kernels against values computed here; notes what is off.
bool memory_is_right(const GemmArena&, cudaStream_t, Notes&);
/// What a launch costs: back to back on a stream, and inside a graph.
std::vector<Job> launch_jobs(const GemmArena&);
/// A product beside a stream of copies, for several SM targets: the slowdown of both.
std::vector<Point> contention_points(Bench&, cublasLtHandle_t, const GemmArena&, const DeviceFacts&, bool quick,
                                     Notes&);
/// NCCL among all visible GPUs; with one only a smoke run of one rank, flagged so.
std::vector<Point> collective_points(bool quick, const std::vector<std::vector<double>>& traffic, Notes&);
/// An attention-less transformer layer: forward, and backward with input and weight gradients, each as one graph;
/// `parts_s` is the sum of its products and memory kernels timed alone.
std::vector<Point> layer_points(Bench&, cublasLtHandle_t, const GemmArena&, bool quick, Notes&);

}  // namespace shardplan::cuda
