#include "layouts/step/expert_block.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "layouts/expert_layer.hpp"
#include "layouts/step/feed_forward_block.hpp"
#include "sim/schedules.hpp"

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
  // Transformer Engine's grouped linear layer casts the inputs of all experts in one call and multiplies in a loop in
  // C++, but handles each expert's weight, its quantiser and, backward, its gradient and its hook in Python: taken as
  // an operator an expert and pass (pytorch/module/grouped_linear.py). PyTorch's is one kernel.
  const bool loops = b.stack().framework != "pytorch";
  const int in_python = loops ? static_cast<int>(tokens.size()) : 0, casts = b.price().narrow(linear) ? 1 : 0;
  const auto product = [&](std::int64_t n, std::int64_t k) {
    GroupedGemm g{tokens, n, k, linear, GemmPass::forward, false};
    b.add_forward(Module::experts, Part::experts, b.price().grouped(g));
    b.launch_forward(Module::experts, casts + in_python);
    g.pass = GemmPass::input_grad;
    b.cost().input_grad.add(Part::experts, b.price().grouped(g));
    g.pass = GemmPass::weight_grad;
    g.accumulate_fp32 = b.accumulates_fp32();
    b.cost().weight_grad.add(Part::experts, b.price().grouped(g));
    b.launch_backward(2 + casts + in_python);
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
  b.keep_narrow(rows * static_cast<double>((moe.gated ? 2 : 1) * width));  // what the activation function needs
  if (!b.price().narrow(linear)) b.keep_narrow(rows * static_cast<double>(h + width));
  if (b.price().narrow(linear) && linear != DataType::fp8) {
    b.cast(rows, moe.gated ? 2 * width : width, h, linear);
    b.cast(rows, h, width, linear);
  }
}

/// The routed experts of one layer on one rank, in groups that run one after the other: what each group has of the
/// rows, and its device seconds, permutations included.
struct ExpertGroups {
  std::vector<double> share, forward, backward;
};

/// Without waves all experts are one group. `split` = weight gradients run in passes of their own, so that a group's
/// backward pass is its input gradient.
ExpertGroups routed_experts(LayerBuilder& b, const Moe& moe, const ExpertTraffic& exchange, DataType linear, int waves,
                            bool split) {
  const auto sum = [](const std::vector<std::int64_t>& tokens) {
    return static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}));
  };
  const double rows = sum(exchange.tokens);
  const double permuted =
      2 * exchange.permuted_rows * static_cast<double>(b.question().model->hidden);  // bytes of 16-bit rows
  ExpertGroups out;
  for (const std::vector<std::int64_t>& tokens : wave_groups(exchange.tokens, waves)) {
    const double share = waves > 1 ? sum(tokens) / rows : 1;
    const double forward = b.forward_device(), input = b.input_grad_device(), weight = b.weight_grad_device();
    b.elementwise(Module::moe_other, MemoryKernel::permute, share * permuted, share * permuted, kPermutes);
    expert_products(b, moe, tokens, linear);
    out.share.push_back(share);
    out.forward.push_back(b.forward_device() - forward);
    out.backward.push_back(b.input_grad_device() - input + (split ? 0 : b.weight_grad_device() - weight));
  }
  return out;
}

/// Seconds of `out` and `back` that stay visible where groups run in waves: one lane moves, one computes at 1 -
/// contention of its rate, and `free` seconds of compute wait for nothing. Each group has its rows' share of the two.
double visible_in_waves(const ExpertGroups& groups, const std::vector<double>& compute, double out, double back,
                        double free, double contention) {
  const double slow = 1 / (1 - contention);
  std::vector<double> there, work, home;
  double busy = free;
  for (std::size_t i = 0; i < compute.size(); ++i) {
    there.push_back(groups.share[i] * out);
    work.push_back(compute[i] * slow);
    home.push_back(groups.share[i] * back);
    busy += compute[i];
  }
  return std::max(0.0, waves_makespan(there, work, home, free * slow) - busy);
}

