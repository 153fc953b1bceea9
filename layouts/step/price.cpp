#include "layouts/step/price.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "layouts/expert_layer.hpp"
#include "models/documents.hpp"

namespace shardplan {

namespace {

void limit_nodes(const RoutingQuestion& routing, const Moe& moe, ExpertLoadQuestion& ask) {
  ask.nodes_per_token = routing.nodes_per_token;
  if (!routing.model_groups) return;
  ask.routing_groups = static_cast<int>(moe.groups);
  ask.groups_per_token = static_cast<int>(moe.groups_per_token);
}

}  // namespace

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
  graphs_ = q.layout.cuda_graphs.value_or(q.stack.cuda_graphs ? "full" : "none");
  if (q.options.rates == Rates::calibrated && q.options.on(Effect::launch_floor) && graphs_ != "full")
    launch_ = q.stack.constants.kernel_launch_s * q.pricer->constants().host_factor;
}

bool StepPricer::captures(LayerPart part) const {
  if (graphs_ == "per-layer") return true;
  const auto named = [&](const std::string& word) {
    return ("," + graphs_.substr(graphs_.find(':') + 1) + ",").find("," + word + ",") != std::string::npos;
  };
  if (graphs_.rfind("modules:", 0) != 0) return false;
  switch (part) {
    case LayerPart::attention:
      return named("attn");
    case LayerPart::mlp:
      return named("mlp");
    case LayerPart::router:
      return named("moe_router") || named("moe");
    case LayerPart::preprocess:
      return named("moe_preprocess") || named("moe");
    case LayerPart::experts:
      return named("moe");
  }
  return false;
}

bool StepPricer::narrow(DataType type) { return bytes_of(type) <= 1 && type != DataType::int8; }

Basis StepPricer::derived() const {
  return q_.options.rates == Rates::datasheet ? Basis::datasheet : Basis::interpolated;
}

double StepPricer::release() const {
  const bool told = q_.options.rates == Rates::calibrated && q_.options.on(Effect::release);
  return told ? q_.stack.constants.release_factor : 1;
}

double StepPricer::factor(DataType type) const {
  if (q_.options.rates == Rates::datasheet) return 1;
  double f = release();
  if (q_.options.on(Effect::release)) f *= q_.stack.constants.compute_factor;
  if (q_.options.on(Effect::sustained_rate)) {
    const MachineConstants& c = q_.pricer->constants();
    f *= c.bf16;
    if (narrow(type)) f *= type == DataType::nvfp4 ? c.fp4 : type == DataType::fp8_row ? c.fp8_row : c.fp8;
  }
  return f;
}

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
    return scaled(q_.pricer->kernels().gemm(g), share * factor(type));
  }
  return scaled(q_.pricer->kernels().gemm(g), factor(type));
}

Price StepPricer::grouped(const GroupedGemm& g) const {
  return scaled(q_.pricer->kernels().grouped_gemm(g), factor(g.type));
}

Price StepPricer::attention(AttentionShape a) const {
  if (!q_.options.on(Effect::alignment) && a.library == AttentionLibrary::unfused) {
    // Heads of whole vectors of 16 bytes: what an aligned head of about that size costs.
    const auto up = [](std::int64_t x) { return (x + 7) / 8 * 8; };
    a.head_dim = up(a.head_dim);
    a.v_head_dim = up(a.v_head_dim);
  }
  // Fused kernels skip the blocks between documents: each row has a share of its keys, as in a shorter sequence. The
  // unfused product computes them all.
  double copies = 1;
  if (q_.options.mean_document > 0 && a.library != AttentionLibrary::unfused) {
    const double share = document_mask(static_cast<double>(q_.workload.seq_len), q_.options.mean_document).share;
    // Kernels skip whole blocks: what is left of a row is at least one.
    constexpr std::int64_t kBlock = 128;
    const auto shorter = [&](std::int64_t n) {
      return std::max(std::min(n, kBlock), static_cast<std::int64_t>(std::llround(share * static_cast<double>(n))));
    };
    const std::int64_t rows = a.q_len;
    a.kv_len = shorter(a.kv_len);
    if (a.causal) a.q_len = shorter(a.q_len);
    // As many shorter sequences in one launch.
    copies = static_cast<double>(rows) / static_cast<double>(a.q_len);
    const auto together = std::max<std::int64_t>(1, std::llround(copies));
    a.batch *= together;
    copies /= static_cast<double>(together);
  }
  const Price price = scaled(q_.pricer->kernels().attention(a), release() * copies);
  if (q_.options.rates == Rates::datasheet || !q_.options.on(Effect::sustained_rate)) return price;
  // Fused kernels live on the tensor cores: what holds 16-bit products below their burst rate (power, heat) holds them
  // too. The unfused one is memory traffic.
  const MachineConstants& c = q_.pricer->constants();
  const double sustained = a.library == AttentionLibrary::unfused ? 1 : c.bf16;
  return scaled(price, sustained * c.attention[static_cast<std::size_t>(a.library)]);
}

Price StepPricer::memory(MemoryKernel kernel, double bytes) const {
  if (bytes <= 0) return {};
  return scaled(q_.pricer->kernels().memory_bound(kernel, bytes), release());
}

