#include "layouts/activations.hpp"

#include <algorithm>

namespace shardplan {

namespace {

double d(std::int64_t v) { return static_cast<double>(v); }

/// Collects tensors; the divisors of the three kinds of region.
class Keeper {
 public:
  Keeper(const ActivationQuestion& q) : q_(q), sequence_(q.sp ? q.tp : 1) {}

  /// Elements per token in the regions that only sequence parallelism divides.
  void sequence(std::string_view part, std::string_view name, double elements, double bytes,
                unsigned dropped = kNever) {
    add(part, name, elements * bytes / sequence_, dropped);
  }
  /// Inside a tensor-parallel region.
  void inside(std::string_view part, std::string_view name, double elements, double bytes, unsigned dropped = kNever) {
    add(part, name, elements * bytes / q_.tp, dropped);
  }
  void add(std::string_view part, std::string_view name, double bytes_per_token, unsigned dropped = kNever) {
    if (bytes_per_token > 0) out.push_back({part, name, bytes_per_token * q_.tokens, dropped});
  }

  double linear() const { return q_.act_store_fp8 || (q_.narrow && q_.traits.fp8_linear_inputs) ? 1 : q_.width; }
  double activation() const { return q_.act_store_fp8 ? 1 : q_.width; }
  double statistics() const { return q_.norm == NormKind::rms ? 4 : 8; }  // rstd; layer norms keep the mean too

  std::vector<SavedTensor> out;

