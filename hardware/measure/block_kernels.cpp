#include "hardware/measure/block_kernels.hpp"

#include <Eigen/Core>
#include <cmath>
#include <cstring>

namespace shardplan {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using In = Eigen::Map<const Matrix>;
using Out = Eigen::Map<Matrix>;

}  // namespace

void gemm_forward(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c) {
  Out(c, m, n).noalias() = In(a, m, k) * In(b, k, n);
}

void gemm_input_grad(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c) {
  Out(c, m, k).noalias() = In(a, m, n) * In(b, k, n).transpose();
}

void gemm_weight_grad(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c) {
  Out(c, k, n).noalias() += In(a, m, k).transpose() * In(b, m, n);
}

void relu(std::int64_t n, float* a) { Eigen::Map<Eigen::ArrayXf>(a, n) = Eigen::Map<Eigen::ArrayXf>(a, n).max(0.0f); }

void add(std::int64_t n, const float* x, float* y) {
  Eigen::Map<Eigen::ArrayXf>(y, n) += Eigen::Map<const Eigen::ArrayXf>(x, n);
}

void mask(std::int64_t n, const float* a, float* du) {
  // a is not negative, so (a 3e38) capped at 1 is 1 where a > 0 and 0 where it is 0: Eigen vectorises this, and not a
  // selection, which took forty times as long.
  Eigen::Map<Eigen::ArrayXf> out(du, n);
  out *= (Eigen::Map<const Eigen::ArrayXf>(a, n) * 3e38f).min(1.0f);
}

void add_scaled(std::int64_t n, float scale, const float* x, float* y) {
  Eigen::Map<Eigen::ArrayXf>(y, n) += scale * Eigen::Map<const Eigen::ArrayXf>(x, n);
}

void copy_scaled(std::int64_t n, float scale, const float* x, float* y) {
  Eigen::Map<Eigen::ArrayXf>(y, n) = scale * Eigen::Map<const Eigen::ArrayXf>(x, n);
}

float dot(std::int64_t n, const float* x, const float* y) {
  return Eigen::Map<const Eigen::VectorXf>(x, n).dot(Eigen::Map<const Eigen::VectorXf>(y, n));
}

void permute(std::int64_t rows, std::int64_t width, const std::int64_t* from, const float* x, float* y) {
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(y + r * width, x + from[r] * width, static_cast<std::size_t>(width) * sizeof(float));
}

void norm_rows(std::int64_t rows, std::int64_t width, const float* x, float* y) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Eigen::Map<const Eigen::ArrayXf> in(x + r * width, width);
    const float mean = in.mean();
    const float scale = 1.0f / std::sqrt((in - mean).square().mean() + 1e-6f);
    Eigen::Map<Eigen::ArrayXf>(y + r * width, width) = (in - mean) * scale;
  }
}

void expert_forward(const BlockShape& s, const float* x, const float* w1, const float* w2, float* a, float* y) {
  gemm_forward(s.tokens, s.inner, s.hidden, x, w1, a);
  relu(s.tokens * s.inner, a);
  gemm_forward(s.tokens, s.hidden, s.inner, a, w2, y);
}

void expert_input_grad(const BlockShape& s, const float* w1, const float* w2, const float* a, const float* dy,
                       float* du, float* dx) {
  gemm_input_grad(s.tokens, s.hidden, s.inner, dy, w2, du);
  mask(s.tokens * s.inner, a, du);
  gemm_input_grad(s.tokens, s.inner, s.hidden, du, w1, dx);
}

void block_forward(const BlockShape& s, const float* x, const float* w1, const float* w2, float* a, float* y) {
  expert_forward(s, x, w1, w2, a, y);
  add(s.tokens * s.hidden, x, y);
}

void block_input_grad(const BlockShape& s, const float* w1, const float* w2, const float* a, const float* dy, float* du,
                      float* dx) {
  expert_input_grad(s, w1, w2, a, dy, du, dx);
  add(s.tokens * s.hidden, dy, dx);
}

void block_weight_grad(const BlockShape& s, const float* x, const float* a, const float* dy, const float* du,
                       float* dw1, float* dw2) {
  gemm_weight_grad(s.tokens, s.inner, s.hidden, x, du, dw1);
  gemm_weight_grad(s.tokens, s.hidden, s.inner, a, dy, dw2);
}

}  // namespace shardplan
