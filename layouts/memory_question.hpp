#pragma once
// What all ranks of a layout share where memory is asked for: kinds of layers, weights of the ends, the recipe.
#include <vector>

#include "layouts/activations.hpp"
#include "layouts/layer_weights.hpp"
#include "layouts/memory.hpp"
#include "models/model.hpp"

namespace shardplan {

inline constexpr double kHalfBytes = 2;  // of a BF16 or FP16 element

/// A kind of layer on this layout: weights of one rank and what it keeps.
struct LayerKind {
  const Layer* layer = nullptr;
  bool mtp = false;
  RankWeights weights;
  LayerActivations activations;
};

/// Everything that all ranks share. Refers to model, layout and options: they must live as long.
struct MemoryQuestion {
  const Model& model;
  const Layout& layout;
  const MemoryOptions& options;
  const Recipe& recipe;
  ActivationQuestion activation;
  double vocab = 0;
  EndWeights ends;
  std::vector<LayerKind> kinds;
  std::vector<int> kind_of;  // by layer
  std::vector<int> mtp_kind_of;

  MemoryQuestion(const Model&, const Layout&, const Workload&, const MemoryOptions&);

  double gradient_bytes() const {
    if (layout.grad_accumulate_fp32) {
      return *layout.grad_accumulate_fp32 == recipe.accumulates_fp32 ? recipe.gradient
                                                                     : (*layout.grad_accumulate_fp32 ? 4 : kHalfBytes);
    }
    const bool narrow = layout.grad_reduce_fp32.has_value() && !*layout.grad_reduce_fp32;
    return narrow && options.traits.gradients_follow_reduction ? kHalfBytes : recipe.gradient;
  }
  /// Gradients are made in 16 bits and added to an FP32 sum: a temporary of the matrix's size while the sum is made.
  bool makes_temporaries() const {
    return recipe.temporaries && gradient_bytes() > kHalfBytes && layout.zero_stage() < 3;
  }
  double sequence_bytes() const {  // one hidden state of a micro-batch, as sequence parallelism leaves it
    return activation.width * static_cast<double>(model.hidden) * activation.tokens /
           (activation.sp ? activation.tp : 1);
  }
  double whole_bytes() const { return activation.width * static_cast<double>(model.hidden) * activation.tokens; }
  /// Of one micro-batch on one rank, in elements of 16 bits: what the stacks' bytes a logit are for.
  double logits() const { return activation.tokens * vocab / layout.tp * activation.width / kHalfBytes; }

 private:
  int kind(const Layer&, bool mtp);
};

}  // namespace shardplan
