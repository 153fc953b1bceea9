#include "layouts/expert_layer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "hardware/kernel_price.hpp"

namespace shardplan {

namespace {

Price plus(const Price& a, const Price& b) {
  if (a.seconds == 0) return b;
  if (b.seconds == 0) return a;
  return {a.seconds + b.seconds, a.low + b.low, a.high + b.high, weaker(a.basis, b.basis)};
}

/// Gate and up in one product, the activation between, down.
Price price_group(const MoeLayerQuestion& q, std::span<const std::int64_t> tokens) {
  const Moe& moe = *q.load.moe;
  const std::int64_t h = q.load.hidden, f = moe.width, in = moe.gated ? 2 * f : f;
  const std::int64_t rows = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  if (rows == 0) return {};
  Price out = q.kernels->grouped_gemm({tokens, in, h, q.precision, GemmPass::forward, false, {}});
  // Datasheet arithmetic counts products alone.
  if (q.rates == Rates::calibrated) {
    out = plus(out, q.kernels->memory_bound(MemoryKernel::activation, 2.0 * static_cast<double>(rows * (in + f))));
  }
  return plus(out, q.kernels->grouped_gemm({tokens, h, f, q.precision, GemmPass::forward, false, {}}));
}

Price price_shared(const MoeLayerQuestion& q) {
  const Moe& moe = *q.load.moe;
  const std::int64_t h = q.load.hidden, f = moe.shared_width, in = moe.gated ? 2 * f : f;
  const std::int64_t rows = std::llround(q.load.tokens_per_rank);
  if (!q.shared || f == 0 || rows == 0) return {};
  Price out = q.kernels->gemm({rows, in, h, 1, q.precision, GemmPass::forward, false});
  if (q.rates == Rates::calibrated) {
    out = plus(out, q.kernels->memory_bound(MemoryKernel::activation, 2.0 * static_cast<double>(rows * (in + f))));
  }
  return plus(out, q.kernels->gemm({rows, h, f, 1, q.precision, GemmPass::forward, false}));
}

std::string run_as(const MoeLayerQuestion& q, std::span<const std::int64_t> tokens) {
  const Moe& moe = *q.load.moe;
  if (q.rates == Rates::datasheet) return "at the datasheet's peak";
  KernelEvidence evidence;
  q.kernels->explain(
      GroupedGemm{
          tokens, moe.gated ? 2 * moe.width : moe.width, q.load.hidden, q.precision, GemmPass::forward, false, {}},
      evidence);
  return evidence.loop ? "a loop of single products" : "one fused kernel";
}

double slowed(const MoeLayerQuestion& q, double held) {
  const double sms = q.cluster->gpu.sms.value;
  return sms > held ? sms / (sms - held) : 1;
}

double price_waves(const MoeLayerQuestion& q, const MoeLayerTimes& t) {
  const auto groups = wave_groups(t.load.hottest, q.waves);
  const double rows =
      static_cast<double>(std::accumulate(t.load.hottest.begin(), t.load.hottest.end(), std::int64_t{0}));
  std::vector<double> dispatch, compute, combine;
  for (const auto& group : groups) {
    const double part =
        rows > 0 ? static_cast<double>(std::accumulate(group.begin(), group.end(), std::int64_t{0})) / rows : 0;
    dispatch.push_back(part * t.exchange.dispatch.total.seconds);
    compute.push_back((price_group(q, group).seconds + part * t.permute.seconds) * slowed(q, t.exchange.sms_held));
    combine.push_back(part * t.exchange.combine.total.seconds);
  }
  return waves_makespan(dispatch, compute, combine, t.shared.seconds * slowed(q, t.exchange.sms_held));
}

MoeOverlap overlaps(const MoeLayerQuestion& q, const MoeLayerTimes& t) {
  MoeOverlap out;
  const double dispatch = t.exchange.dispatch.total.seconds, combine = t.exchange.combine.total.seconds;
  const double experts = t.routed.seconds + t.permute.seconds, slow = slowed(q, t.exchange.sms_held);
  out.none = dispatch + experts + combine + t.shared.seconds;
  out.shared = std::max(dispatch, t.shared.seconds * slow) + experts + combine;
  out.microbatches = std::max(dispatch + combine, (experts + t.shared.seconds) * slow);
  out.waves = q.waves > 1 ? price_waves(q, t) : out.none;
  return out;
}

}  // namespace

std::vector<std::vector<std::int64_t>> wave_groups(std::span<const std::int64_t> tokens, int waves) {
  std::vector<std::vector<std::int64_t>> out(static_cast<std::size_t>(waves));
  for (std::size_t i = 0; i < tokens.size(); ++i) out[i * out.size() / tokens.size()].push_back(tokens[i]);
  return out;
}

double waves_makespan(const std::vector<double>& dispatch, const std::vector<double>& compute,
                      const std::vector<double>& combine, double free) {
  const std::size_t n = compute.size();
  double wire = 0, cores = free;  // when each lane is free
  std::vector<double> arrived(n, 0.0), done(n, 0.0);
  auto send = [&](std::size_t w) { arrived[w] = wire += dispatch[w]; };
  auto back = [&](std::size_t w) { wire = std::max(wire, done[w]) + combine[w]; };
  if (n > 0) send(0);
  for (std::size_t w = 0; w < n; ++w) {
    if (w + 1 < n) send(w + 1);
    cores = done[w] = std::max(cores, arrived[w]) + compute[w];
    if (w > 0) back(w - 1);
  }
  if (n > 0) back(n - 1);
  return wire;
}

double permuted_rows_per_pair(const ExpertLoadQuestion& q, const ExpertLoad& load) {
  const double k = static_cast<double>(q.moe->top_k);
  if (!sends_every_copy(q.transport)) return 2 * (1 + (q.every_copy ? k : load.distinct_ranks) / k);
  const double sorted = q.ep > 1 && load.hottest.size() > 1 ? 4 : 0;
  return 2 * (1 + 1 / k) + sorted;
}

MoeLayerTimes price_moe_layer(const MoeLayerQuestion& q) {
  MoeLayerTimes t;
  t.load = expert_load(q.load);
  const Moe& moe = *q.load.moe;
  if (q.waves > 1 && q.waves > static_cast<int>(t.load.hottest.size())) {
    throw InputError("--waves", std::to_string(q.waves) + " waves need as many experts on a GPU; the busiest holds " +
                                    std::to_string(t.load.hottest.size()));
  }
  const double matrices = moe.gated ? 3 : 2, h = static_cast<double>(q.load.hidden);
  t.routed_flops = t.load.pairs_per_rank * 2 * matrices * h * static_cast<double>(moe.width);
  t.flops = t.routed_flops +
            (q.shared ? q.load.tokens_per_rank * 2 * matrices * h * static_cast<double>(moe.shared_width) : 0);
  t.routed = price_group(q, t.load.hottest);
  t.shared = price_shared(q);
  t.products = run_as(q, t.load.hottest);
  const double rows =
      static_cast<double>(std::accumulate(t.load.hottest.begin(), t.load.hottest.end(), std::int64_t{0}));
  t.permute_bytes = permuted_rows_per_pair(q.load, t.load) * rows * h * 2;  // BF16
  t.permute = q.kernels->memory_bound(MemoryKernel::permute, t.permute_bytes);
  t.exchange = price_moe_exchange(*q.cluster, q.rates, *q.exchange, q.load, t.load);
  t.overlap = overlaps(q, t);
  return t;
}

}  // namespace shardplan
