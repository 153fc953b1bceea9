#pragma once
// Arithmetic that a layout repeats.
#include <vector>

#include "layouts/step/question.hpp"

namespace shardplan {

/// FLOP of recomputation per token of the batch: the products of the forward pass that run again in the backward pass.
/// full: every product of a recomputed layer; selective: those of the named modules (core_attn = Q K^T and P V;
/// mla_up_proj = the two up-projections; mlp; shared_experts; moe = router, routed and shared experts; layernorm and
/// moe_act hold no products); per-op: every second matrix product, attention kept. Embedding and output head are never
/// repeated. Causal attention. Left out, by the convention of hardware FLOPs: the scores that a fused attention kernel
/// forms again in every backward pass.
double recomputed_flops(const StepQuestion&, const std::vector<StageSlice>&);

}  // namespace shardplan
