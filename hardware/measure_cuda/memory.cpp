#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "hardware/measure_cuda/check.hpp"
#include "hardware/measure_cuda/parts.hpp"
#if SHARDPLAN_CUDA_KERNELS
#include "hardware/measure_cuda/kernels.hpp"
#endif

namespace shardplan::cuda {
namespace {

constexpr std::int64_t kColumns = 7168;  // a hidden size; a multiple of 128 and of 8

Job job_of(const std::string& kernel, double bytes, std::int64_t rows, Launch launch) {
  Job job;
  job.point.kernel = kernel;
  job.point.bytes = bytes;
  job.point.words = {{"dtype", "bf16"}};
  if (rows > 0)
    job.point.numbers = {{"rows", static_cast<double>(rows)}, {"columns", static_cast<double>(kColumns)}};
  else
    job.point.numbers = {{"bytes", bytes}};
  job.launch = std::move(launch);
  return job;
}

#if SHARDPLAN_CUDA_KERNELS
/// Every row once, neighbours far apart: multiplication by an odd number modulo a power of two.
std::shared_ptr<Buffer> scattered_rows(std::int64_t rows) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i)
    order[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((i * 40503) % rows);
  auto buffer = std::make_shared<Buffer>(order.size() * sizeof(std::int32_t));
  check(cudaMemcpy(buffer->data(), order.data(), order.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // the measuring streams do not wait for the default one
  return buffer;
}
#endif

}  // namespace

std::vector<Job> memory_jobs(const GemmArena& arena, bool quick, Notes& notes) {
  std::vector<Job> jobs;
  const char* from = arena.bf16.data();
  char* to = arena.out.data();
  const std::size_t most = std::min({arena.bf16.bytes(), arena.out.bytes(), std::size_t{1} << 30});
  for (std::size_t n = std::size_t{1} << 16; n <= most; n *= quick ? 16 : 4) {
    jobs.push_back(job_of("copy-driver", 2.0 * static_cast<double>(n), 0, [=](cudaStream_t s) {
      check(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, s), "cudaMemcpyAsync");
    }));
#if SHARDPLAN_CUDA_KERNELS
    jobs.push_back(job_of("copy", 2.0 * static_cast<double>(n), 0,
                          [=](cudaStream_t s) { copy_kernel(from, to, static_cast<std::int64_t>(n / 16), s); }));
#endif
  }
#if SHARDPLAN_CUDA_KERNELS
  for (std::int64_t rows = 256; rows <= (quick ? 4096 : 1 << 16); rows *= quick ? 16 : 4) {
    const double bytes = 2.0 * static_cast<double>(rows * kColumns);
    if (static_cast<std::size_t>(2 * bytes) > most) break;
    jobs.push_back(job_of("norm", 2 * bytes, rows, [=](cudaStream_t s) { norm_kernel(from, to, rows, kColumns, s); }));
    jobs.push_back(job_of("cast", 1.5 * bytes + bytes / 64, rows, [=](cudaStream_t s) {
      cast_kernel(from, to, reinterpret_cast<float*>(to + rows * kColumns), rows, kColumns, s);
    }));
    jobs.push_back(
        job_of("swiglu", 1.5 * bytes, rows, [=](cudaStream_t s) { swiglu_kernel(from, to, rows, kColumns / 2, s); }));
    const std::shared_ptr<Buffer> order = scattered_rows(rows);
    jobs.push_back(job_of("permute", 2 * bytes + 4.0 * static_cast<double>(rows), rows, [=](cudaStream_t s) {
      permute_kernel(from, reinterpret_cast<const std::int32_t*>(order->data()), to, rows, kColumns, s);
    }));
  }
#else
  notes.push_back(
      "memory kernels (copy, norm, permute, cast, swiglu) not measured: the plug-in was built without nvcc");
#endif
  (void)notes;
  return jobs;
}

bool memory_is_right([[maybe_unused]] const GemmArena& arena, [[maybe_unused]] cudaStream_t stream,
                     [[maybe_unused]] Notes& notes) {
#if SHARDPLAN_CUDA_KERNELS
  constexpr std::int64_t kRows = 4;
  std::vector<unsigned char> x(kRows * kColumns * 2), y(x.size());
  check(cudaMemcpy(x.data(), arena.bf16.data(), x.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  const auto in = [&](std::int64_t i) {
    return static_cast<double>(decode(Format::bf16, &x[static_cast<std::size_t>(i) * 2]));
  };
  const auto fetch = [&] {
    check(cudaGetLastError(), "kernel launch");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check(cudaMemcpy(y.data(), arena.out.data(), y.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  };
  bool right = true;
  const auto complain = [&](const char* kernel) {
    notes.push_back(std::string(kernel) + " kernel gives wrong values");
    right = false;
  };
  copy_kernel(arena.bf16.data(), arena.out.data(), kRows * kColumns / 8, stream);
  fetch();
  if (x != y) complain("copy");

  norm_kernel(arena.bf16.data(), arena.out.data(), kRows, kColumns, stream);
  fetch();
  for (std::int64_t r = 0; r < kRows; ++r) {
    double square = 0;
    for (std::int64_t c = 0; c < kColumns; ++c) square += in(r * kColumns + c) * in(r * kColumns + c);
    const double scale = 1 / std::sqrt(square / kColumns + 1e-6), want = in(r * kColumns + 1) * scale;
    if (std::abs(decode(Format::bf16, &y[static_cast<std::size_t>(r * kColumns + 1) * 2]) - want) >
        0.01 * std::abs(want) + 1e-3)
      complain("norm");
  }

  auto* scales = reinterpret_cast<float*>(arena.out.data() + kRows * kColumns);
  cast_kernel(arena.bf16.data(), arena.out.data(), scales, kRows, kColumns, stream);
  fetch();
  float scale = 0;
  check(cudaMemcpy(&scale, scales, sizeof scale, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (std::int64_t i = 0; i < 128; ++i) {
    // Half a step of E4M3 is 1/16 of the value, or 2^-10 of the scale's unit below the smallest normal.
    if (std::abs(decode(Format::e4m3, &y[static_cast<std::size_t>(i)]) * scale - in(i)) >
        std::abs(in(i)) / 15 + scale / 500) {
      complain("cast");
      break;
    }
  }
  // Rows 3, 0, 2, 1 of the input.
  const std::int32_t order[kRows] = {3, 0, 2, 1};
  const Buffer index(sizeof order);
  check(cudaMemcpy(index.data(), order, sizeof order, cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  permute_kernel(arena.bf16.data(), reinterpret_cast<const std::int32_t*>(index.data()), arena.out.data(), kRows,
                 kColumns, stream);
  fetch();
  for (std::int64_t r = 0; r < kRows; ++r) {
    if (std::memcmp(&y[static_cast<std::size_t>(r * kColumns * 2)],
                    &x[static_cast<std::size_t>(order[r] * kColumns * 2)], kColumns * 2) != 0) {
      complain("permute");
      break;
    }
  }

  swiglu_kernel(arena.bf16.data(), arena.out.data(), kRows, kColumns / 2, stream);
  fetch();
  for (std::int64_t r = 0; r < kRows; ++r) {
    const double gate = in(r * kColumns + 5), up = in(r * kColumns + kColumns / 2 + 5);
    const double want = gate / (1 + std::exp(-gate)) * up;
    const double got = decode(Format::bf16, &y[static_cast<std::size_t>(r * kColumns / 2 + 5) * 2]);
    if (std::abs(got - want) > 0.01 * std::abs(want) + 1e-3) {
      complain("swiglu");
      break;
    }
  }
  return right;
#else
  return true;
#endif
}

std::vector<Job> launch_jobs(const GemmArena& arena) {
  std::vector<Job> jobs;
  for (const char* state : {"hot", "graph"}) {
    char* to = arena.out.data();
    Launch launch = [to](cudaStream_t s) { check(cudaMemsetAsync(to, 1, 4, s), "cudaMemsetAsync"); };
    std::string what = "4-byte memset";
#if SHARDPLAN_CUDA_KERNELS
    launch = [](cudaStream_t s) { empty_kernel(s); };
    what = "empty kernel";
#endif
    Job job;
    job.point.kernel = "launch";
    job.point.words = {{"what", what}};
    job.point.state = state;
    job.launch = launch;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace shardplan::cuda
