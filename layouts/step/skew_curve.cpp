#include "layouts/step/skew_curve.hpp"

#include <algorithm>
#include <memory>

#include "base/errors.hpp"
#include "layouts/step/price.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {
namespace {

/// The last MoE layer stands for all.
const Moe& moe_of(const Model& model) {
  for (auto layer = model.layers.rbegin(); layer != model.layers.rend(); ++layer)
    if (layer->moe) return *layer->moe;
  throw InputError("--model", model.name + " has no experts: there is no skew");
}

}  // namespace

std::vector<SkewPoint> skew_curve(const StepQuestion& asked, const MemoryOptions& memory, std::uint64_t seed) {
  const Moe& moe = moe_of(*asked.model);
  std::vector<SkewPoint> out;
  for (const double exponent : kSkewExponents) {
    StepQuestion q = asked;
    q.options.all_ranks = q.options.keep_trace = false;
    RoutingQuestion& routing = q.options.routing;
    routing.max_over_mean = 1;
    routing.real = false;
    routing.popularity = nullptr;
    SkewPoint p;
    p.exponent = exponent;
    if (exponent > 0) {
      routing.popularity = std::make_shared<const ExpertPopularity>(
          make_popularity(Skew{SkewKind::zipf, exponent, {}}, moe.experts, moe.top_k, q.workload.seq_len, seed));
      p.busiest_expert = 1 + max_violation(routing.popularity->loads);
    }
    p.busiest_rank = routed_load(routing, *q.model, q.layout, q.pricer->cluster());
    const StepReport s = simulate_step(q);
    p.step_time_s = s.step_time_s;
    p.experts_s = s.busiest.part(Part::experts);
    p.exchange_s = s.busiest.part(Part::ep);
    p.rest_s = s.step_time_s - p.experts_s - p.exchange_s;
    MemoryOptions options = memory;
    options.load = p.busiest_rank;
    options.redundant = routing.redundant;
    const MemoryReport m = memory_of(*q.model, q.pricer->cluster(), q.layout, q.workload, options);
    p.memory_bytes = m.peak_bytes();
    p.fits = m.fits;
    out.push_back(p);
  }
  return out;
}

}  // namespace shardplan
