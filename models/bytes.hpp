#pragma once
// Bytes of weights by format and of the key-value cache.
#include <cstdint>
#include <optional>

#include "models/model.hpp"

namespace shardplan {

/// Bytes of the main model's trained weights (MTP left out).
struct WeightBytes {
  double bf16 = 0;  // 2 a parameter
  double fp8 = 0;   // linear weights 1 + an FP32 scale per 128 x 128 block, everything else BF16
  std::optional<double>
      as_published;  // what the published checkpoint stores, MTP and buffers included; none = not published
};
WeightBytes weight_bytes(const Model&);

/// What one more token adds to the cache while it is inside every window: grouped_query 2 nkv hd elements per layer,
/// multi_latent kv_lora + qk_rope (the latent is cached, not the heads) and an indexer's key.
double kv_bytes_per_token(const Model&, double bytes_per_element = 2);
/// Cache of one sequence of `context` tokens: layers with a window or chunks keep min(context, window); linear
/// attention keeps a state of fixed size (heads d_k d_v elements, and its convolution's last taps).
double kv_cache_bytes(const Model&, std::int64_t context, double bytes_per_element = 2);

/// What one token sends to its experts in one layer, or gets back: a hidden vector per chosen routed expert. Left out:
/// the merging of experts on one node, and the FP32 scales of FP8 payloads.
double routed_bytes_per_token(const Model&, const Moe&, double bytes_per_element);

}  // namespace shardplan
