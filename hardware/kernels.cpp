#include "hardware/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.hpp"
#include "hardware/kernel_choice.hpp"
#include "hardware/kernel_memo.hpp"
#include "hardware/kernel_shapes.hpp"

namespace shardplan {

namespace {

std::uint64_t word(std::int64_t value) { return static_cast<std::uint64_t>(value); }

template <class E>
unsigned index_of(E value) {
  return static_cast<unsigned>(value);
}

/// Small enumerations and flags of a shape in one word; `kind` keeps classes apart.
std::uint64_t packed(std::initializer_list<unsigned> parts) {
  std::uint64_t out = 0;
  for (const unsigned part : parts) out = out << 6 | (part & 63u);
  return out;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return h;
}

Price certain(double seconds) { return {seconds, seconds, seconds, Basis::datasheet}; }

void require(bool ok, const char* where, const char* what) {
  if (!ok) throw InputError(where, what);
}

void check(const Gemm& g) {
  require(g.m >= 0 && g.n >= 0 && g.k >= 0 && g.batch >= 0, "gemm", "m, n, k and batch cannot be negative");
}

void check(const AttentionShape& a) {
  require(a.batch >= 0 && a.q_len >= 0 && a.kv_len >= 0 && a.window >= 0, "attention",
          "batch, lengths and window cannot be negative");
  require(a.heads > 0 && a.kv_heads > 0 && a.head_dim > 0 && a.v_head_dim >= 0, "attention",
          "heads, KV heads and head size must be positive");
}

}  // namespace

struct KernelModel::Impl {
  Impl(const Gpu& g, Rates r, std::shared_ptr<const KernelTables> tables)
      : gpu(g), rates(r), choice(gpu, std::move(tables)), serial(KernelMemo::new_model()) {}

  Gpu gpu;
  Rates rates;
  KernelChoice choice;
  std::uint64_t serial;

  Price gemm(const Gemm& g, KernelEvidence* evidence) const {
    if (g.m == 0 || g.n == 0 || g.k == 0 || g.batch == 0) return {0, 0, 0, Basis::measured};
    const GemmDims dims = gemm_dims(g);
    const KernelWork work = gemm_work(g);
    if (rates == Rates::datasheet) return certain(datasheet_seconds(work, choice.datasheet(g.type)));
    const ChosenTable& chosen = choice.gemm(g.type);
    const double bytes = bytes_of(chosen.table->type);
    const double factor = choice.pass_factor(g) * choice.alignment_factor(g);
    const LogGrid::Logs logs{std::log(double(dims.m) * double(g.batch)), std::log(double(dims.n)),
                             std::log(double(dims.k))};
    const auto work_at = [&](const LogGrid::Logs& at) {
      return gemm_work(std::exp(at[0]), std::exp(at[1]), std::exp(at[2]), bytes);
    };
    return price_from_table(chosen, logs, work, work_at, factor, evidence);
  }

