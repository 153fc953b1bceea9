#include "models/bytes.hpp"

#include <algorithm>

#include "models/parameters.hpp"

namespace shardplan {
namespace {

constexpr double kBf16 = 2, kFp8 = 1, kFp32 = 4;
// MXFP4 (OCP Microscaling v1.0): 4 bits a value and one 8-bit scale per 32 values.
constexpr double kMxfp4 = 0.5 + 1.0 / 32;

/// Bytes of one tensor in the published checkpoint. FP8: scales FP32. MXFP4: only the experts' matrices (gpt-oss).
double published_bytes(const Tensor& t, WeightFormat format, bool fp32_router = false) {
  const double n = static_cast<double>(t.count());
  if (!t.trained || (fp32_router && t.component == Component::router)) return kFp32 * n;
  const bool expert_matrix = t.component == Component::routed_experts && t.in > 1;
  switch (format) {
    case WeightFormat::fp8_block:
      return t.linear ? kFp8 * n + kFp32 * static_cast<double>(fp8_scales({t})) : kBf16 * n;
    case WeightFormat::mxfp4:
      return (expert_matrix ? kMxfp4 : kBf16) * n;
    case WeightFormat::fp32:
      return kFp32 * n;
    default:
      return kBf16 * n;
  }
}

double published_bytes(const std::vector<Tensor>& tensors, const Model& m) {
  double sum = 0;
  for (const Tensor& t : tensors) sum += published_bytes(t, m.published, m.fp32_router);
  return sum;
}

double published_bytes(const Model& m) {
  const double table = static_cast<double>(m.vocab) * static_cast<double>(m.hidden);
  double sum = published_bytes(embedding_tensors(m), m) + published_bytes(head_tensors(m), m);
  for (const Layer& layer : m.layers) sum += published_bytes(layer_tensors(m, layer), m);
  sum += kFp32 * static_cast<double>(m.checkpoint_buffers) + kBf16 * static_cast<double>(m.other_parameters);
  if (!m.checkpoint_mtp) return sum;
  for (const Layer& layer : m.mtp) {
    sum += published_bytes(mtp_tensors(m, layer), m) + (m.mtp_shares_embeddings ? 0 : 2 * kBf16 * table);
  }
  return sum;
}

/// Elements that one token adds. Linear attention adds none: its state is fixed.
double kv_elements(const Attention& a) {
  switch (a.kind) {
    case AttentionKind::multi_latent:
      return static_cast<double>(a.kv_lora + a.qk_rope + (a.index_heads > 0 ? a.index_dim : 0));
    case AttentionKind::gated_delta:
    case AttentionKind::lightning:
      return 0;
    default:
      return 2 * static_cast<double>(a.key_width());
  }
}

/// The state of linear attention: heads d_k d_v, and the convolution's last taps.
double state_elements(const Attention& a) {
  const double heads = static_cast<double>(a.heads), keys = static_cast<double>(a.head_dim);
  if (a.kind == AttentionKind::lightning) return heads * keys * keys;
  if (a.kind != AttentionKind::gated_delta) return 0;
  const double values = static_cast<double>(a.v_head);
  const double channels = 2 * static_cast<double>(a.kv_heads) * keys + heads * values;
  return heads * keys * values + channels * static_cast<double>(a.convolution - 1);
}

/// Tokens that a layer keeps of `context`.
double kept_tokens(const Attention& a, std::int64_t context) {
  const std::int64_t bound = a.chunk > 0 ? a.chunk : a.window;
  return static_cast<double>(bound > 0 ? std::min(bound, context) : context);
}

}  // namespace

WeightBytes weight_bytes(const Model& m) {
  WeightBytes out;
  const auto add = [&](const std::vector<Tensor>& tensors) {
    for (const Tensor& t : tensors) {
      if (!t.trained) continue;
      out.bf16 += kBf16 * static_cast<double>(t.count());
      out.fp8 += published_bytes(t, WeightFormat::fp8_block);
    }
  };
  add(embedding_tensors(m));
  add(head_tensors(m));
  for (const Layer& layer : m.layers) add(layer_tensors(m, layer));
  if (m.published != WeightFormat::unstated) out.as_published = published_bytes(m);
  return out;
}

double kv_bytes_per_token(const Model& m, double bytes_per_element) {
  double sum = 0;
  for (const Layer& layer : m.layers) sum += kv_elements(layer.attention) * bytes_per_element;
  return sum;
}

double kv_cache_bytes(const Model& m, std::int64_t context, double bytes_per_element) {
  double elements = 0;
  for (const Layer& layer : m.layers) {
    elements += kv_elements(layer.attention) * kept_tokens(layer.attention, context) + state_elements(layer.attention);
  }
  return elements * bytes_per_element;
}

double routed_bytes_per_token(const Model& m, const Moe& e, double bytes_per_element) {
  return static_cast<double>(e.top_k * m.hidden) * bytes_per_element;
}

}  // namespace shardplan
