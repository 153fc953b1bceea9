#pragma once
// The work that the CPU backend really does: one residual feed-forward block of a transformer, in FP32, row-major.
//   forward:       A = max(0, X W1), Y = X + A W2
//   input gradient: dU = (dY W2^T) where A > 0, dX = dY + dU W1^T
//   weight gradient: dW1 += X^T dU, dW2 += A^T dY
// X, Y [tokens, hidden]; A, dU [tokens, inner]; W1 [hidden, inner]; W2 [inner, hidden]. Each of the three costs
// 4 tokens hidden inner FLOP (one multiply-add = 2). Attention is left out: its cost is that of other products.
#include <cstdint>

namespace shardplan {

struct BlockShape {
  std::int64_t tokens = 0, hidden = 0, inner = 0;
  double flops() const { return 4.0 * static_cast<double>(tokens * hidden * inner); }
  std::int64_t weights() const { return 2 * hidden * inner; }
};

/// One expert: the block without its residual, so Y = A W2 and dX = dU W1^T.
void expert_forward(const BlockShape&, const float* x, const float* w1, const float* w2, float* a, float* y);
void expert_input_grad(const BlockShape&, const float* w1, const float* w2, const float* a, const float* dy, float* du,
                       float* dx);

void block_forward(const BlockShape&, const float* x, const float* w1, const float* w2, float* a, float* y);
void block_input_grad(const BlockShape&, const float* w1, const float* w2, const float* a, const float* dy, float* du,
                      float* dx);
void block_weight_grad(const BlockShape&, const float* x, const float* a, const float* dy, const float* du, float* dw1,
                       float* dw2);

/// One product in the layout that a pass needs, m = tokens, n = output features, k = input features of the forward
/// product: forward c[m,n] = a[m,k] b[k,n]; input_grad c[m,k] = a[m,n] b[k,n]^T; weight_grad c[k,n] += a[m,k]^T b[m,n].
void gemm_forward(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c);
void gemm_input_grad(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c);
void gemm_weight_grad(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c);

/// Elementwise parts, so that they can be timed alone: a = max(0, a); y += x; du = 0 where a is 0 (a >= 0).
void relu(std::int64_t n, float* a);
void add(std::int64_t n, const float* x, float* y);
void mask(std::int64_t n, const float* a, float* du);
/// y += scale x; y = scale x; the sum of x y.
void add_scaled(std::int64_t n, float scale, const float* x, float* y);
void copy_scaled(std::int64_t n, float scale, const float* x, float* y);
float dot(std::int64_t n, const float* x, const float* y);
/// Row r of y = row from[r] of x, rows of `width`: what sorting tokens by expert does.
void permute(std::int64_t rows, std::int64_t width, const std::int64_t* from, const float* x, float* y);
/// Every row of y = that of x less its mean, over its standard deviation: what a norm or a softmax reads and writes.
void norm_rows(std::int64_t rows, std::int64_t width, const float* x, float* y);

}  // namespace shardplan
