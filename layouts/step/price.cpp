#include "layouts/step/price.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

Pricer::Pricer(const Cluster& cluster, Rates rates, Fidelity fidelity, ConstantSet constants)
    : cluster_(cluster),
      rates_(rates),
      fidelity_(fidelity),
      kernels_(cluster.gpu, rates),
      network_(cluster, rates, fidelity),
      exchange_(cluster, rates, fidelity),
      constants_(machine_constants(cluster, kernels_, constants)) {}

StepPricer::StepPricer(const StepQuestion& q) : q_(q) {
  const DataType linear = q.workload.precision;
  wide_ = linear == DataType::fp16 || linear == DataType::fp32 ? linear : DataType::bf16;
  const std::string graphs = q.layout.cuda_graphs.value_or(q.stack.cuda_graphs ? "full" : "none");
  if (q.options.rates == Rates::calibrated && q.options.on(Effect::launch_floor) && graphs != "full") {
    // Graphs of some modules leave the others to the host; a layer's graph leaves one launch a layer.
    const double share = graphs == "none" ? 1.0 : (graphs == "per-layer" ? 0.1 : 0.5);
    launch_ = share * q.stack.constants.kernel_launch_s;
    collective_launch_ = launch_;  // a collective is one launch more
  }
}

bool StepPricer::narrow(DataType type) { return bytes_of(type) <= 1 && type != DataType::int8; }

double StepPricer::factor(DataType type) const {
  if (q_.options.rates == Rates::datasheet) return 1;
  double f = q_.options.on(Effect::release) ? q_.stack.constants.compute_factor : 1;
  if (q_.options.on(Effect::sustained_rate)) {
    const MachineConstants& c = q_.pricer->constants();
    f *= type == DataType::nvfp4 ? c.fp4 : type == DataType::fp8_row ? c.fp8_row : narrow(type) ? c.fp8 : c.bf16;
  }
  return f;
}

namespace {

Price times(Price p, double factor) {
  p.seconds *= factor;
  p.low *= factor;
  p.high *= factor;
  return p;
}

}  // namespace

Price StepPricer::gemm(std::int64_t m, std::int64_t n, std::int64_t k, DataType type, GemmPass pass,
                       bool accumulate_fp32) const {
  Gemm g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.type = type;
  g.pass = pass;
  g.accumulate_fp32 = accumulate_fp32;
  if (!q_.options.on(Effect::alignment)) {
    // Dimensions rounded up to whole tiles of 64: what an aligned shape of the same size would cost, by its FLOPs.
    const auto up = [](std::int64_t x) { return (x + 63) / 64 * 64; };
    const double share =
        static_cast<double>(n) * static_cast<double>(k) / (static_cast<double>(up(n)) * static_cast<double>(up(k)));
    g.n = up(n);
    g.k = up(k);
    return times(q_.pricer->kernels().gemm(g), share * factor(type));
  }
  return times(q_.pricer->kernels().gemm(g), factor(type));
}

Price StepPricer::grouped(const GroupedGemm& g) const {
  return times(q_.pricer->kernels().grouped_gemm(g), factor(g.type));
}

Price StepPricer::attention(const AttentionShape& a) const {
  const Price price = q_.pricer->kernels().attention(a);
  if (q_.options.rates == Rates::datasheet || !q_.options.on(Effect::sustained_rate)) return price;
  return times(price, q_.pricer->constants().attention[static_cast<std::size_t>(a.library)]);
}

Price StepPricer::memory(MemoryKernel kernel, double bytes) const {
  if (bytes <= 0) return {};
  return q_.pricer->kernels().memory_bound(kernel, bytes);
}

Price StepPricer::collective(Collective op, double bytes, const GroupShape& shape) const {
  if (shape.ranks <= 1 || bytes <= 0) return {};
  const Price price = q_.pricer->network().collective(op, bytes, shape).price;
  return q_.options.rates == Rates::calibrated && shape.crosses() ? times(price, q_.pricer->constants().network_factor)
                                                                  : price;
}

double StepPricer::contention(Part part) const {
  if (q_.options.rates == Rates::datasheet) return 0;
  if (part == Part::fsdp && !q_.options.on(Effect::fsdp_contention)) return 0;
  // A collective's kernel holds its channels' SMs; the GEMM beside it has the rest.
  GroupShape shape;
  shape.ranks = 8;
  shape.ranks_per_domain = 8;
  const double sms = std::max(1.0, q_.pricer->cluster().gpu.sms.value);
  return std::min(0.5, q_.pricer->network().sms_held(Collective::all_gather, shape) / sms);
}

DispatchCombine StepPricer::expert_exchange(const Moe& moe, double tokens, std::int64_t hidden,
                                            const Groups& groups) const {
  DispatchCombine out;
  if (groups.ep.ranks <= 1) return out;
  ExpertExchange e;
  e.ranks = groups.ep.ranks;
  e.ranks_per_domain = groups.ep.ranks_per_domain;
  e.nics_per_domain = groups.ep.nics_per_domain;
  e.tokens = tokens;
  e.hidden = static_cast<int>(hidden);
  e.top_k = static_cast<int>(moe.top_k);
  e.experts = static_cast<int>(moe.experts);
  e.nodes_per_token = static_cast<int>(q_.options.routing.nodes_per_token);
  // DeepSeek's block-scaled recipe dispatches in FP8 with a scale a 128 values; the others in 16 bits. Combine is 16
  // bits.
  e.dispatch_bytes = q_.workload.precision == DataType::fp8_block ? 1 + 4.0 / 128 : 2;
  e.combine_bytes = 2;
  e.imbalance = q_.options.routing.max_over_mean;
  const Transport transport = q_.layout.transport.value_or(Transport::nccl);
  const ExpertTransport kind = transport == Transport::deepep     ? ExpertTransport::deepep
                               : transport == Transport::hybridep ? ExpertTransport::hybridep
                                                                  : ExpertTransport::nccl;
  const double slower =
      q_.options.rates == Rates::calibrated && groups.ep.crosses() ? q_.pricer->constants().network_factor : 1;
  out.dispatch = times(q_.pricer->exchange().dispatch(kind, e).price, slower);
  out.combine = times(q_.pricer->exchange().combine(kind, e).price, slower);
  return out;
}

}  // namespace shardplan
