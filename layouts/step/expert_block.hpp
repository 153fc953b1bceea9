#pragma once
// The expert block of an MoE layer: router, permutations, exchange, routed and shared experts.
#include "layouts/step/layer_builder.hpp"

namespace shardplan {

/// Follows the attention and the norm before the router; marks where they end (LayerBuilder::mark_attention).
void expert_block(LayerBuilder&, const Moe&, const Groups&, DataType linear);

}  // namespace shardplan
