#include "layouts/step/unpriced.hpp"

#include "layouts/step/price.hpp"

namespace shardplan {

std::vector<std::string> unpriced_words(const StepQuestion& q) {
  const Layout& l = q.layout;
  std::vector<std::string> out;
  if (l.offload_optimizer)
    out.emplace_back(
        "offload=optimizer: only memory follows; gradients and weights over PCIe and the step on the host are not in "
        "the time, which is a lower bound");
  const bool pairs = l.ep_overlap == EpOverlap::batch_1f1b;
  if (l.delay_wgrad.value_or(false) && !pairs)
    out.emplace_back("delay-wgrad=1: no effect on the time without ep-overlap=1f1b");
  if (pairs && l.pp > 1 && l.schedule_name() != "1f1b" && l.schedule_name() != "interleaved-1f1b")
    out.push_back("ep-overlap=1f1b: schedule=" + l.schedule_name() +
                  " has no whole backward pass with a forward pass behind it in its steady state: little or nothing is "
                  "hidden, an upper bound");
  if (l.ep_overlap == EpOverlap::waves)
    out.push_back("ep-overlap=waves" + std::to_string(l.waves) +
                  ": priced by the verb experts, not in the step, whose all-to-alls are exposed: an upper bound");
  if (l.act_store_fp8.value_or(false) && !StepPricer::narrow(q.workload.precision))
    out.emplace_back(
        "act-store=fp8: only memory follows; with 16-bit products the casts of what is kept are not in the time, which "
        "is a lower bound (FP8 products cast their inputs anyway)");
  if (l.grad_accumulate_fp32 && *l.grad_accumulate_fp32 != q.stack.fp32_accumulate)
    out.push_back(std::string("grad-accumulate=") + (*l.grad_accumulate_fp32 ? "fp32" : "bf16") +
                  ": the time is that of " + (q.stack.fp32_accumulate ? "FP32" : "16-bit") +
                  " accumulation, as the stack does it");
  return out;
}

}  // namespace shardplan