 private:
  const ActivationQuestion& q_;
  double sequence_;
};

/// The K and V heads of a rank: tp beyond the KV heads duplicates them.
double kv_cut(const ActivationQuestion& q, const Attention& a) { return d(std::min<std::int64_t>(q.tp, a.kv_heads)); }

void scores(Keeper& k, const ActivationQuestion& q, const Attention& a) {
  if (!q.traits.unfused_attention) {
    k.inside("attention", "log-sum-exp", d(a.heads), 4, kCoreAttention);
    return;
  }
  // Softmax output 2 bytes a score; with dropout a mask of 1 and the dropped scores of 2 (Korthikanti: 5 a s^2 b).
  const double keys = d(a.window > 0 ? std::min(a.window, q.seq_len) : q.seq_len);
  k.inside("attention", "softmax output", d(a.heads) * keys, q.width, kCoreAttention);
  if (q.traits.dropout)
    k.inside("attention", "score mask and dropped scores", d(a.heads) * keys, q.width + 1, kCoreAttention);
}

void output_side(Keeper& k, const ActivationQuestion& q, const Attention& a) {
  scores(k, q, a);
  if (q.ulysses && q.cp > 1) k.inside("attention", "output before the exchange", d(a.output_width()), q.width);
  k.inside("attention", "output projection input", d(a.output_width()), k.linear());
  if (q.traits.dropout) k.sequence("attention", "dropout mask", d(q.hidden), 1);
}

void grouped_query(Keeper& k, const ActivationQuestion& q, const Attention& a) {
  k.sequence("attention", "norm input", d(q.hidden), q.width);
  k.sequence("attention", "norm statistics", 1, k.statistics());
  k.sequence("attention", "qkv input", d(q.hidden), k.linear(), kLayerNorm | kPerOp);
  if (a.qk_norm != QkNorm::none) {
    k.inside("attention", "query norm input", d(a.query_width()), q.width, kPerOp);
    k.add("attention", "key norm input", d(a.key_width()) * q.width / kv_cut(q, a), kPerOp);
  }
  k.inside("attention", "query", d(a.query_width()), q.width);
  k.add("attention", "key", d(a.key_width()) * q.width / kv_cut(q, a), kPerOp);
  k.add("attention", "value", d(a.value_width()) * q.width / kv_cut(q, a));
  if (q.traits.joined_qkv) {
    k.add("attention", "joined qkv behind the value",
          d(a.query_width()) * q.width / q.tp + d(a.key_width()) * q.width / kv_cut(q, a), kPerOp);
  }
  output_side(k, q, a);
}

void multi_latent(Keeper& k, const ActivationQuestion& q, const Attention& a) {
  k.sequence("attention", "norm input", d(q.hidden), q.width);
  k.sequence("attention", "norm statistics", 1, k.statistics());
  k.sequence("attention", "down-projection input", d(q.hidden), k.linear(), kLayerNorm);
  if (a.q_lora > 0) {
    k.sequence("attention", "query latent (norm input)", d(a.q_lora), q.width);
    k.sequence("attention", "query up-projection input", d(a.q_lora), k.linear(), kMlaUpProjection | kLayerNorm);
  }
  k.sequence("attention", "key-value latent (norm input)", d(a.kv_lora + a.qk_rope), q.width);
  k.sequence("attention", "key-value up-projection input", d(a.kv_lora), k.linear(), kMlaUpProjection | kLayerNorm);
  k.inside("attention", "query", d(a.query_width()), q.width, kMlaUpProjection);
  k.inside("attention", "key", d(a.key_width()), q.width, kMlaUpProjection);
  k.inside("attention", "value", d(a.value_width()), q.width, kMlaUpProjection);
  output_side(k, q, a);
}

/// Without a norm before it, the network's input is the layer's own.
void dense(Keeper& k, const ActivationQuestion& q, const Mlp& mlp, bool norm) {
  const double f = d(mlp.width);
  if (norm) {
    k.sequence("mlp", "norm input", d(q.hidden), q.width, kPerOp);
    k.sequence("mlp", "norm statistics", 1, k.statistics());
  }
  k.sequence("mlp", "up input", d(q.hidden), k.linear(), kLayerNorm | kMlp | kPerOp);
  if (mlp.gated) {
    k.inside("mlp", "gate", f, k.activation(), kMlp);
    k.inside("mlp", "up", f, k.activation(), kMlp | kPerOp);
    k.inside("mlp", "inside the activation function", f, q.traits.eager_bytes, kMlp | kPerOp);
  } else {
    k.inside("mlp", "activation input", f, k.activation(), kMlp);
  }
  k.inside("mlp", "down input", f, k.linear(), kMlp | kPerOp);
  if (q.traits.dropout) k.sequence("mlp", "dropout mask", d(q.hidden), 1);
}

/// Routed tokens of a rank per token of the micro-batch: k copies over the tensor-parallel ranks, etp of which work
/// together.
double routed(const ActivationQuestion& q, const Moe& e) { return d(e.top_k) * q.load * q.etp / q.tp; }

void experts(Keeper& k, const ActivationQuestion& q, const Moe& e) {
  const double h = d(q.hidden), fe = d(e.width) / q.etp, tokens = routed(q, e), shared = d(e.shared_width);
  k.sequence("router", "norm input", h, q.width);
  k.sequence("router", "norm statistics", 1, k.statistics());
  k.sequence("router", "router input", h, q.width, kLayerNorm | kMoe);
  k.sequence("router", "scores", d(e.experts), 4, kMoe);
  k.sequence("router", "chosen ids and gates", d(e.top_k), 8, kMoe);
  k.add("experts", "expert input", tokens * h * k.linear(), kMoe);
  if (e.gated) k.add("experts", "gate", tokens * fe * k.activation(), kMoe);
  k.add("experts", e.gated ? "up" : "activation input", tokens * fe * k.activation(), kMoe);
  k.add("experts", "down input", tokens * fe * k.linear(), kMoe | kMoeActivation);
  if (shared <= 0) return;
  k.inside("shared experts", "gate", e.gated ? shared : 0, k.activation(), kMoe | kSharedExperts);
  k.inside("shared experts", "up", shared, k.activation(), kMoe | kSharedExperts);
  k.inside("shared experts", "down input", shared, k.linear(), kMoe | kSharedExperts);
}

/// Gradients of the outputs of the linear layers that split schedules keep until the weight gradient, elements per
/// token. They are kept in the type of the linear inputs: both are operands of the same product.
double output_gradients(const ActivationQuestion& q, const Layer& l) {
  const Attention& a = l.attention;
  const double sequence = q.sp ? q.tp : 1, h = d(q.hidden);
  const bool attends = a.heads > 0;
  double out = d(a.query_width()) / q.tp + (attends ? 2 : 1) * h / sequence;
  if (a.kind == AttentionKind::multi_latent) {
    out += d(a.heads) * d(a.qk_nope + a.v_head) / q.tp + d(a.q_lora + a.kv_lora + a.qk_rope) / sequence;
  } else if (attends) {
    out += (d(a.key_width()) + d(a.value_width())) / kv_cut(q, a);
  }
  if (!l.moe) return out + (l.mlp.gated ? 2 : 1) * d(l.mlp.width) / q.tp;
  const double inputs = l.moe->gated ? 2 : 1, fe = d(l.moe->width) / q.etp;
  return out + routed(q, *l.moe) * (inputs * fe + h) + inputs * d(l.moe->shared_width) / q.tp;
}

/// Worst moment of a layer's backward pass: at the activation function (gradients of its input and output) with the
/// gradient that came in, gathered over tp under sequence parallelism; or inside attention (gradients of q, k, v in
/// FP32 and of its output). Bytes per token.
double backward_workspace(const ActivationQuestion& q, const Layer& l) {
  const double h = d(q.hidden), sequence = q.sp ? q.tp : 1;
  const double incoming = q.width * h / sequence + (q.sp ? q.width * h : 0);
  const Attention& a = l.attention;
  const double attention = a.heads == 0 ? 0
                                        : incoming + 4 * d(a.query_width()) / q.tp +
                                              4 * (d(a.key_width()) + d(a.value_width())) / kv_cut(q, a);
  if (!l.moe) return std::max(attention, incoming + q.width * (l.mlp.gated ? 2 : 1) * d(l.mlp.width) / q.tp);
  const double fe = d(l.moe->width) / q.etp, tokens = routed(q, *l.moe);
  // Permuted gradient in and out, and the activation's input gradient.
  return std::max(attention, incoming + q.width * tokens * (h + (l.moe->gated ? 2 : 1) * fe));
}

bool is_linear_input(const SavedTensor& t) {
  return t.name.ends_with("input") && t.name.find("norm") == std::string_view::npos;
}

}  // namespace

unsigned recomputed_modules(const Layout& l) {
  if (l.recompute != Recompute::selective) return kNever;
  const RecomputeModules& m = l.modules;
  unsigned out = kNever;
  if (m.core_attn) out |= kCoreAttention;
  if (m.layernorm) out |= kLayerNorm;
  if (m.mla_up_proj) out |= kMlaUpProjection;
  if (m.moe_act) out |= kMoeActivation;
  if (m.moe) out |= kMoe;
  if (m.mlp) out |= kMlp;
  if (m.shared_experts) out |= kSharedExperts;
  if (m.per_op) out |= kPerOp;
  return out;
}

ActivationQuestion activation_question(const Layout& l, const Model& m, const Workload& w,
                                       const ActivationTraits& traits, double load) {
  ActivationQuestion q;
  q.hidden = m.hidden;
  q.norm = m.norm;
  q.tokens = d(l.mbs) * d(w.seq_len) / l.cp;
  q.width = wide_bytes(w.precision);
  q.seq_len = w.seq_len;
  q.tp = l.tp, q.cp = l.cp, q.etp = l.etp;
  q.sp = l.sequence_parallel();
  q.ulysses = l.cp_by == ContextParallel::ulysses;
  q.load = load;
  q.act_store_fp8 = l.act_store_fp8.value_or(false);
  q.narrow = bytes_of(w.precision) < 2;
  q.traits = traits;
  if (l.compile.value_or(false)) q.traits.eager_bytes = 0;
  // act-store=bf16 said by the layout overrules the stack.
  if (l.act_store_fp8.has_value() && !*l.act_store_fp8) q.traits.fp8_linear_inputs = false;
  return q;
}

std::vector<SavedTensor> saved_tensors(const ActivationQuestion& q, const Layer& l) {
  Keeper k(q);
  k.out.reserve(24);
  if (l.attention.kind == AttentionKind::multi_latent) {
    multi_latent(k, q, l.attention);
  } else if (l.attention.heads > 0) {
    grouped_query(k, q, l.attention);
  }
  if (l.moe) {
    experts(k, q, *l.moe);
  } else {
    dense(k, q, l.mlp, l.attention.heads > 0 || l.norms > 0);
  }
  return std::move(k.out);
}

LayerActivations layer_activations(const ActivationQuestion& q, const Layer& l, unsigned modules) {
  LayerActivations out;
  for (const SavedTensor& t : saved_tensors(q, l)) {
    out.all += t.bytes;
    const bool kept = (t.dropped_by & modules) == 0;
    if (kept) out.kept += t.bytes;
    if (is_linear_input(t)) out.waiting += t.bytes;
  }
  // Every second matrix product is kept by per-op recomputation: the down projection's output too, though nobody reads
  // it.
  if ((modules & kPerOp) != 0) out.kept += q.width * d(q.hidden) * q.tokens / (q.sp ? q.tp : 1);
  out.recomputed = std::max(0.0, out.all - out.kept);
  out.input = q.width * d(q.hidden) * q.tokens / (q.sp ? q.tp : 1);
  out.waiting += output_gradients(q, l) * q.tokens * Keeper(q).linear();
  out.workspace = backward_workspace(q, l) * q.tokens;
  return out;
}

double korthikanti_bytes(double tokens, double hidden, double heads, double seq_len, int tp, bool sp, bool flash) {
  const double scores = flash ? 0 : 5 * heads * seq_len / hidden;
  return tokens * hidden * (sp ? (34 + scores) / tp : 10 + (24 + scores) / tp);
}

}  // namespace shardplan
