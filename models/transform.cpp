#include "models/transform.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/errors.hpp"
#include "models/check_model.hpp"

namespace shardplan {
namespace {

/// Applies `change` to every mixture of experts; InputError where the model has none.
template <class Change>
Model with_each_moe(Model m, const std::string& where, Change change) {
  if (!m.has_moe()) throw InputError(where, m.name + " has no experts");
  for (auto* list : {&m.layers, &m.mtp}) {
    for (Layer& layer : *list) {
      if (layer.moe) change(*layer.moe);
    }
  }
  // What was changed is no longer the published model.
  m.published = WeightFormat::unstated;
  m.checkpoint_mtp = false;
  check_model(m, where);
  return m;
}

}  // namespace

Model segment_experts(const Model& model, std::int64_t m, const std::string& where) {
  if (m < 1) throw InputError(where, "an expert is cut into at least one piece");
  if (m > kMostExperts)
    throw InputError(where, "out of range: " + std::to_string(m) + " is above " + std::to_string(kMostExperts));
  Model out = with_each_moe(model, where, [&](Moe& e) {
    if (e.width % m != 0) {
      throw InputError(where, "an expert of width " + std::to_string(e.width) + " does not divide into " +
                                  std::to_string(m) + " pieces");
    }
    e.experts *= m;
    e.top_k *= m;
    e.width /= m;
  });
  out.name += " segmented by " + std::to_string(m);
  return out;
}

Model isolate_shared(const Model& model, std::int64_t s, const std::string& where) {
  if (s < 0) throw InputError(where, "out of range: " + std::to_string(s) + " is below 0");
  Model out = with_each_moe(model, where, [&](Moe& e) {
    if (s >= e.top_k) {
      throw InputError(where, "of " + std::to_string(e.top_k) + " chosen experts at least one must stay routed");
    }
    e.experts -= s;
    e.top_k -= s;
    e.shared_width += s * e.width;
    if (e.experts % e.groups != 0) e.groups = e.groups_per_token = 1;
  });
  out.name += " with " + std::to_string(s) + " isolated";
  return out;
}

Model upcycle(const Model& model, std::int64_t experts, std::int64_t top_k, const std::string& where) {
  if (model.has_moe()) throw InputError(where, model.name + " already is a mixture of experts");
  if (experts < 1 || experts > kMostExperts)
    throw InputError(where, "out of range: " + std::to_string(experts) + " experts");
  if (top_k < 1 || top_k > experts) {
    throw InputError(where, "a token chooses " + std::to_string(top_k) + " of " + std::to_string(experts) + " experts");
  }
  Model out = model;
  for (auto* list : {&out.layers, &out.mtp}) {
    for (Layer& layer : *list) {
      Moe e;
      e.experts = experts;
      e.top_k = top_k;
      e.width = layer.mlp.width;
      e.gated = layer.mlp.gated;
      e.bias = layer.mlp.bias;
      layer.moe = e;
      layer.mlp = {};
    }
  }
  out.published = WeightFormat::unstated;
  out.checkpoint_mtp = false;
  out.name += " upcycled to " + std::to_string(experts) + " experts";
  check_model(out, where);
  return out;
}

double combinations(std::int64_t n, std::int64_t k) {
  if (k < 0 || k > n) return 0;
  k = std::min(k, n - k);
  // Whole numbers as long as they fit: C(n - k + i, i) = C(n - k + i - 1, i - 1) (n - k + i) / i.
  std::int64_t whole = 1;
  for (std::int64_t i = 1; i <= k; ++i) {
    const std::int64_t up = n - k + i, common = std::gcd(whole, i), divisor = i / common;
    std::int64_t next = 0;
    if (__builtin_mul_overflow(whole / common, up / divisor, &next)) {
      return std::pow(10.0, log10_combinations(n, k));
    }
    whole = next;
  }
  return static_cast<double>(whole);
}

double log10_combinations(std::int64_t n, std::int64_t k) {
  if (k < 0 || k > n) return -HUGE_VAL;
  const auto log_factorial = [](std::int64_t x) { return std::lgamma(static_cast<double>(x) + 1); };
  return (log_factorial(n) - log_factorial(k) - log_factorial(n - k)) / std::numbers::ln10;
}

const Moe* first_moe(const Model& m) {
  for (const Layer& layer : m.layers) {
    if (layer.moe) return &*layer.moe;
  }
  return nullptr;
}

}  // namespace shardplan
