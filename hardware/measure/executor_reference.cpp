// The executor's gradients by plain FP64 loops: no threads, no Eigen, no schedule.
#include <algorithm>
#include <cstddef>

#include "hardware/measure/executor.hpp"

namespace shardplan {
namespace {

using Doubles = std::vector<double>;

/// c[m,n] = a[m,k] b[k,n] with each operand optionally transposed in place (a stored [k,m], b stored [n,k]).
Doubles product(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, bool a_transposed, const double* b,
                bool b_transposed) {
  Doubles c(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t l = 0; l < k; ++l) {
      const double left = a_transposed ? a[l * m + i] : a[i * k + l];
      for (std::int64_t j = 0; j < n; ++j)
        c[static_cast<std::size_t>(i * n + j)] += left * (b_transposed ? b[j * k + l] : b[l * n + j]);
    }
  }
  return c;
}

struct Block {
  Doubles w1, w2, x, a;
};

void run_forward(const BlockShape& s, Block& block, Doubles& x) {
  block.x = x;
  block.a = product(s.tokens, s.inner, s.hidden, x.data(), false, block.w1.data(), false);
  for (double& v : block.a) v = std::max(v, 0.0);
  const Doubles out = product(s.tokens, s.hidden, s.inner, block.a.data(), false, block.w2.data(), false);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += out[i];
}

/// dy becomes the gradient of the block's input; adds the weights' gradient to `sum`.
void run_backward(const BlockShape& s, const Block& block, Doubles& dy, Doubles& sum) {
  Doubles du = product(s.tokens, s.inner, s.hidden, dy.data(), false, block.w2.data(), true);
  for (std::size_t i = 0; i < du.size(); ++i) du[i] = block.a[i] > 0 ? du[i] : 0;
  const Doubles dw1 = product(s.hidden, s.inner, s.tokens, block.x.data(), true, du.data(), false);
  const Doubles dw2 = product(s.inner, s.hidden, s.tokens, block.a.data(), true, dy.data(), false);
  for (std::size_t i = 0; i < dw1.size(); ++i) sum[i] += dw1[i];
  for (std::size_t i = 0; i < dw2.size(); ++i) sum[dw1.size() + i] += dw2[i];
  const Doubles dx = product(s.tokens, s.hidden, s.inner, du.data(), false, block.w1.data(), true);
  for (std::size_t i = 0; i < dy.size(); ++i) dy[i] += dx[i];
}

}  // namespace

std::vector<std::vector<double>> reference_gradients(const BlockShape& s, int blocks, int microbatches, int replicas) {
  std::vector<Block> model(static_cast<std::size_t>(blocks));
  for (int b = 0; b < blocks; ++b) {
    const std::vector<float> w = executor_weights(s, b);
    const auto middle = w.begin() + s.hidden * s.inner;
    model[static_cast<std::size_t>(b)].w1.assign(w.begin(), middle);
    model[static_cast<std::size_t>(b)].w2.assign(middle, w.end());
  }
  std::vector<Doubles> gradients(static_cast<std::size_t>(blocks), Doubles(static_cast<std::size_t>(s.weights()), 0.0));
  for (int d = 0; d < replicas; ++d) {
    for (int i = 0; i < microbatches; ++i) {
      const std::vector<float> input = executor_input(s, d, i);
      Doubles x(input.begin(), input.end());
      for (Block& block : model) run_forward(s, block, x);
      for (std::size_t b = model.size(); b-- > 0;) run_backward(s, model[b], x, gradients[b]);
    }
  }
  return gradients;
}

}  // namespace shardplan
