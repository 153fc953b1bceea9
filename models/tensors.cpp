#include "models/tensors.hpp"

#include <algorithm>

namespace shardplan {
namespace {

using enum Component;
using enum TensorCut;

Tensor vector_of(std::string_view name, Component component, std::int64_t length) {
  return {.name = name, .component = component, .out = length};
}

Tensor column(std::string_view name, Component component, std::int64_t out, std::int64_t in, std::int64_t units) {
  return {.name = name, .component = component, .out = out, .in = in, .cut = columns, .units = units, .linear = true};
}

Tensor row(std::string_view name, Component component, std::int64_t out, std::int64_t in, std::int64_t units) {
  return {.name = name, .component = component, .out = out, .in = in, .cut = rows, .units = units, .linear = true};
}

Tensor whole(std::string_view name, Component component, std::int64_t out, std::int64_t in) {
  return {.name = name, .component = component, .out = out, .in = in, .linear = true};
}

/// The bias of a column-cut matrix is cut like its outputs; that of a row-cut one is added once, after the sum.
Tensor cut_bias(std::string_view name, Component component, std::int64_t length, std::int64_t units) {
  return {.name = name, .component = component, .out = length, .cut = columns, .units = units};
}

void add_norm(std::vector<Tensor>& to, std::string_view weight, std::string_view bias, const Model& m) {
  to.push_back(vector_of(weight, norms, m.hidden));
  if (m.norm == NormKind::layer_norm) to.push_back(vector_of(bias, norms, m.hidden));
}

// Query h nh hd, key and value h nkv hd each, output nh hd h (Vaswani et al. 2017; GQA: Ainslie et al. 2023).
void add_grouped_query(std::vector<Tensor>& to, const Model& m, const Attention& a) {
  const std::int64_t h = m.hidden;
  to.push_back(column("q", attention, (a.query_gate ? 2 : 1) * a.query_width(), h, a.heads));
  to.push_back(column("k", attention, a.key_width(), h, a.kv_heads));
  to.push_back(column("v", attention, a.value_width(), h, a.kv_heads));
  to.push_back(row("o", attention, h, a.output_width(), a.heads));
  if (a.qkv_bias) {
    to.push_back(cut_bias("q_bias", attention, a.query_width(), a.heads));
    to.push_back(cut_bias("k_bias", attention, a.key_width(), a.kv_heads));
    to.push_back(cut_bias("v_bias", attention, a.value_width(), a.kv_heads));
  }
  if (a.output_bias) to.push_back(vector_of("o_bias", attention, h));
  if (a.sinks) to.push_back(cut_bias("sinks", attention, a.heads, a.heads));
  if (a.qk_norm == QkNorm::per_head) {
    to.push_back(vector_of("q_norm", qk_norm, a.head_dim));
    to.push_back(vector_of("k_norm", qk_norm, a.head_dim));
  } else if (a.qk_norm == QkNorm::full_width) {
    to.push_back(cut_bias("q_norm", qk_norm, a.query_width(), a.heads));
    to.push_back(cut_bias("k_norm", qk_norm, a.key_width(), a.kv_heads));
  }
}

// DeepSeek-V2 report (arXiv 2405.04434), section 2.1: low-rank query and key-value, one rotary key shared by all heads.
// The down projections are small and kept whole on every tensor-parallel rank (as Megatron-Core does).
void add_multi_latent(std::vector<Tensor>& to, const Model& m, const Attention& a) {
  const std::int64_t h = m.hidden;
  if (a.q_lora > 0) {
    to.push_back(whole("q_down", attention, a.q_lora, h));
    to.push_back(vector_of("q_down_norm", attention, a.q_lora));
    to.push_back(column("q_up", attention, a.query_width(), a.q_lora, a.heads));
  } else {
    to.push_back(column("q", attention, a.query_width(), h, a.heads));
  }
  to.push_back(whole("kv_down", attention, a.kv_lora + a.qk_rope, h));
  to.push_back(vector_of("kv_down_norm", attention, a.kv_lora));
  to.push_back(column("kv_up", attention, a.heads * (a.qk_nope + a.v_head), a.kv_lora, a.heads));
  to.push_back(row("o", attention, h, a.output_width(), a.heads));
}

// DeepSeek Sparse Attention (V3.2 report): index_heads queries from the query's latent, one shared key with a layer
// norm, one weight a head. Small, and whole on every rank.
void add_indexer(std::vector<Tensor>& to, const Model& m, const Attention& a) {
  to.push_back(whole("index_q", attention, a.index_heads * a.index_dim, a.q_lora > 0 ? a.q_lora : m.hidden));
  to.push_back(whole("index_k", attention, a.index_dim, m.hidden));
  to.push_back(vector_of("index_k_norm", attention, a.index_dim));
  to.push_back(vector_of("index_k_norm_bias", attention, a.index_dim));
  Tensor weights = whole("index_weights", attention, a.index_heads, m.hidden);
  weights.linear = false;  // kept in BF16 by FP8 checkpoints
  to.push_back(weights);
}

// Gated DeltaNet as in Qwen3-Next: queries, keys, values and output gate in one projection, decay and write strength
// (one each a value head) in another, a short depthwise convolution over queries, keys and values, a norm per value
// head.
void add_gated_delta(std::vector<Tensor>& to, const Model& m, const Attention& a) {
  const std::int64_t h = m.hidden, keys = a.kv_heads * a.head_dim, values = a.heads * a.v_head;
  to.push_back(column("qkvz", attention, 2 * keys + 2 * values, h, a.kv_heads));
  to.push_back(column("ba", attention, 2 * a.heads, h, a.kv_heads));
  Tensor taps = column("convolution", attention, 2 * keys + values, a.convolution, a.kv_heads);
  taps.linear = false;
  to.push_back(taps);
  to.push_back(cut_bias("dt_bias", attention, a.heads, a.heads));
  to.push_back(cut_bias("decay", attention, a.heads, a.heads));
  to.push_back(vector_of("value_norm", attention, a.v_head));
  to.push_back(row("o", attention, h, values, a.heads));
}

// Lightning attention as in MiniMax-M1: ordinary multi-head projections, a gate of full width and a norm on the output.
void add_lightning(std::vector<Tensor>& to, const Model& m, const Attention& a) {
  const std::int64_t h = m.hidden, width = a.heads * a.head_dim;
  to.push_back(column("qkv", attention, 3 * width, h, a.heads));
  to.push_back(column("output_gate", attention, width, h, a.heads));
  to.push_back(cut_bias("output_norm", attention, width, a.heads));
  to.push_back(row("o", attention, h, width, a.heads));
}

void add_attention(std::vector<Tensor>& to, const Model& m, const Attention& a) {
  if (a.heads == 0) return;
  switch (a.kind) {
    case AttentionKind::grouped_query:
      add_grouped_query(to, m, a);
      break;
    case AttentionKind::multi_latent:
      add_multi_latent(to, m, a);
      break;
    case AttentionKind::gated_delta:
      add_gated_delta(to, m, a);
      break;
    case AttentionKind::lightning:
      add_lightning(to, m, a);
      break;
  }
  if (a.index_heads > 0) add_indexer(to, m, a);
}

void add_mlp(std::vector<Tensor>& to, const Model& m, const Mlp& f) {
  const std::int64_t h = m.hidden, w = f.width;
  if (f.gated) to.push_back(column("gate", mlp, w, h, w));
  to.push_back(column("up", mlp, w, h, w));
  to.push_back(row("down", mlp, h, w, w));
  if (!f.bias) return;
  if (f.gated) to.push_back(cut_bias("gate_bias", mlp, w, w));
  to.push_back(cut_bias("up_bias", mlp, w, w));
  to.push_back(vector_of("down_bias", mlp, h));
}

Tensor per_expert(Tensor t, std::int64_t experts) {
  t.copies = experts;
  return t;
}

void add_experts(std::vector<Tensor>& to, const Model& m, const Moe& e) {
  const std::int64_t h = m.hidden, w = e.width, n = e.experts;
  if (e.gated) to.push_back(per_expert(column("expert_gate", routed_experts, w, h, w), n));
  to.push_back(per_expert(column("expert_up", routed_experts, w, h, w), n));
  to.push_back(per_expert(row("expert_down", routed_experts, h, w, w), n));
  if (!e.bias) return;
  if (e.gated) to.push_back(per_expert(cut_bias("expert_gate_bias", routed_experts, w, w), n));
  to.push_back(per_expert(cut_bias("expert_up_bias", routed_experts, w, w), n));
  to.push_back(per_expert(vector_of("expert_down_bias", routed_experts, h), n));
}

void add_moe(std::vector<Tensor>& to, const Model& m, const Moe& e) {
  const std::int64_t h = m.hidden, s = e.shared_width;
  to.push_back({.name = "router", .component = router, .out = e.experts, .in = h});
  if (e.router_bias) to.push_back(vector_of("router_bias", router, e.experts));
  if (e.selection_bias) {
    Tensor bias = vector_of("selection_bias", router, e.experts);
    bias.trained = false;
    to.push_back(bias);
  }
  add_experts(to, m, e);
  if (s == 0) return;
  if (e.gated) to.push_back(column("shared_gate", shared_experts, s, h, s));
  to.push_back(column("shared_up", shared_experts, s, h, s));
  to.push_back(row("shared_down", shared_experts, h, s, s));
  if (e.shared_gate) to.push_back(vector_of("shared_expert_gate", shared_experts, h));
}

}  // namespace

std::vector<Tensor> layer_tensors(const Model& m, const Layer& l) {
  std::vector<Tensor> out;
  out.reserve(20);
  add_attention(out, m, l.attention);
  static constexpr std::array<std::array<std::string_view, 2>, 4> kNorms = {
      {{"norm_1", "norm_1_bias"}, {"norm_2", "norm_2_bias"}, {"norm_3", "norm_3_bias"}, {"norm_4", "norm_4_bias"}}};
  for (int i = 0; i < l.norms && i < 4; ++i) {
    const auto& name = kNorms[static_cast<std::size_t>(i)];
    add_norm(out, name[0], name[1], m);
  }
  if (l.moe) {
    add_moe(out, m, *l.moe);
  } else {
    add_mlp(out, m, l.mlp);
  }
  return out;
}

std::vector<Tensor> embedding_tensors(const Model& m) {
  if (m.vocab == 0) return {};
  Tensor table = column("embedding", embedding, m.vocab, m.hidden, m.vocab);
  table.linear = false;
  std::vector<Tensor> out{table};
  if (m.learned_positions > 0) {
    Tensor rows_table = whole("positions", positions, m.learned_positions, m.hidden);
    rows_table.linear = false;
    out.push_back(rows_table);
  }
  return out;
}

std::vector<Tensor> head_tensors(const Model& m) {
  std::vector<Tensor> out;
  if (m.vocab == 0) return out;
  add_norm(out, "final_norm", "final_norm_bias", m);
  if (!m.tied_embeddings) {
    Tensor matrix = column("head", head, m.vocab, m.hidden, m.vocab);
    matrix.linear = false;
    out.push_back(matrix);
  }
  if (m.head_bias) out.push_back(cut_bias("head_bias", head, m.vocab, m.vocab));
  return out;
}

std::vector<Tensor> mtp_tensors(const Model& m, const Layer& l) {
  std::vector<Tensor> out = layer_tensors(m, l);
  add_norm(out, "mtp_embedding_norm", "mtp_embedding_norm_bias", m);
  add_norm(out, "mtp_hidden_norm", "mtp_hidden_norm_bias", m);
  Tensor projection = column("mtp_projection", mtp_projection, m.hidden, 2 * m.hidden, m.hidden);
  projection.linear = false;  // kept in BF16 by FP8 checkpoints
  out.push_back(projection);
  add_norm(out, "mtp_head_norm", "mtp_head_norm_bias", m);
  return out;
}

std::int64_t trained_parameters(const std::vector<Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& t : tensors) sum += t.trained ? t.count() : 0;
  return sum;
}

std::int64_t shard_parameters(const Tensor& t, std::int64_t tp) {
  if (t.cut == TensorCut::replicated || tp <= 1) return t.count();
  const std::int64_t units = std::max<std::int64_t>(1, (t.units + tp - 1) / tp);
  return t.count() / t.units * units;
}

}  // namespace shardplan
