#include "layouts/step/flops.hpp"

#include "layouts/ranks.hpp"
#include "layouts/step/stage_cost.hpp"
#include "models/flops.hpp"

namespace shardplan {
namespace {

/// 2 FLOP a weight: queries from their latent (where there is one), keys' and values' heads from theirs.
double up_projections(const Attention& a) {
  if (a.kind != AttentionKind::multi_latent) return 0;
  const double queries = a.q_lora > 0 ? static_cast<double>(a.q_lora) * static_cast<double>(a.query_width()) : 0;
  return 2 * (queries + static_cast<double>(a.kv_lora) * static_cast<double>(a.heads * (a.qk_nope + a.v_head)));
}

double repeated(const StepQuestion& q, const Layer& layer) {
  const TokenFlops f = layer_flops(*q.model, layer, q.workload.seq_len);
  if (q.layout.recompute == Recompute::full) return f.total();
  const RecomputeModules& m = q.layout.modules;
  double out = 0;
  if (m.core_attn) out += f.scores;
  if (m.mla_up_proj) out += up_projections(layer.attention);
  if (m.mlp) out += f.mlp;
  if (m.moe) out += f.router + f.experts;
  if (m.moe || m.shared_experts) out += f.shared;
  if (m.per_op) out += 0.5 * f.matmul();
  return out;
}

}  // namespace

double recomputed_flops(const StepQuestion& q, const std::vector<StageSlice>& slices) {
  if (q.layout.recompute == Recompute::none || !q.options.on(Effect::recompute)) return 0;
  const std::vector<int> before = layers_before_on_rank(q.layout, slices);
  double out = 0;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const int held = slices[s].layers + slices[s].mtp_layers;
    for (int i = 0; i < held; ++i) {
      if (q.layout.recompute_layers > 0 && before[s] + i >= q.layout.recompute_layers) continue;
      const bool mtp = i >= slices[s].layers;
      out += repeated(q, mtp ? q.model->mtp.at(static_cast<std::size_t>(i - slices[s].layers))
                             : q.model->layers[static_cast<std::size_t>(slices[s].first_layer + i)]);
    }
  }
  return out;
}

}  // namespace shardplan
