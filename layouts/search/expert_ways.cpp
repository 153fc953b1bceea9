#include "layouts/search/expert_ways.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {
namespace {

bool no_longer(const LayerLanes& a, const LayerLanes& b) {
  using L = LayerLanes;
  constexpr std::array members{&L::attention,      &L::dispatch,          &L::experts,         &L::combine,
                               &L::combine_back,   &L::experts_back,      &L::experts_weights, &L::dispatch_back,
                               &L::attention_back, &L::attention_weights, &L::contention};
  return std::all_of(members.begin(), members.end(), [&](const auto m) { return a.*m <= b.*m; });
}

/// Each layer's blocks, and the host's and the device's time of both passes.
bool no_longer(const StageCost& a, const StageCost& b) {
  const auto pass = [](const Cost& x, const Cost& y) { return x.host <= y.host && x.device() <= y.device(); };
  if (!pass(a.forward, b.forward) || !pass(a.input_grad, b.input_grad) || !pass(a.weight_grad, b.weight_grad))
    return false;
  for (std::size_t i = 0; i < a.lanes.size(); ++i)
    if (!no_longer(a.lanes[i], b.lanes[i])) return false;
  return true;
}

}  // namespace

std::vector<ExpertPath> ExpertWays::undominated(const Layout& layout, const std::vector<ExpertPath>& paths) {
  if (paths.size() < 2) return paths;
  const Groups groups = groups_of(layout, ask_.pricer->cluster());
  std::vector<Known>& known = known_[&ask_.shelf->of(layout, groups)];
  for (const Known& k : known)
    if (k.asked == paths) return k.kept;
  const StageSlice whole{0, static_cast<int>(ask_.model->layer_count()), false, false,
                         static_cast<int>(ask_.model->mtp.size())};
  std::vector<StageCost> costs;
  for (const ExpertPath& path : paths) {
    ask_.layout = with_path(layout, path);
    ask_.layout.dp *= ask_.layout.pp;
    ask_.layout.pp = ask_.layout.vpp = 1;
    ask_.layout.schedule.clear();
    costs.push_back(price_stages(ask_, groups, {whole}).front());
  }
  Known out{paths, {}};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    bool dominated = false;
    for (std::size_t j = 0; j < paths.size() && !dominated; ++j)
      dominated = j != i && no_longer(costs[j], costs[i]) && (j < i || !no_longer(costs[i], costs[j]));
    if (!dominated) out.kept.push_back(paths[i]);
  }
  known.push_back(std::move(out));
  return known.back().kept;
}

WaysAnswer other_ways(const PlanQuestion& q, const RankedPlan& best) {
  WaysAnswer out;
  const Cluster& cluster = q.pricer->cluster();
  const ExpertPath own{best.layout.transport, best.layout.ep_overlap};
  if (best.layout.ep == 1 || !q.model->has_moe()) return out;
  const auto transports = transports_here(q.space, best.layout, q.stack, cluster, &out.refused);
  for (const ExpertPath& path : expert_paths(q.space, best.layout, *q.model, q.workload, q.stack, transports)) {
    if (path == own || (path.transport != own.transport && path.overlap != own.overlap)) continue;
    OtherWay other{with_path(best.layout, path), {}, ""};
    MemoryOptions asked = q.memory;
    asked.load = routed_load(q.options.routing, *q.model, other.layout, cluster);
    asked.redundant = q.options.routing.redundant;
    const MemoryReport memory = memory_of(*q.model, cluster, other.layout, q.workload, asked);
    const double over = memory.peak_bytes() - (1 - q.headroom) * memory.capacity_bytes;
    if (over > 0) {
      other.why = "does not fit: " + text_of_bytes(over) + " over";
    } else {
      other.step = simulate_step({q.model, q.pricer, other.layout, q.workload, q.stack, q.options});
    }
    out.others.push_back(std::move(other));
  }
  return out;
}

}  // namespace shardplan
