// An expert step by plain FP64 loops: no messages, no threads, no Eigen, one token after another.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "hardware/measure/executor.hpp"
#include "hardware/measure/expert_step.hpp"

namespace shardplan {
namespace {

using Doubles = std::vector<double>;

Doubles doubles(const std::vector<float>& from) { return {from.begin(), from.end()}; }

struct Sizes {
  std::size_t h, f, experts, top_k;
};

/// One copy of one token at its expert: what the forward pass keeps.
struct Visit {
  std::size_t expert = 0;
  double gate = 0;
  Doubles a, y;  // [inner], [hidden]
};

/// y = A W2, A = max(0, x W1); w = W1 [h, f] then W2 [f, h].
void visit_forward(const Sizes& s, const double* x, const Doubles& w, Visit& v) {
  v.a.assign(s.f, 0.0);
  v.y.assign(s.h, 0.0);
  for (std::size_t i = 0; i < s.f; ++i) {
    for (std::size_t j = 0; j < s.h; ++j) v.a[i] += x[j] * w[j * s.f + i];
    v.a[i] = std::max(v.a[i], 0.0);
    for (std::size_t j = 0; j < s.h; ++j) v.y[j] += v.a[i] * w[s.h * s.f + i * s.h + j];
  }
}

/// Adds the expert's gradients for the output gradient `dy` times the gate, and that of its input.
void visit_backward(const Sizes& s, const double* x, const Doubles& w, const Visit& v, const double* dy, Doubles& dw,
                    double* dx) {
  for (std::size_t i = 0; i < s.f; ++i) {
    double da = 0;
    for (std::size_t j = 0; j < s.h; ++j) {
      da += v.gate * dy[j] * w[s.h * s.f + i * s.h + j];
      dw[s.h * s.f + i * s.h + j] += v.a[i] * v.gate * dy[j];
    }
    if (!(v.a[i] > 0)) continue;
    for (std::size_t j = 0; j < s.h; ++j) {
      dw[j * s.f + i] += x[j] * da;
      dx[j] += da * w[j * s.f + i];
    }
  }
}

struct LayerData {
  std::vector<Doubles> weights, gradients;  // by expert
  Doubles router, router_gradient;
};

/// Softmax of the chosen experts' logits.
void set_gates(const Sizes& s, const double* x, const Doubles& router, std::vector<Visit>& visits) {
  double sum = 0;
  for (Visit& v : visits) {
    double logit = 0;
    for (std::size_t j = 0; j < s.h; ++j) logit += x[j] * router[j * s.experts + v.expert];
    v.gate = std::exp(logit);
    sum += v.gate;
  }
  for (Visit& v : visits) v.gate /= sum;
}

void token_forward(const Sizes& s, const LayerData& layer, const double* x, std::vector<Visit>& visits, double* y) {
  set_gates(s, x, layer.router, visits);
  std::copy(x, x + s.h, y);
  for (Visit& v : visits) {
    visit_forward(s, x, layer.weights[v.expert], v);
    for (std::size_t j = 0; j < s.h; ++j) y[j] += v.gate * v.y[j];
  }
}

/// dx = the gradient of the layer's input.
void token_backward(const Sizes& s, LayerData& layer, const double* x, const std::vector<Visit>& visits,
                    const double* dy, double* dx) {
  std::copy(dy, dy + s.h, dx);
  Doubles slope;
  double mean = 0;
  for (const Visit& v : visits) {
    slope.push_back(0);
    for (std::size_t j = 0; j < s.h; ++j) slope.back() += dy[j] * v.y[j];
    mean += v.gate * slope.back();
  }
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const Visit& v = visits[i];
    const double dlogit = v.gate * (slope[i] - mean);
    for (std::size_t j = 0; j < s.h; ++j) {
      layer.router_gradient[j * s.experts + v.expert] += x[j] * dlogit;
      dx[j] += dlogit * layer.router[j * s.experts + v.expert];
    }
    visit_backward(s, x, layer.weights[v.expert], v, dy, layer.gradients[v.expert], dx);
  }
}

std::vector<LayerData> make_layers(const ExpertStepShape& shape) {
  std::vector<LayerData> layers(static_cast<std::size_t>(shape.layers));
  for (int l = 0; l < shape.layers; ++l) {
    LayerData& layer = layers[static_cast<std::size_t>(l)];
    layer.router = doubles(router_weights(shape, l));
    layer.router_gradient.assign(layer.router.size(), 0.0);
    for (int e = 0; e < shape.experts(); ++e) layer.weights.push_back(doubles(expert_weights(shape, l, e)));
    for (const Doubles& w : layer.weights) layer.gradients.emplace_back(w.size(), 0.0);
  }
  return layers;
}

}  // namespace

ExpertReference reference_expert_step(const ExpertStepShape& shape) {
  const ExpertRouting routing(shape);
  const Sizes s{static_cast<std::size_t>(shape.block.hidden), static_cast<std::size_t>(shape.block.inner),
                static_cast<std::size_t>(shape.experts()), static_cast<std::size_t>(shape.top_k)};
  std::vector<LayerData> layers = make_layers(shape);
  ExpertReference out;
  for (int r = 0; r < shape.ranks; ++r) {
    const Doubles input = doubles(executor_input(shape.block, r, 0));
    out.output.emplace_back(input.size());
    out.input_gradient.emplace_back(input.size());
    for (std::int64_t t = 0; t < shape.block.tokens; ++t) {
      const std::size_t row = static_cast<std::size_t>(t) * s.h;
      std::vector<Doubles> x(layers.size() + 1, Doubles(s.h));
      std::copy_n(input.begin() + static_cast<std::ptrdiff_t>(row), s.h, x[0].begin());
      std::vector<std::vector<Visit>> visits(layers.size());
      for (std::size_t l = 0; l < layers.size(); ++l) {
        for (std::size_t i = 0; i < s.top_k; ++i) {
          const auto place = routing.places(r)[static_cast<std::size_t>(t) * s.top_k + i];
          const int expert = routing.sent(r)[static_cast<std::size_t>(place)].expert;
          visits[l].push_back({static_cast<std::size_t>(expert), 0, {}, {}});
        }
        token_forward(s, layers[l], x[l].data(), visits[l], x[l + 1].data());
      }
      std::copy(x.back().begin(), x.back().end(), out.output.back().begin() + static_cast<std::ptrdiff_t>(row));
      Doubles dy = x.back(), dx(s.h);
      for (std::size_t l = layers.size(); l-- > 0; dy = dx)
        token_backward(s, layers[l], x[l].data(), visits[l], dy.data(), dx.data());
      std::copy(dy.begin(), dy.end(), out.input_gradient.back().begin() + static_cast<std::ptrdiff_t>(row));
    }
  }
  for (int r = 0; r < shape.ranks; ++r) {
    out.expert_gradient.emplace_back();
    for (const LayerData& layer : layers) {
      for (int e = r * shape.experts_per_rank; e < (r + 1) * shape.experts_per_rank; ++e) {
        const Doubles& g = layer.gradients[static_cast<std::size_t>(e)];
        out.expert_gradient.back().insert(out.expert_gradient.back().end(), g.begin(), g.end());
      }
    }
  }
  for (const LayerData& layer : layers)
    out.router_gradient.insert(out.router_gradient.end(), layer.router_gradient.begin(), layer.router_gradient.end());
  return out;
}

}  // namespace shardplan
