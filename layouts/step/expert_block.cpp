#include "layouts/step/expert_block.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "layouts/step/feed_forward_block.hpp"

namespace shardplan {
namespace {

/// Operators that the host launches around the products of an MoE layer, forward and backward. Counted in Megatron core
/// (transformer/moe: router.py, moe_utils.py, token_dispatcher.py, fused_a2a.py), fused permutations, unfused router,
/// auxiliary loss on; views and collectives are not counted.
///   router: input and weight to FP32; scores; top-k, and its probabilities and map scattered into empty tensors (6);
///     normalised; the loss's own scores, top-k and map (5), counts, mean probabilities, their product and its scaling
///     (6), one for its gradient. Backward: scores and scatters of both paths, the loss's product, two casts.
///   preprocess: counts by expert, gathered, reshaped, summed and sliced, copied to the host; DeepEP and HybridEP:
///     top-k of the map, its layout over ranks and nodes, the notification.
///   permutes: two with their row maps and probabilities, and the chunks of each source rank sorted by expert, or the
///     map of what arrived.
constexpr int kRouterForward = 22, kRouterBackward = 15;
constexpr int kNcclPreprocess = 10, kFusedPreprocess = 6;
constexpr int kPermutes = 6;

void expert_products(LayerBuilder& b, const Moe& moe, const std::vector<std::int64_t>& tokens, DataType linear) {
  const std::int64_t h = b.question().model->hidden, width = moe.width / b.layout().etp;
  // Transformer Engine's grouped linear layer is one operator that loops over the experts' products, and over the casts
  // of their inputs; PyTorch's is one kernel.
  const bool loops = b.stack().framework != "pytorch";
  const int kernels = loops ? static_cast<int>(tokens.size()) * (b.price().narrow(linear) ? 2 : 1) : 0;
  const auto product = [&](std::int64_t n, std::int64_t k) {
    GroupedGemm g{tokens, n, k, linear, GemmPass::forward, false};
    b.add_forward(Module::experts, Part::experts, b.price().grouped(g));
    b.loop_forward(Module::experts, kernels);
    g.pass = GemmPass::input_grad;
    b.cost().input_grad.add(Part::experts, b.price().grouped(g));
    g.pass = GemmPass::weight_grad;
    g.accumulate_fp32 = b.stack().fp32_accumulate;
    b.cost().weight_grad.add(Part::experts, b.price().grouped(g));
    b.launch_backward(2);
    b.loop_backward(2 * kernels);
  };
  double rows = 0;
  for (const std::int64_t n : tokens) rows += static_cast<double>(n);
  const ElementwiseTraffic traffic = elementwise_traffic(b.elementwise_mode());
  product(moe.gated ? 2 * width : width, h);
  b.elementwise(Module::moe_act, MemoryKernel::activation,
                rows * static_cast<double>(width) * (moe.gated ? traffic.gated : traffic.plain),
                rows * static_cast<double>(width) * (moe.gated ? traffic.gated_backward : traffic.plain_backward),
                traffic.act_kernels);
  product(h, width);
  if (b.price().narrow(linear) && linear != DataType::fp8) {
    b.cast(rows, moe.gated ? 2 * width : width, h, linear);
    b.cast(rows, h, width, linear);
  }
}

}  // namespace

void expert_block(LayerBuilder& b, const Moe& moe, const Groups& groups, DataType linear) {
  const Layout& layout = b.layout();
  const std::int64_t h = b.question().model->hidden;
  // Each rank of a tensor group routes its own slice of the sequence (Megatron requires sequence parallelism here).
  const double local = layout.tp > 1 ? b.tokens() / layout.tp : b.tokens();
  const bool nccl = layout.transport.value_or(Transport::nccl) == Transport::nccl;
  b.begin(LayerPart::router);
  b.linear(Module::moe_other, Part::gemm, local, moe.experts, h, b.price().wide_type(), 0, 0, false);
  b.elementwise(Module::moe_other, MemoryKernel::norm, local * static_cast<double>(moe.experts) * 20,
                local * static_cast<double>(moe.experts) * 12, 1);
  b.launch_forward(Module::moe_other, kRouterForward - 1);
  b.launch_backward(kRouterBackward - 1);
  b.mark_attention();
  double hidden = 0;
  const EpOverlap overlap = layout.ep_overlap.value_or(EpOverlap::none);
  double shared_seconds = 0;
  if (moe.shared_width > 0) {
    if (overlap != EpOverlap::none) b.begin(LayerPart::experts);
    const std::int64_t width = std::max<std::int64_t>(1, moe.shared_width / layout.tp);
    shared_seconds =
        b.price()
            .gemm(std::llround(std::max(1.0, b.tokens())), (moe.gated ? 2 : 1) * width, h, linear, GemmPass::forward)
            .seconds;
    mlp_products(b, b.tokens(), width, moe.gated, linear, Module::shared_experts, Part::gemm,
                 tp_traffic(b, groups, linear));
  }
  b.begin(LayerPart::preprocess);
  b.launch_forward(Module::moe_other, nccl ? kNcclPreprocess : kFusedPreprocess);
  b.begin(LayerPart::experts);
  const ExpertTraffic exchange = b.price().expert_traffic(moe, local, h, groups);
  const double permuted = 2 * exchange.permuted_rows * static_cast<double>(h);  // bytes of 16-bit rows
  b.elementwise(Module::moe_other, MemoryKernel::permute, permuted, permuted, kPermutes);
  if (overlap == EpOverlap::shared) hidden = std::min(shared_seconds, exchange.dispatch.seconds);
  expert_products(b, moe, exchange.tokens, linear);
  if (layout.etp > 1) {
    const double bytes = b.price().wide_bytes() * local * static_cast<double>(moe.top_k * h) * layout.etp;
    b.communicate_forward(Module::moe_other, Part::tp, b.price().collective(Collective::all_gather, bytes, groups.etp));
    b.communicate_forward(Module::moe_other, Part::tp,
                          b.price().collective(Collective::reduce_scatter, bytes, groups.etp));
    b.communicate_backward(Part::tp, b.price().collective(Collective::all_gather, bytes, groups.etp));
    b.communicate_backward(Part::tp, b.price().collective(Collective::reduce_scatter, bytes, groups.etp));
  }
  if (layout.ep > 1 && b.question().options.on(Effect::moe_communication)) {
    const double out = exchange.dispatch.seconds, back = exchange.combine.seconds;
    b.communicate_forward(Module::moe_other, Part::ep, scaled(exchange.dispatch, out > 0 ? (out - hidden) / out : 0),
                          2);
    b.communicate_forward(Module::moe_other, Part::ep, exchange.combine);
    // The backward pass sends gradients the same ways: combine's gradient out, dispatch's back, both in 16 bits.
    b.communicate_backward(Part::ep, exchange.combine);
    b.communicate_backward(Part::ep, exchange.combine);
    b.cost().forward_a2a = out + back - hidden;
    b.cost().backward_a2a = 2 * back;
    LayerLanes& lanes = b.cost().lanes;
    lanes.dispatch = out - hidden;
    lanes.combine = lanes.combine_back = lanes.dispatch_back = back;
    lanes.contention = exchange.contention;
  }
}

}  // namespace shardplan
