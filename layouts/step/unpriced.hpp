#pragma once
// Words of a layout whose effect on time is not in the step.
#include <string>
#include <vector>

#include "layouts/step/question.hpp"

namespace shardplan {

/// One sentence for each such word, with the side on which the step errs; empty where all is priced.
///
/// Where the other words are priced: tp cp pp dp ep etp vpp mbs sp, order (group shapes); zero shard (data_parallel,
/// stage_cost), reshard prefetch wrap (stage_cost: order of unit gathers); schedule group split (pipeline); recompute
/// (layer_cost: modules repeated); cp-by tp-overlap (layer_cost); ep-overlap=shared, =wavesN
/// (expert_block: dispatch under the shared expert; transfers of one wave under products of another), =1f1b
/// (stage_cost), =dualpipe (pipeline: pairs); transport (price: expert exchange); cuda-graphs (layer_builder: launches
/// of the parts that a graph holds); compile (layer_cost: traffic of element-wise work); grad-reduce (data_parallel:
/// bytes); fused-loss (layer_cost: traffic of the loss); offload=activations (stage_cost: what the link to the host
/// cannot carry under the passes).
std::vector<std::string> unpriced_words(const StepQuestion&);

}  // namespace shardplan
