#pragma once
// The tensor-parallel collectives of a block that begins with column-parallel products and ends with a row-parallel
// one.
#include "layouts/step/layer_builder.hpp"

namespace shardplan {

/// The tensor-parallel traffic of one column-parallel ... row-parallel block, added around its products.
struct TpTraffic {
  bool on = false, sequence = false;
  Price gather, scatter,
      reduce;  // all-gather and reduce-scatter of the sequence; all-reduce without sequence parallelism
};

/// `type` = of the products whose input is gathered.
TpTraffic tp_traffic(const LayerBuilder&, const Groups&, DataType type);

/// Seconds of the block's backward reduction that may hide under its column-parallel weight gradient; `products` share
/// the block's input.
double hidden_reduction(const LayerBuilder&, const TpTraffic&, int products);
/// Seconds of the input's second gather, before its weight gradient, that may hide.
double hidden_gather(const LayerBuilder&, const TpTraffic&);

/// Collectives around a block whose first `products`, side by side, take `column` seconds and whose last takes `row`
/// seconds, forward.
void tp_collectives(LayerBuilder&, const TpTraffic&, Module, int products, double column, double row);

}  // namespace shardplan
