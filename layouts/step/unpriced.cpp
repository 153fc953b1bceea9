#include "layouts/step/unpriced.hpp"

namespace shardplan {

std::vector<std::string> unpriced_words(const StepQuestion& q) {
  const Layout& l = q.layout;
  std::vector<std::string> out;
  if (l.offload_optimizer)
    out.emplace_back(
        "offload=optimizer: transfers one after the other at the link's rate, the optimizer at the peak of the host's "
        "memory" +
        std::string(q.pricer->cluster().node.host_memory_bytes_per_second.assumed ? " (an assumed rate)" : "") +
        "; the CPU's arithmetic is not in the time, which is a lower bound");
  const bool pairs = l.ep_overlap == EpOverlap::batch_1f1b;
  if (l.delay_wgrad.value_or(false) && !pairs)
    out.emplace_back("delay-wgrad=1: no effect on the time without ep-overlap=1f1b");
  if (pairs && l.pp > 1 && l.schedule_name() != "1f1b" && l.schedule_name() != "interleaved-1f1b")
    out.push_back("ep-overlap=1f1b: schedule=" + l.schedule_name() +
                  " has no whole backward pass with a forward pass behind it in its steady state: little or nothing is "
                  "hidden, an upper bound");
  return out;
}

}  // namespace shardplan
