#pragma once
// The feed-forward products of a dense layer, or of the shared experts of an MoE layer.
#include "layouts/step/layer_builder.hpp"
#include "layouts/step/tensor_parallel.hpp"

namespace shardplan {

/// Gate, up and down products of width `width` per rank, their activation and (outside MoE) their collectives.
void mlp_products(LayerBuilder&, double m, std::int64_t width, bool gated, DataType linear, Module, Part,
                  const TpTraffic&);

}  // namespace shardplan