/// All-to-alls of both passes, less what the layout hides. The backward pass sends gradients the same ways: combine's
/// gradient out, dispatch's back, both in 16 bits. Seconds of the shared experts: of their first products, which
/// ep-overlap=shared puts under the dispatch, and of their forward pass, which waves start with.
void exchange_tokens(LayerBuilder& b, const ExpertTraffic& exchange, const ExpertGroups& groups, double shared_first,
                     double shared_forward) {
  const EpOverlap overlap = b.layout().ep_overlap.value_or(EpOverlap::none);
  const double out = exchange.dispatch.seconds, back = exchange.combine.seconds;
  const int waves = static_cast<int>(groups.share.size());
  double out_seen = out, back_seen = back, backward_seen = 2 * back;
  if (overlap == EpOverlap::shared) out_seen -= std::min(shared_first, out);
  if (waves > 1) {
    const double seen = visible_in_waves(groups, groups.forward, out, back, shared_forward, exchange.contention);
    out_seen = seen * out / (out + back), back_seen = seen - out_seen;
    backward_seen = visible_in_waves(groups, groups.backward, back, back, 0, exchange.contention);
  }
  b.communicate_forward(Module::moe_other, Part::ep, scaled(exchange.dispatch, out > 0 ? out_seen / out : 0),
                        2 * waves);
  b.communicate_forward(Module::moe_other, Part::ep, scaled(exchange.combine, back > 0 ? back_seen / back : 0), waves);
  for (int i = 0; i < 2; ++i)
    b.communicate_backward(Part::ep, scaled(exchange.combine, back > 0 ? backward_seen / (2 * back) : 0), waves);
  b.cost().forward_a2a = out_seen + back_seen;
  b.cost().backward_a2a = backward_seen;
  LayerLanes& lanes = b.cost().lanes;
  lanes.dispatch = out_seen;
  lanes.combine = back_seen;
  lanes.combine_back = lanes.dispatch_back = backward_seen / 2;
  lanes.contention = exchange.contention;
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
  const EpOverlap overlap = layout.ep_overlap.value_or(EpOverlap::none);
  double shared_first = 0, shared_forward = 0;  // seconds of its first products, of its forward pass
  if (moe.shared_width > 0) {
    if (overlap != EpOverlap::none) b.begin(LayerPart::experts);
    const std::int64_t width = std::max<std::int64_t>(1, moe.shared_width / layout.tp);
    const double before = b.forward_device();
    shared_first =
        b.price()
            .gemm(std::llround(std::max(1.0, b.tokens())), (moe.gated ? 2 : 1) * width, h, linear, GemmPass::forward)
            .seconds;
    mlp_products(b, b.tokens(), width, moe.gated, linear, Module::shared_experts, Part::gemm,
                 tp_traffic(b, groups, linear));
    shared_forward = b.forward_device() - before;
  }
  b.begin(LayerPart::preprocess);
  b.launch_forward(Module::moe_other, nccl ? kNcclPreprocess : kFusedPreprocess);
  b.begin(LayerPart::experts);
  const ExpertTraffic exchange = b.price().expert_traffic(moe, local, h, groups);
  const int waves = overlap == EpOverlap::waves && layout.ep > 1 ? layout.waves : 1;
  const ExpertGroups run =
      routed_experts(b, moe, exchange, linear, waves, find_schedule(layout.schedule_name()).splits_backward);
  if (layout.etp > 1) {
    const double bytes = b.price().wide_bytes() * local * static_cast<double>(moe.top_k * h) * layout.etp;
    b.communicate_forward(Module::moe_other, Part::tp, b.price().collective(Collective::all_gather, bytes, groups.etp));
    b.communicate_forward(Module::moe_other, Part::tp,
                          b.price().collective(Collective::reduce_scatter, bytes, groups.etp));
    b.communicate_backward(Part::tp, b.price().collective(Collective::all_gather, bytes, groups.etp));
    b.communicate_backward(Part::tp, b.price().collective(Collective::reduce_scatter, bytes, groups.etp));
  }
  if (layout.ep > 1 && b.question().options.on(Effect::moe_communication))
    exchange_tokens(b, exchange, run, shared_first, shared_forward);
}

}  // namespace shardplan
