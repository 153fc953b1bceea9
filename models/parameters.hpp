#pragma once
// Parameter counts: total, three kinds of active, what a checkpoint stores, by component and by layer.
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/model.hpp"
#include "models/tensors.hpp"

namespace shardplan {

/// Trained parameters of one layer.
struct LayerParameters {
  std::int64_t attention = 0;  // projections, their biases and MLA's inner norms
  std::int64_t qk_norm = 0;
  std::int64_t norms = 0;  // of width hidden
  std::int64_t mlp = 0;    // dense feed-forward network
  std::int64_t router = 0;
  std::int64_t expert = 0;   // ONE routed expert
  std::int64_t experts = 0;  // all routed experts together
  std::int64_t shared = 0;   // shared experts and their gate

  std::int64_t total() const { return attention + qk_norm + norms + mlp + router + experts + shared; }
  /// Everything but the routed experts: replicated over expert-parallel ranks.
  std::int64_t dense() const { return total() - experts; }
};
LayerParameters layer_parameters(const Model&, const Layer&);

struct ParameterCounts {
  std::int64_t total = 0;                           // trained tensors of the main model (MTP left out)
  std::int64_t active = 0;                          // that one token touches: total - idle routed experts
  std::int64_t active_without_input_embedding = 0;  // an embedding lookup is not arithmetic; tied: = active
  std::int64_t active_without_embeddings = 0;  // without input embedding, positions and head; tied: shared matrix once
  std::int64_t mtp = 0;                        // trained tensors of the MTP layers, embedding and head shared
  std::int64_t checkpoint = 0;                 // elements that the published checkpoint stores
  std::vector<std::pair<std::string, std::int64_t>> checkpoints;    // its forms: bf16, bf16_mtp, fp8, fp8_mtp
  std::array<std::int64_t, kComponentNames.size()> by_component{};  // of total; index with Component
};
ParameterCounts count_parameters(const Model&);

/// FP32 scales of FP8 block quantisation: one per 128 x 128 block of each linear matrix, ceil(out/128) ceil(in/128).
std::int64_t fp8_scales(const std::vector<Tensor>&);

}  // namespace shardplan
