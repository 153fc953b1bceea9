#pragma once
// Trainable elements that one rank holds of a layer and of the model's ends, after tensor and expert parallelism.
#include <cstdint>
#include <vector>

#include "models/model.hpp"
#include "models/tensors.hpp"

namespace shardplan {

/// Elements on one rank. `dense` is sharded by ZeRO over dp x cp, `experts` over edp.
struct RankWeights {
  double dense = 0;
  double experts = 0;
  double distinct = 0;  // elements of one copy of each distinct matrix (what caches by shape hold)
  double largest = 0;   // elements of the largest matrix
  double tensors = 0;   // stored tensors, counting query, key and value, and gate and up, as one

  RankWeights& operator+=(const RankWeights& o) {
    dense += o.dense;
    experts += o.experts;
    tensors += o.tensors;
    return *this;
  }
};

RankWeights layer_weights(const Model&, const Layer&, int tp, int ep, int etp);
/// Beside the layer itself: norms and the 2h -> h projection.
RankWeights mtp_weights(const Model&, const Layer&, int tp, int ep, int etp);

/// Vocabulary rows that a stack stores: Megatron pads to a multiple of `multiple` x tp; 0 = the stated size.
double padded_vocab(const Model&, int tp, std::int64_t multiple);

/// The ends: input embedding (with learned positions), final norm, output head (with its own matrix even where it is
/// tied: a pipeline's last stage holds a copy; one stage alone does not). Elements on one tensor-parallel rank.
struct EndWeights {
  double embedding = 0, head = 0, final_norm = 0;
};
EndWeights end_weights(const Model&, int tp, double vocab);

/// Multiply-adds of the layer's matrix products per token, attention scores left out: what stages are balanced by.
double layer_multiplies(const Model&, const Layer&);

/// Layers that hold and compute the same; false may only cost time.
bool same_layer(const Layer&, const Layer&);

}  // namespace shardplan