  Price unfused(const AttentionShape& a) const;
  Price attention(const AttentionShape& a, KernelEvidence* evidence) const;
  Price memory_bound(MemoryKernel kernel, double bytes, KernelEvidence* evidence) const;
  Price experts(const ExpertLayer& layer, KernelEvidence* evidence) const;
  Price grouped(const GroupedGemm& g, KernelEvidence* evidence) const;
  Price fused(const GroupedGemm& g, KernelEvidence* evidence) const;
  Price loop(const GroupedGemm& g) const;
};

Price KernelModel::Impl::attention(const AttentionShape& a, KernelEvidence* evidence) const {
  if (a.batch == 0 || a.q_len == 0 || a.kv_len == 0) return {0, 0, 0, Basis::measured};
  if (rates == Rates::datasheet) return certain(datasheet_seconds(attention_work(a), choice.datasheet(a.type)));
  if (a.library == AttentionLibrary::unfused) return unfused(a);
  const AttentionFeatures f = attention_features(a);
  const ChosenTable chosen = choice.attention(a);
  const double bytes = bytes_of(a.type), kv_bytes = bytes_of(a.kv_type == DataType::bf16 ? a.type : a.kv_type);
  const LogGrid::Logs logs{std::log(f.batch_heads), std::log(f.seq), std::log(f.group), std::log(f.head_dim)};
  const auto work_at = [&](const LogGrid::Logs& at) {
    return attention_work({std::exp(at[0]), std::exp(at[1]), std::exp(at[2]), std::exp(at[3])}, bytes, kv_bytes);
  };
  AttentionShape forward = a;
  forward.pass = AttentionPass::forward;
  Price price = price_from_table(chosen, logs, attention_work(forward), work_at, 1, evidence);
  if (a.pass == AttentionPass::forward) return price;
  const ChosenTable backward = choice.attention_backward(a);
  LogGrid::Logs at{std::log(f.seq), std::log(f.head_dim)};
  double ratio = backward.table->scale;
  if (!backward.table->grid.empty()) {
    backward.table->grid.clamp(at);
    ratio *= std::exp(backward.table->grid.value(at));
  }
  // The ratio's own spread adds to the forward's in quadrature of logarithms.
  const ErrorBand& band = backward.table->bands.front();
  const auto join = [](double a_log, double b_log) { return std::sqrt(a_log * a_log + b_log * b_log); };
  price = {price.seconds * ratio,
           price.seconds * ratio * std::exp(-join(std::log(price.low / price.seconds), std::log(band.low))),
           price.seconds * ratio * std::exp(join(std::log(price.high / price.seconds), std::log(band.high))),
           price.basis};
  if (backward.transferred) price.basis = weaker(price.basis, Basis::transferred);
  if (evidence != nullptr) evidence->ratio *= ratio;
  return price;
}

Price KernelModel::Impl::memory_bound(MemoryKernel kernel, double bytes, KernelEvidence* evidence) const {
  require(bytes >= 0 && std::isfinite(bytes), "memory-bound kernel", "bytes must be a number that is not negative");
  if (bytes == 0) return {0, 0, 0, Basis::measured};
  const KernelWork work{0, bytes};
  if (rates == Rates::datasheet) return certain(datasheet_seconds(work, choice.datasheet(DataType::bf16)));
  const auto work_at = [](const LogGrid::Logs& at) { return KernelWork{0, std::exp(at[0])}; };
  return price_from_table(choice.memory(kernel), {std::log(bytes)}, work, work_at, 1, evidence);
}

/// Scores through memory, as stacks before FlashAttention did it. Passes over the b h q kv scores of 16 bit, forward:
/// written by Q K^T, softmax with mask and scale reads and writes, dropout reads, writes and stores a mask byte (2.5
/// passes), P V reads: 6.5 with dropout, 4 without. Backward: dV reads P, dP is written, dropout reads dP and its mask
/// and writes, softmax reads P and dP and writes dS, dQ and dK read dS: 9.5, 7 without. No causal halving: these
/// products are dense. Leaves out the transposes.
Price KernelModel::Impl::unfused(const AttentionShape& a) const {
  const std::int64_t copies = a.batch * a.heads;
  const std::int64_t dv = a.v_head_dim > 0 ? a.v_head_dim : a.head_dim;
  const double scores = double(copies) * double(a.q_len) * double(a.kv_len) * bytes_of(a.type);
  Price sum{0, 0, 0, Basis::measured};
  const auto add = [&](const Price& p, double times) {
    sum = {sum.seconds + times * p.seconds, sum.low + times * p.low, sum.high + times * p.high,
           weaker(sum.basis, p.basis)};
  };
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = copies, g.type = a.type;
    return gemm(g, nullptr);
  };
  const auto passes = [&](double count) { add(memory_bound(MemoryKernel::copy, count * scores, nullptr), 1); };
  if (a.pass == AttentionPass::forward) {
    add(product(a.q_len, a.kv_len, a.head_dim), 1);
    passes(2);
    if (a.dropout) passes(2.5);
    add(product(a.q_len, dv, a.kv_len), 1);
  } else {
    add(product(a.kv_len, dv, a.q_len), 1);
    add(product(a.q_len, a.kv_len, dv), 1);
    if (a.dropout) passes(2.5);
    passes(3);
    add(product(a.q_len, a.head_dim, a.kv_len), 2);
  }
  return sum;
}

