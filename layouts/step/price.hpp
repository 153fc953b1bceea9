#pragma once
// The prices of a step: kernel and collective prices with the step's own factors (sustained rate, stack, host launches)
// applied.
#include <cstdint>
#include <string>
#include <vector>

#include "layouts/step/cost.hpp"
#include "layouts/step/layer_cost.hpp"
#include "layouts/step/question.hpp"

namespace shardplan {

/// One MoE layer on the busiest rank: tokens of each of its experts, dispatch and combine of the forward pass.
struct ExpertTraffic {
  std::vector<std::int64_t> tokens;
  Price dispatch, combine;
  double permuted_rows = 0;  // read and written by the forward pass's permutations
  double contention = 0;     // share of the SMs that the exchange's kernels hold
};

/// Routed tokens that the busiest expert-parallel rank keeps, over what an even router without drops sends it: what
/// skew and capacity do to its memory. 1 without experts.
double routed_load(const RoutingQuestion&, const Model&, const Layout&, const Cluster&);

/// Parts of a layer that CUDA graphs can hold, in the order in which they run (Megatron core, --cuda-graph-scope:
/// moe_router takes the shared experts in where nothing overlaps them).
enum class LayerPart : unsigned char { attention, mlp, router, preprocess, experts };

class StepPricer {
 public:
  explicit StepPricer(const StepQuestion& q);

  Price gemm(std::int64_t m, std::int64_t n, std::int64_t k, DataType, GemmPass, bool accumulate_fp32 = false) const;
  Price grouped(const GroupedGemm&) const;
  /// Of a whole causal mask, or of packed documents' share of it where the question has them.
  Price attention(AttentionShape) const;
  Price memory(MemoryKernel, double bytes) const;
  Price collective(Collective, double bytes, const GroupShape&) const;
  /// `tokens` enter the layer on this rank.
  ExpertTraffic expert_traffic(const Moe&, double tokens, std::int64_t hidden, const Groups&) const;

  DataType wide_type() const { return wide_; }
  /// Bytes of an activation or weight outside quantised products.
  double wide_bytes() const { return bytes_of(wide_); }
  /// What a sum of prices stands on where it was made of what overlap leaves of them.
  Basis derived() const;
  /// FP8 or FP4: products whose operands are cast.
  static bool narrow(DataType);
  /// Host seconds of one operator that launches a kernel or a collective; 0 where one CUDA graph holds the step, at
  /// datasheet rates or without the effect.
  double launch() const { return launch_; }
  /// Whether the layout's CUDA graphs hold this part of every layer.
  bool captures(LayerPart) const;
  /// Share of a compute kernel's speed that communication beside it takes.
  double contention(Part) const;

 private:
  double factor(DataType) const;
  double release() const;

  const StepQuestion& q_;
  DataType wide_;
  double launch_ = 0;
  std::string graphs_;
};

}  // namespace shardplan
