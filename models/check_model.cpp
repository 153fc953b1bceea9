#include "models/check_model.hpp"

#include "base/errors.hpp"

namespace shardplan {
namespace {

std::string number(std::int64_t n) { return std::to_string(n); }

void check_attention(const Attention& a, const std::string& where) {
  if (a.kind == AttentionKind::grouped_query && a.heads == 0 && a.kv_heads == 0 && a.head_dim == 0) return;  // none
  if (a.heads < 1 || a.head_dim < 1)
    throw InputError(where, "attention needs at least one head of at least one element");
  if (a.kind == AttentionKind::multi_latent) {
    if (a.kv_lora < 1 || a.v_head < 1 || a.qk_nope + a.qk_rope < 1) {
      throw InputError(where, "multi-latent attention needs a latent width and head sizes above zero");
    }
    return;
  }
  if (a.kind == AttentionKind::gated_delta && (a.v_head < 1 || a.convolution < 1)) {
    throw InputError(where, "gated delta attention needs a value head size and a convolution above zero");
  }
  if (a.kv_heads < 1) throw InputError(where, "attention needs at least one KV head");
  if (a.kv_heads > a.heads)
    throw InputError(where, number(a.kv_heads) + " KV heads for only " + number(a.heads) + " heads");
  if (a.heads % a.kv_heads != 0) {
    throw InputError(where, number(a.heads) + " heads are not a multiple of " + number(a.kv_heads) + " KV heads");
  }
}

void check_moe(const Moe& e, const std::string& where) {
  if (e.experts < 1 || e.width < 1) throw InputError(where, "a mixture of experts needs experts of a width above zero");
  if (e.top_k < 1) throw InputError(where, "a token must choose at least one expert");
  if (e.top_k > e.experts) {
    throw InputError(where, "a token chooses " + number(e.top_k) + " of only " + number(e.experts) + " experts");
  }
  if (e.groups < 1 || e.experts % e.groups != 0) {
    throw InputError(where, number(e.experts) + " experts do not divide into " + number(e.groups) + " groups");
  }
  if (e.groups_per_token < 1 || e.groups_per_token > e.groups) {
    throw InputError(where, number(e.groups_per_token) + " groups per token of " + number(e.groups));
  }
  if (e.groups_per_token * (e.experts / e.groups) < e.top_k) {
    throw InputError(where, number(e.groups_per_token) + " groups hold fewer than " + number(e.top_k) + " experts");
  }
}

/// A count in floating point, so that it cannot overflow before it is refused.
double rough_layer(const Model& m, const Layer& l) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  const Attention& a = l.attention;
  const double heads = d(a.heads),
               widths = d(a.head_dim) * heads + d(a.kv_heads) * d(a.head_dim) * 2 + heads * d(a.v_head);
  const double latent = a.kind == AttentionKind::multi_latent
                            ? d(a.q_lora) * (d(m.hidden) + widths) + d(a.kv_lora) * (d(m.hidden) + 2 * widths)
                            : 0;
  const double index = d(a.index_heads) * d(a.index_dim) * (d(m.hidden) + d(a.q_lora)) + d(a.index_dim) * d(m.hidden);
  const double taps = widths * 2 * d(a.convolution);
  double sum = d(m.hidden) * 2 * widths + latent + index + taps;
  if (l.moe)
    sum += 3 * d(m.hidden) * (d(l.moe->experts) * d(l.moe->width) + d(l.moe->shared_width) + d(l.moe->experts));
  return sum + 3 * d(m.hidden) * d(l.mlp.width);
}

void check_size(const Model& m, const std::string& where) {
  double sum = 2 * static_cast<double>(m.vocab) * static_cast<double>(m.hidden) +
               static_cast<double>(m.learned_positions) * static_cast<double>(m.hidden);
  for (const Layer& l : m.layers) sum += rough_layer(m, l);
  for (const Layer& l : m.mtp) {
    sum += rough_layer(m, l) + 2 * static_cast<double>(m.hidden) * static_cast<double>(m.hidden + m.vocab);
  }
  if (!(sum < 0x1.0p53)) throw InputError(where, "the model has more than 2^53 parameters");
}

}  // namespace

void check_model(const Model& m, const std::string& where) {
  if (m.hidden < 1) throw InputError(where, "the hidden size must be above zero");
  if (m.vocab < 0) throw InputError(where, "the vocabulary cannot be negative");
  if (m.vocab == 0 && (m.tied_embeddings || m.head_bias || m.learned_positions > 0 || !m.mtp.empty()))
    throw InputError(where, "without a vocabulary there is no embedding, head or multi-token prediction to speak of");
  if (m.layers.empty()) throw InputError(where, "a model needs at least one layer");
  if (m.layer_count() > kMostLayers || static_cast<std::int64_t>(m.mtp.size()) > kMostLayers) {
    throw InputError(where, "more than " + number(kMostLayers) + " layers");
  }
  check_size(m, where);
  for (const auto* list : {&m.layers, &m.mtp}) {
    for (const Layer& l : *list) {
      check_attention(l.attention, where);
      if (l.moe) {
        check_moe(*l.moe, where);
      } else if (l.mlp.width < 1) {
        throw InputError(where, "a dense layer needs a feed-forward width above zero");
      }
    }
  }
}

std::string why_no_layout(const Model& m) {
  for (const auto* list : {&m.layers, &m.mtp}) {
    for (const Layer& l : *list) {
      const Attention& a = l.attention;
      if (a.kind == AttentionKind::gated_delta || a.kind == AttentionKind::lightning)
        return "layers of linear attention";
      if (a.index_heads > 0) return "a sparse-attention indexer";
      if (a.chunk > 0) return "chunked attention";
      if (a.query_gate) return "a gate on attention's output";
    }
  }
  return "";
}

}  // namespace shardplan
