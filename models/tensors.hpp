#pragma once
// Every stored tensor of a model, one entry a kind: parameters, checkpoint bytes and tensor-parallel shards all come
// from here.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/model.hpp"

namespace shardplan {

enum class Component {
  embedding,
  positions,
  attention,
  qk_norm,
  norms,
  mlp,
  router,
  routed_experts,
  shared_experts,
  head,
  mtp_projection
};
inline constexpr std::array<std::string_view, 11> kComponentNames = {
    "embedding", "positions",      "attention",      "qk_norm", "norms",         "mlp",
    "router",    "routed_experts", "shared_experts", "head",    "mtp_projection"};

/// How tensor parallelism cuts a tensor. columns: output features; rows: input features; replicated: not at all.
enum class TensorCut { replicated, columns, rows };

struct Tensor {
  std::string_view name;  // "q", "k", "up", ...: literals, unique within a layer
  Component component = Component::attention;
  std::int64_t out = 0;     // output features (a vector's length)
  std::int64_t in = 1;      // input features (1 for a vector)
  std::int64_t copies = 1;  // experts
  TensorCut cut = TensorCut::replicated;
  std::int64_t units =
      1;                // indivisible pieces along the cut: heads, KV heads, or features; fewer than tp are duplicated
  bool linear = false;  // a matrix that FP8 recipes store in FP8 (attention, MLP, experts; not router, embedding, head)
  bool trained = true;  // false: a buffer (selection bias)

  std::int64_t count() const { return out * in * copies; }
};

/// Attention, norms and feed-forward network of one layer. Selection biases are listed with trained = false.
std::vector<Tensor> layer_tensors(const Model&, const Layer&);
/// Token embedding and learned positions: what the first stage holds.
std::vector<Tensor> embedding_tensors(const Model&);
/// Final norm and output head. With tied embeddings the head's matrix is not listed: it is the embedding's
/// (a pipeline's last stage then holds a copy: see embedding_tensors).
std::vector<Tensor> head_tensors(const Model&);
/// A multi-token-prediction layer: its own norms and projection (DeepSeek-V3 report, section 2.2) beside layer_tensors.
/// Copies of embedding and head are not listed.
std::vector<Tensor> mtp_tensors(const Model&, const Layer&);

/// Sum of count() over the trained tensors.
std::int64_t trained_parameters(const std::vector<Tensor>&);

/// Elements of one tensor-parallel rank: a cut tensor's share, rounded up to whole units where they do not divide
/// (KV heads fewer than tp: one each, duplicated). `tp` applies to expert tensors too: pass etp for those.
std::int64_t shard_parameters(const Tensor&, std::int64_t tp);

}  // namespace shardplan