Price KernelModel::Impl::experts(const ExpertLayer& layer, KernelEvidence* evidence) const {
  const ExpertFeatures f = expert_features(layer);
  if (f.rows <= 0) return {0, 0, 0, Basis::measured};
  const KernelWork work = expert_work(f, bytes_of(layer.type));
  if (rates == Rates::datasheet)
    return certain(datasheet_seconds({2 * 3 * f.hidden * f.inter * f.rows, work.bytes}, choice.datasheet(layer.type)));
  const ChosenTable chosen = choice.experts(layer.type, layer.build, f);
  const auto work_at = [&](const LogGrid::Logs&) { return work; };  // a grid of ratios asks for none
  return price_from_table(chosen, expert_logs(f), work, work_at, 1, evidence);
}

/// An experts table holds ratios: by how much a layer misses its fitted form; one product misses it by as much.
/// Launches, routing and streaming of the layer are left out: t = floor + (measured / form of the layer) x the roofline
/// of this product.
Price KernelModel::Impl::fused(const GroupedGemm& g, KernelEvidence* evidence) const {
  const GroupedFeatures f = grouped_features(g);
  if (f.layer.rows <= 0) return {0, 0, 0, Basis::measured};
  if (rates == Rates::datasheet) {
    KernelWork work = f.work;
    work.flops = 2 * f.layer.rows * double(g.n) * double(g.k);
    return certain(datasheet_seconds(work, choice.datasheet(g.type)));
  }
  const ChosenTable chosen = choice.experts(g.type, g.build, f.layer);
  const KernelTable& table = *chosen.table;
  RooflineForm product = table.form;
  product.fixed = choice.launch_floor();
  product.local = product.routed = 0;
  LogGrid::Logs logs = expert_logs(f.layer);
  double outside = 0, missed = 1;
  if (!table.grid.empty()) {
    outside = table.grid.clamp(logs);
    missed = std::exp(table.grid.value(logs));
  }
  const double roofline = product.seconds(f.work, chosen.rates) - product.fixed;
  const double seconds = product.fixed + missed * roofline * table.scale * choice.grouped_pass_factor(g);
  if (evidence != nullptr) *evidence = {&table, logs, outside, missed, f.work};
  return with_interval(chosen, seconds, seconds, outside);
}

static Gemm product_of(const GroupedGemm& g, std::int64_t tokens) {
  return {tokens, g.n, g.k, 1, g.type, g.pass, g.accumulate_fp32};
}

/// The experts' products one after the other: sum of single products, groups of equal size priced once.
Price KernelModel::Impl::loop(const GroupedGemm& g) const {
  Price sum{0, 0, 0, Basis::measured};
  for (std::size_t i = 0; i < g.tokens.size();) {
    std::size_t same = i;
    while (same < g.tokens.size() && g.tokens[same] == g.tokens[i]) ++same;
    const Gemm product = product_of(g, g.tokens[i]);
    const KernelKey key{serial,          packed({1, index_of(g.type), index_of(g.pass), g.accumulate_fp32}),
                        word(product.m), word(g.n),
                        word(g.k),       1};
    const Price one = KernelMemo::get(key, [&] { return gemm(product, nullptr); });
    const auto count = static_cast<double>(same - i);
    sum = {sum.seconds + count * one.seconds, sum.low + count * one.low, sum.high + count * one.high,
           weaker(sum.basis, one.basis)};
    i = same;
  }
  return sum;
}

