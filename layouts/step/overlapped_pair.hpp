#pragma once
// One micro-batch's forward pass beside another's backward pass, layer by layer, on two streams: what of their
// all-to-alls stays visible.
#include <vector>

namespace shardplan {

/// Device seconds of one layer by what the two streams run; all-to-alls apart from the compute around them. A dense
/// layer has its block after the attention in `experts` and no all-to-alls.
struct LayerLanes {
  double attention = 0, dispatch = 0, experts = 0, combine = 0;  // forward; attention with the router
  double combine_back = 0, experts_back = 0, experts_weights = 0, dispatch_back = 0;
  double attention_back = 0, attention_weights = 0;
  double contention = 0;  // share of the SMs that the exchange holds

  double forward() const { return attention + dispatch + experts + combine; }
  double backward() const {
    return combine_back + experts_back + experts_weights + dispatch_back + attention_back + attention_weights;
  }
  bool operator==(const LayerLanes&) const = default;
};

/// Device seconds of the pair: forward layers first to last, backward layers last to first, a layer of each at a time:
///   communication:  combine'             | dispatch, dispatch'             | combine
///   compute:        attention and router | experts', weights', experts     | attention', weights'
/// (' = backward). Each stream runs in this order; a block waits for its inputs: experts' for combine', dispatch for
/// the attention, dispatch' for experts', experts for dispatch, combine for experts, attention' for dispatch', and the
/// next layer's attention for combine, its combine' for attention'. While a transfer runs, its kernels hold
/// `contention` of the SMs, and compute beside it has the rest. `delayed` = weight gradients are blocks of their own,
/// behind what others wait for (Megatron's --delay-wgrad-compute); otherwise they belong to the block before them.
/// Source: Megatron core, models/common/model_chunk_schedule_plan.py (TransformerLayerSchedulePlan.run). Leaves out HBM
/// and NVLink traffic that both streams share. Layers without a partner run alone.
double overlapped_seconds(const std::vector<LayerLanes>& forward, const std::vector<LayerLanes>& backward,
                          bool delayed);

}  // namespace shardplan
