#pragma once
// The attention block of a layer: its norm, projections, core, residual addition and collectives.
#include "layouts/step/layer_builder.hpp"

namespace shardplan {

/// `linear` = of the projections.
void attention_block(LayerBuilder&, const Layer&, const Groups&, DataType linear);

}  // namespace shardplan