Price KernelModel::Impl::grouped(const GroupedGemm& g, KernelEvidence* evidence) const {
  const Price one_kernel = fused(g, evidence);
  if (rates == Rates::datasheet || !g.build.empty() || !(one_kernel.seconds > 0)) return one_kernel;
  const Price one_by_one = loop(g);
  const bool better = one_by_one.seconds > 0 && one_by_one.seconds < one_kernel.seconds;
  if (evidence != nullptr) {
    if (better) gemm(product_of(g, *std::max_element(g.tokens.begin(), g.tokens.end())), evidence);
    evidence->loop = better;
    evidence->fused_s = one_kernel.seconds;
    evidence->loop_s = one_by_one.seconds;
  }
  return better ? one_by_one : one_kernel;
}

KernelModel::KernelModel(const Gpu& gpu, Rates rates) : impl_(std::make_unique<Impl>(gpu, rates, nullptr)) {}
KernelModel::KernelModel(const Gpu& gpu, Rates rates, std::shared_ptr<const KernelTables> tables)
    : impl_(std::make_unique<Impl>(gpu, rates, std::move(tables))) {}
KernelModel::~KernelModel() = default;
KernelModel::KernelModel(KernelModel&&) noexcept = default;
KernelModel& KernelModel::operator=(KernelModel&&) noexcept = default;

Price KernelModel::gemm(const Gemm& g) const {
  check(g);
  const KernelKey key{impl_->serial, packed({1, index_of(g.type), index_of(g.pass), g.accumulate_fp32}),
                      word(g.m),     word(g.n),
                      word(g.k),     word(g.batch)};
  return KernelMemo::get(key, [&] { return impl_->gemm(g, nullptr); });
}

Price KernelModel::attention(const AttentionShape& a) const {
  check(a);
  const KernelKey key{
      impl_->serial,
      packed({2, index_of(a.type), index_of(a.kv_type), index_of(a.pass), index_of(a.library), a.causal, a.dropout}) ^
          hash_of(a.build) << 48,
      word(a.batch) << 32 ^ word(a.heads) << 16 ^ word(a.kv_heads),
      word(a.q_len),
      word(a.kv_len),
      word(a.head_dim) << 32 ^ word(a.v_head_dim),
      word(a.window),
      hash_of(a.build)};
  return KernelMemo::get(key, [&] { return impl_->attention(a, nullptr); });
}

Price KernelModel::memory_bound(MemoryKernel kernel, double bytes) const {
  return impl_->memory_bound(kernel, bytes, nullptr);
}

Price KernelModel::grouped_gemm(const GroupedGemm& g) const {
  require(g.n >= 0 && g.k >= 0, "grouped gemm", "n and k cannot be negative");
  return impl_->grouped(g, nullptr);
}

Price KernelModel::expert_layer(const ExpertLayer& layer) const { return impl_->experts(layer, nullptr); }

Price KernelModel::explain(const Gemm& g, KernelEvidence& evidence) const {
  return check(g), impl_->gemm(g, &evidence);
}
Price KernelModel::explain(const AttentionShape& a, KernelEvidence& evidence) const {
  return check(a), impl_->attention(a, &evidence);
}
Price KernelModel::explain(MemoryKernel kernel, double bytes, KernelEvidence& evidence) const {
  return impl_->memory_bound(kernel, bytes, &evidence);
}
Price KernelModel::explain(const ExpertLayer& layer, KernelEvidence& evidence) const {
  return impl_->experts(layer, &evidence);
}
Price KernelModel::explain(const GroupedGemm& g, KernelEvidence& evidence) const {
  return impl_->grouped(g, &evidence);
}

double KernelModel::sustained_fraction(DataType type) const {
  if (impl_->rates == Rates::datasheet) return 1;
  const auto* row = impl_->choice.sustained(type);
  return row == nullptr ? 1 : row->fraction;
}

double KernelModel::launch_floor() const { return impl_->rates == Rates::datasheet ? 0 : impl_->choice.launch_floor(); }
const Gpu& KernelModel::gpu() const { return impl_->gpu; }
Rates KernelModel::rates() const { return impl_->rates; }

}  // namespace shardplan