Price StepPricer::collective(Collective op, double bytes, const GroupShape& shape) const {
  if (shape.ranks <= 1 || bytes <= 0) return {};
  if (q_.options.rates == Rates::datasheet) return q_.pricer->network().collective(op, bytes, shape).price;
  const MachineConstants& c = q_.pricer->constants();
  GroupShape reached = shape;
  const int members = shape.ranks_per_domain;
  if (shape.crosses() && members > 1 && members < q_.pricer->cluster().node.nvlink_domain)
    reached.nics_per_domain *= (1 + c.strided_nics * (members - 1)) / members;
  const Price price = q_.pricer->network().collective(op, bytes, reached).price;
  return scaled(price, shape.crosses() ? c.network_factor : c.domain_factor);
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

ExpertTraffic StepPricer::expert_traffic(const Moe& moe, double tokens, std::int64_t hidden,
                                         const Groups& groups) const {
  const RoutingQuestion& routing = q_.options.routing;
  ExpertLoadQuestion ask;
  ask.moe = &moe;
  ask.hidden = hidden;
  ask.tokens_per_rank = tokens;
  ask.ep = groups.ep.ranks;
  ask.ranks_per_node = std::max(1, groups.ep.ranks_per_domain);
  ask.popularity = routing.popularity.get();
  limit_nodes(routing, moe, ask);
  ask.redundant = routing.redundant;
  ask.capacity_factor = routing.capacity_factor;
  ask.transport = expert_transport(q_.layout.transport.value_or(Transport::nccl));
  // DeepSeek's block-scaled recipe dispatches in FP8 with a scale a 128 values; the others in 16 bits. Combine is 16
  // bits.
  ask.dispatch_bytes_per_value = q_.workload.precision == DataType::fp8_block ? 1 + 4.0 / 128 : wide_bytes();
  ask.combine_bytes_per_value = wide_bytes();
  const ExpertLoad load = expert_load(ask);
  ExpertTraffic out;
  out.tokens = load.hottest;
  const double busiest = load_factor(routing, moe, groups.ep.ranks);
  for (std::int64_t& n : out.tokens)
    n = std::max<std::int64_t>(1, std::llround(static_cast<double>(n) * busiest * q_.layout.etp));
  out.permuted_rows = busiest * load.pairs_per_rank * permuted_rows_per_pair(ask, load);
  if (groups.ep.ranks <= 1) return out;
  const MoeExchange exchange =
      price_moe_exchange(q_.pricer->cluster(), q_.options.rates, q_.pricer->exchange(), ask, load);
  // The factor is that of NCCL's collectives in a step over the network model's; the exchange kernels of the other
  // transports have measured tables of their own.
  double slower = busiest;
  if (q_.options.rates == Rates::calibrated && groups.ep.crosses() && ask.transport == ExpertTransport::nccl)
    slower *= q_.pricer->constants().network_factor;
  out.dispatch = scaled(exchange.dispatch.total, slower);
  out.combine = scaled(exchange.combine.total, slower);
  out.contention = exchange.sms_held / std::max(1.0, q_.pricer->cluster().gpu.sms.value);
  return out;
}

double real_routing_load(const Moe& moe, int ep, double exponent) {
  constexpr std::uint64_t kDeals = 32;
  if (ep <= 1) return 1;
  using Key = std::tuple<std::int64_t, std::int64_t, int, double>;
  static std::mutex lock;
  static std::map<Key, double> known;
  const std::lock_guard<std::mutex> guard(lock);
  const auto [at, fresh] = known.try_emplace(Key{moe.experts, moe.top_k, ep, exponent}, 0.0);
  if (!fresh) return at->second;
  const ExpertPlacement place = place_contiguous(moe.experts, ep);
  double sum = 0;
  for (std::uint64_t deal = 1; deal <= kDeals; ++deal) {
    const std::vector<double> weights =
        popularity(Skew{SkewKind::zipf, exponent, {}}, moe.experts, moe.top_k, 1 << 20, deal);
    sum += 1 + max_violation(gpu_loads(place, expected_loads(weights, moe.top_k)));
  }
  return at->second = sum / static_cast<double>(kDeals);
}

double load_factor(const RoutingQuestion& routing, const Moe& moe, int ep) {
  return routing.real ? real_routing_load(moe, ep) : routing.max_over_mean;
}

double routed_load(const RoutingQuestion& routing, const Model& model, const Layout& layout, const Cluster& cluster) {
  const auto layer =
      std::find_if(model.layers.rbegin(), model.layers.rend(), [](const Layer& l) { return l.moe.has_value(); });
  if (layer == model.layers.rend()) return 1;
  if (routing.popularity == nullptr && routing.redundant == 0 && routing.capacity_factor == 0)
    return load_factor(routing, *layer->moe, layout.ep);
  ExpertLoadQuestion ask;
  ask.moe = &*layer->moe;
  ask.hidden = model.hidden;
  ask.tokens_per_rank = 4096;  // the ratio does not depend on it beyond rounding
  ask.ep = layout.ep;
  ask.ranks_per_node = std::max(1, std::min(cluster.node.nvlink_domain, layout.ep));
  ask.popularity = routing.popularity.get();
  limit_nodes(routing, *layer->moe, ask);
  ask.redundant = routing.redundant;
  ask.capacity_factor = routing.capacity_factor;
  const ExpertLoad load = expert_load(ask);
  // max_over_mean_rank compares what a capacity lets through: what it drops no rank keeps.
  return load_factor(routing, *layer->moe, layout.ep) * load.max_over_mean_rank * (1 - load.dropped);
}

}  // namespace shardplan
