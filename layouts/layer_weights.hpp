#pragma once
// Trainable elements of a layer by how a layout divides them.
#include "models/model.hpp"

namespace shardplan {

/// Elements; a rank holds sharded / tp + kv / min(tp, kv_heads) + replicated + experts / (ep etp).
struct LayerWeights {
  double sharded = 0;     // query and output projections, MLA up-projections, dense and shared-expert MLPs
  double kv = 0;          // key and value projections: tp beyond the KV heads duplicates them
  double replicated = 0;  // norms, router, MLA down-projections, biases of row-parallel products: on every tp rank
  double experts = 0;     // routed experts, all of them
  std::int64_t kv_heads = 0;

  double dense_on_rank(int tp) const;
  double experts_on_rank(int ep, int etp) const { return experts / (static_cast<double>(ep) * etp); }
};

LayerWeights layer_weights(const Model&, const Layer&);

/// What the ends of the model hold, elements: the input embedding (with learned positions), the final norm, the head.
struct EndWeights {
  double embedding = 0, positions = 0, final_norm = 0, head = 0;
};
/// `padded_vocab` rows; tied: head is 0 here (a pipeline's last stage still stores its own copy of the embedding).
EndWeights end_weights(const Model&, double padded_vocab);

/// Beside its transformer layer an MTP layer holds two norms, the 2h -> h projection and its final norm.
LayerWeights mtp_weights(const Model&, const Layer&);

/// Multiply-adds of the layer's matrix products per token, attention scores left out: what stages are balanced by.
double layer_multiplies(const Model&, const Layer&);

}  // namespace shardplan
