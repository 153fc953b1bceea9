#include "models/flops.hpp"

#include <algorithm>

#include "models/parameters.hpp"
#include "models/tensors.hpp"

namespace shardplan {
namespace {

constexpr double kFlopsPerWeight = 2;  // one multiply and one add per weight and token

double weight_flops(const Tensor& t) { return t.in > 1 ? kFlopsPerWeight * static_cast<double>(t.out * t.in) : 0; }

/// Tokens that one attends to: a window, a chunk, or the indexer's choice bound it.
double attended(const Attention& a, std::int64_t seq_len, AttentionCount count) {
  if (a.chunk > 0) return mean_context(std::min(seq_len, a.chunk), 0, count);
  return mean_context(seq_len, a.index_heads > 0 ? a.index_top_k : a.window, count);
}

/// The indexer scores every earlier token: one product of index_dim a head, all heads against one shared key.
double indexer_flops(const Attention& a, std::int64_t seq_len, AttentionCount count) {
  return kFlopsPerWeight * static_cast<double>(a.index_heads * a.index_dim) * mean_context(seq_len, 0, count);
}

/// Linear attention in its recurrent form, per token and head: the state's read and write (2 d_k d_v each), and for the
/// delta rule one more read to find what is overwritten. The chunked form that kernels run costs more arithmetic.
double state_flops(const Attention& a) {
  const double state = static_cast<double>(a.heads) * static_cast<double>(a.head_dim);
  if (a.kind == AttentionKind::lightning) return 2 * kFlopsPerWeight * state * static_cast<double>(a.head_dim);
  return 3 * kFlopsPerWeight * state * static_cast<double>(a.v_head);
}

double score_flops(const Attention& a, std::int64_t seq_len, AttentionCount count) {
  if (a.kind == AttentionKind::gated_delta || a.kind == AttentionKind::lightning) return state_flops(a);
  const std::int64_t value = a.kind == AttentionKind::multi_latent ? a.v_head : a.head_dim;
  const double per_token = kFlopsPerWeight * static_cast<double>(a.heads) * static_cast<double>(a.head_dim + value);
  return per_token * attended(a, seq_len, count) + indexer_flops(a, seq_len, count);
}

}  // namespace

TokenFlops& TokenFlops::operator+=(const TokenFlops& o) {
  projections += o.projections;
  scores += o.scores;
  mlp += o.mlp;
  router += o.router;
  experts += o.experts;
  shared += o.shared;
  head += o.head;
  mtp_projection += o.mtp_projection;
  return *this;
}

double mean_context(std::int64_t seq_len, std::int64_t window, AttentionCount count) {
  const double s = static_cast<double>(seq_len);
  const double w = window > 0 ? std::min(static_cast<double>(window), s) : s;
  return count == AttentionCount::full ? w : w - w * w / (2 * s);
}

TokenFlops layer_flops(const Model& m, const Layer& layer, std::int64_t seq_len, AttentionCount count) {
  TokenFlops out;
  for (const Tensor& t : layer_tensors(m, layer)) {
    switch (t.component) {
      case Component::attention:
        out.projections += weight_flops(t);
        break;
      case Component::mlp:
        out.mlp += weight_flops(t);
        break;
      case Component::router:
        out.router += weight_flops(t);
        break;
      case Component::routed_experts:
        out.experts += static_cast<double>(layer.moe->top_k) * weight_flops(t);
        break;
      case Component::shared_experts:
        out.shared += weight_flops(t);
        break;
      default:
        break;
    }
  }
  // The gate of Qwen's shared expert is a vector of hidden elements: one dot product a token.
  if (layer.moe && layer.moe->shared_gate) out.shared += kFlopsPerWeight * static_cast<double>(m.hidden);
  out.scores = score_flops(layer.attention, seq_len, count);
  return out;
}

double head_flops(const Model& m) {
  return kFlopsPerWeight * static_cast<double>(m.hidden) * static_cast<double>(m.vocab);
}

TokenFlops forward_flops(const Model& m, std::int64_t seq_len, AttentionCount count) {
  TokenFlops out;
  for (const Layer& layer : m.layers) out += layer_flops(m, layer, seq_len, count);
  out.head = head_flops(m);
  return out;
}

TokenFlops mtp_flops(const Model& m, std::int64_t seq_len, AttentionCount count) {
  TokenFlops out;
  for (const Layer& layer : m.mtp) {
    out += layer_flops(m, layer, seq_len, count);
    out.mtp_projection += kFlopsPerWeight * 2 * static_cast<double>(m.hidden) * static_cast<double>(m.hidden);
    out.head += head_flops(m);
  }
  return out;
}

double training_flops(const Model& m, std::int64_t seq_len, AttentionCount count) {
  return kTrainingOverForward * forward_flops(m, seq_len, count).total();
}

double six_n_per_token(const Model& m) {
  return kTrainingOverForward * kFlopsPerWeight * static_cast<double>(count_parameters(m).active);
}

}  // namespace shardplan
