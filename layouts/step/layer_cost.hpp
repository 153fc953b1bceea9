#pragma once
// One transformer layer of one micro-batch on one rank: forward, input-gradient, weight-gradient and recomputed work.
#include "layouts/step/cost.hpp"
#include "layouts/step/overlapped_pair.hpp"
#include "layouts/step/question.hpp"

namespace shardplan {

/// Shapes of the groups that a rank communicates in.
struct Groups {
  GroupShape tp, cp, ep, etp;
  GroupShape dense_shard;    // ranks over which dense states are sharded (dp x cp, or `shard`)
  GroupShape dense_replica;  // groups of the same shard where `shard` is set: ranks = dp x cp / shard
  GroupShape expert_shard;   // edp
  GroupShape hop;            // from a pipeline rank to the next
};
Groups groups_of(const Layout&, const Cluster&);

/// What a layer costs. `recompute` runs at the start of the backward pass. forward_a2a, backward_a2a: seconds of
/// all-to-all inside `forward` and `input_grad` that an overlapped pair can hide; lanes: the same device seconds by the
/// blocks of such a pair.
struct LayerCost {
  Cost forward, recompute, input_grad, weight_grad;
  double forward_a2a = 0, backward_a2a = 0;
  LayerLanes lanes;
};

/// Everything about a question that all its layers share.
class LayerPricer {
 public:
  explicit LayerPricer(const StepQuestion&, const Groups&);
  /// `recomputed` = this layer lies among those that `recompute=` names.
  LayerCost layer(const Layer&, bool recomputed) const;
  Cost embedding_forward() const;
  Cost embedding_backward() const;
  /// Final norm, output head and loss.
  LayerCost head() const;
  /// The projection that joins a multi-token-prediction layer to its input (2h -> h).
  LayerCost mtp_projection() const;

  double tokens() const { return tokens_; }                    // per rank and micro-batch, before tensor parallelism
  double sequence_tokens() const { return sequence_tokens_; }  // of regions that sequence parallelism shards
  const StepQuestion& question() const { return question_; }
  DataType linear_type() const { return linear_; }

 private:
  const StepQuestion& question_;
  Groups groups_;
  double tokens_ = 0, sequence_tokens_ = 0;
  DataType linear_ = DataType::bf16;  // of the transformer's linear layers
  DataType wide_ = DataType::bf16;    // of attention, router and head
};

}  // namespace shardplan
