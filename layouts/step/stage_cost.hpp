#pragma once
// The passes of one virtual stage, and the parameters it holds on one rank.
#include <vector>

#include "layouts/step/layer_cost.hpp"

namespace shardplan {

/// Parameters of a slice on one rank: tensor- and expert-parallel shares, before data-parallel sharding.
struct LocalParameters {
  double dense = 0;    // reduced over dp x cp
  double expert = 0;   // reduced over edp
  double tensors = 0;  // that hold them
  LocalParameters& operator+=(const LocalParameters& o) {
    dense += o.dense;
    expert += o.expert;
    tensors += o.tensors;
    return *this;
  }
};
LocalParameters local_parameters(const Model&, const Layer&, const Layout&);
LocalParameters local_embedding(const Model&, const Layout&);
/// Bytes an element of the data-parallel reduction: the layout's, or the stack's.
double gradient_bytes(const StepQuestion&);

/// One virtual stage: seconds of its passes with everything that is exposed inside them.
struct StageCost {
  Cost forward, input_grad, weight_grad;  // input_grad starts with the recomputed work
  Cost recompute;                         // the part of input_grad that is recomputed
  double backward_s = 0;                  // input_grad and weight_grad as one pass
  double forward_s = 0, input_grad_s = 0, weight_grad_s = 0;
  double forward_a2a = 0, backward_a2a = 0;  // all-to-all seconds inside, that an overlapped pair can hide
  std::vector<LayerLanes> lanes;             // of its layers, in their order
  LocalParameters parameters;
};

/// Layers that a slice's pipeline rank holds in slices before it: full:n recomputes the first n of a rank.
std::vector<int> layers_before_on_rank(const Layout&, const std::vector<StageSlice>&);

/// Prices every stage of a split; equal layers are priced once.
std::vector<StageCost> price_stages(const StepQuestion&, const Groups&, const std::vector<StageSlice>&);

}  // namespace shardplan
