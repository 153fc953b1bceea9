#include "hardware/kernel_choice.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/kernel_extend.hpp"

namespace shardplan {

double peak_of(const Gpu& gpu, DataType type) {
  if (gpu.peak(type) > 0) return gpu.peak(type);
  switch (type) {
    case DataType::fp8_row:
    case DataType::fp8_block:
    case DataType::mxfp8:
      return gpu.peak(DataType::fp8);
    case DataType::fp16:
      return gpu.peak(DataType::bf16);
    case DataType::bf16:
      return gpu.peak(DataType::fp16);  // before Ampere: what fp16 does, the stacks ran
    default:
      return 0;
  }
}

namespace {

/// The built-in GPU whose tables are the fullest: classes that neither a GPU nor its sibling has come from here.
constexpr std::string_view kFullest = "h100-sxm";

const std::vector<KernelTables>& pricing_tables() {
  static const std::vector<KernelTables> all = [] {
    std::vector<KernelTables> out;
    for (const std::string& name : builtin_kernel_table_names()) out.push_back(extended(*builtin_kernel_tables(name)));
    return out;
  }();
  return all;
}

const KernelTables* pricing_table(std::string_view name) {
  for (const KernelTables& tables : pricing_tables()) {
    if (tables.name == name) return &tables;
  }
  return nullptr;
}

/// "a100-sxm" names the tables of "a100-sxm-80gb" and the other way round.
const KernelTables* tables_named(std::string_view name) {
  if (name.empty()) return nullptr;
  if (const KernelTables* exact = pricing_table(name)) return exact;
  for (const std::string& known : builtin_kernel_table_names()) {
    if (known.starts_with(name) || name.starts_with(known)) return pricing_table(known);
  }
  return nullptr;
}

/// Types whose kernels stand in for one another: same tensor-core rate first. The first entry is the type itself.
std::array<DataType, 3> stand_ins(DataType type) {
  switch (type) {
    case DataType::fp16:
      return {DataType::fp16, DataType::bf16, DataType::bf16};
    case DataType::fp32:
    case DataType::tf32:
      return {type, DataType::bf16, DataType::bf16};
    case DataType::fp8_row:
    case DataType::int8:
      return {type, DataType::fp8, DataType::fp8_block};
    case DataType::mxfp8:
      return {type, DataType::fp8_block, DataType::fp8};
    case DataType::fp8:
      return {type, DataType::fp8_block, DataType::fp8_block};
    case DataType::fp8_block:
      return {type, DataType::fp8, DataType::fp8};
    default:
      return {type, type, type};
  }
}

/// fp16 runs on the tensor cores as bf16 does: no transfer.
bool same_rate(DataType a, DataType b) {
  const auto canonical = [](DataType t) { return t == DataType::fp16 ? DataType::bf16 : t; };
  return canonical(a) == canonical(b);
}

/// Ordinary fractions where nothing was measured: between the p50 of large products over GPUs, 0.5-0.8 of peak, and of
/// streaming, 0.7-0.9.
struct MeasuredMaximum {
  std::string_view gpu;
  double fraction;  // of the bf16 peak
};
/// stas00/ml-engineering@744d01e18b79, maximum achievable matmul FLOP/s over the printed peak.
constexpr std::array<MeasuredMaximum, 3> kMaxima{{{"mi300x", 0.514}, {"mi325x", 0.604}, {"mi355x", 0.68}}};

KernelTable generic_table(const Gpu& gpu) {
  KernelTable table;
  table.library = "datasheet";
  table.source =
      "datasheet of " + gpu.name + " with ordinary fractions: 0.6 of peak, 0.75 of HBM bandwidth, 4 us fixed";
  table.form = {0.60, 0.75, 4e-6, 3};
  for (const MeasuredMaximum& row : kMaxima) {
    if (gpu.name != row.gpu) continue;
    table.form.compute = row.fraction;
    table.source = "datasheet of " + gpu.name +
                   "; published matmul maximum (stas00/ml-engineering MAMF table), 0.75 of HBM bandwidth, 4 us fixed";
  }
  table.bands = {{0, 0.85, 1.18}};
  return table;
}

struct LibraryTables {
  AttentionLibrary library;
  std::array<std::string_view, 3> tables;  // in order of preference
  std::string_view factor;                 // where none is there: times FlashAttention 3's, else the GPU's first table
};
constexpr std::array<LibraryTables, 5> kLibraries{{
    {AttentionLibrary::fa2, {"fa2-vllm", "fa2-sglang", ""}, "attention:fa2"},
    {AttentionLibrary::fa3, {"fa3-vllm", "fa3-sglang", ""}, "attention:fa3"},
    {AttentionLibrary::cudnn, {"cudnn", "", ""}, "attention:cudnn"},
    {AttentionLibrary::trtllm, {"trtllm", "", ""}, "attention:trtllm"},
    {AttentionLibrary::triton, {"triton", "", ""}, "attention:triton"},
}};

/// "4096x128x8": hidden, experts, top-k.
double top_k_of(std::string_view variant) {
  const auto last = variant.rfind('x');
  return last == std::string_view::npos
             ? 1
             : std::max(1.0, std::strtod(std::string(variant.substr(last + 1)).c_str(), nullptr));
}

/// How far a layer is from a family of tables, in logarithms: its hidden size, then whatever of its groups the grid
/// does not reach.
double family_distance(const KernelTable& table, const ExpertFeatures& f) {
  const double hidden = std::strtod(table.variant.c_str(), nullptr);
  LogGrid::Logs logs = expert_logs(f);
  const double outside = table.grid.empty() ? 0 : table.grid.clamp(logs);
  const double routed = std::abs(std::log(std::max(f.top_k, 1.0) / top_k_of(table.variant)));
  return 4 * std::abs(std::log(f.hidden / std::max(hidden, 1.0))) + 2 * routed + outside;
}

const KernelTables::PassFactor* factor_named(const KernelTables* tables, std::string_view name) {
  if (tables == nullptr) return nullptr;
  for (const auto& row : tables->passes) {
    if (row.pass == name) return &row;
  }
  return nullptr;
}

/// Seconds of a library's attention over the GPU's first table's: as published for heads of 128, and for 64 where a row
/// "NAME:64" says so (geometric between them, held outside). 0 = no figure.
double library_factor(const KernelTables* tables, std::string_view name, std::int64_t head_dim) {
  const auto* at_128 = factor_named(tables, name);
  if (at_128 == nullptr) return 0;
  const auto* at_64 = factor_named(tables, std::string(name) + ":64");
  if (at_64 == nullptr) return at_128->factor;
  const double octaves = std::clamp(std::log2(static_cast<double>(head_dim) / 64.0), 0.0, 1.0);
  return at_64->factor * std::pow(at_128->factor / at_64->factor, octaves);
}

}  // namespace

KernelChoice::KernelChoice(const Gpu& gpu, std::shared_ptr<const KernelTables> tables)
    : gpu_(&gpu), read_(std::move(tables)), generic_(generic_table(gpu)), generic_backward_(generic_) {
  generic_backward_.scale = kBackwardOverForward;
  if (read_ == nullptr && gpu.calibration.ends_with(".json")) {
    read_ = std::make_shared<const KernelTables>(parse_kernel_tables(read_text_file(gpu.calibration), gpu.calibration));
  }
  if (read_ != nullptr) read_ = std::make_shared<const KernelTables>(extended(*read_));
  own_ = read_ != nullptr ? read_.get() : tables_named(gpu.calibration.empty() ? gpu.name : gpu.calibration);
  if (own_ != nullptr && own_->name != gpu.name) std::swap(own_, sibling_);
  if (sibling_ == nullptr) sibling_ = tables_named(gpu.sibling);
  for (std::size_t i = 0; i < kDataTypeNames.size(); ++i) {
    const auto type = static_cast<DataType>(i);
    if (own_ != nullptr || peak_of(gpu, type) > 0) gemm_[i] = find(KernelClass::gemm, type);
  }
  for (std::size_t i = 0; i < kMemoryKernelNames.size(); ++i) {
    memory_[i] = find(KernelClass::memory, DataType::bf16, {}, kMemoryKernelNames[i]);
    if (memory_[i].generic) memory_[i] = find(KernelClass::memory, DataType::bf16, {}, "copy");
  }
}

ChosenTable KernelChoice::from(const KernelTables& tables, const KernelTable* table, DataType asked) const {
  const bool foreign = &tables != own_;
  ChosenTable out{table, table->rates, foreign || !same_rate(table->type, asked), false};
  if (foreign) out.rates.bandwidth = gpu_->hbm_bytes_per_second.value;
  if (out.transferred && peak_of(*gpu_, asked) > 0) out.rates.peak = peak_of(*gpu_, asked);
  return out;
}

ChosenTable KernelChoice::find(KernelClass kernel, DataType type, std::string_view library, std::string_view variant,
                               std::optional<DataType> kv) const {
  for (const KernelTables* tables : {own_, sibling_}) {
    if (tables == nullptr) continue;
    for (const DataType candidate : stand_ins(type)) {
      if (const KernelTable* table = tables->find(kernel, candidate, library, variant, kv))
        return from(*tables, table, type);
    }
  }
  // A calibrated family without this class: from the GPU that has it. A GPU without any calibration: its datasheet.
  if (own_ != nullptr || sibling_ != nullptr) {
    const KernelTables* fullest = pricing_table(kFullest);
    for (const DataType candidate : stand_ins(type)) {
      if (fullest == nullptr) break;
      if (const KernelTable* table = fullest->find(kernel, candidate, library, variant, kv))
        return from(*fullest, table, type);
    }
  }
  return {&generic_, {peak_of(*gpu_, type), gpu_->hbm_bytes_per_second.value}, false, true};
}

KernelRates KernelChoice::datasheet(DataType type) const {
  const KernelRates rates{peak_of(*gpu_, type), gpu_->hbm_bytes_per_second.value};
  if (!(rates.peak > 0)) throw InputError(gpu_->name, "has no " + std::string(data_type_name(type)) + " arithmetic");
  if (!(rates.bandwidth > 0)) throw InputError(gpu_->name, "has no memory bandwidth");
  return rates;
}

const ChosenTable& KernelChoice::gemm(DataType type) const {
  const ChosenTable& chosen = gemm_[static_cast<std::size_t>(type)];
  if (chosen.table == nullptr || chosen.transferred || chosen.generic)
    datasheet(type);  // refuses a type that the GPU lacks
  return chosen;
}

ChosenTable KernelChoice::attention(const AttentionShape& a) const {
  const DataType kv = a.kv_type == DataType::bf16 && a.type != DataType::fp16 ? a.type : a.kv_type;
  if (!a.build.empty()) {
    ChosenTable named = find(KernelClass::attention, a.type, a.build, {}, kv);
    if (named.generic)
      throw InputError("attention library", "no table \"" + std::string(a.build) + "\" of " +
                                                std::string(data_type_name(a.type)) + " on " + gpu_->name);
    return named;
  }
  const auto tabled = [&](const LibraryTables& row) -> std::optional<ChosenTable> {
    for (const std::string_view name : row.tables) {
      if (name.empty()) continue;
      const ChosenTable named = find(KernelClass::attention, a.type, name, {}, kv);
      const bool near = named.table != &generic_ &&
                        (own_ == nullptr || own_->find(KernelClass::attention, named.table->type, name) != nullptr);
      if (near) return named;
    }
    return {};
  };
  for (const LibraryTables& row : kLibraries) {
    if (row.library != a.library) continue;
    if (const auto named = tabled(row)) return *named;
    // Published ratios are over FlashAttention 3; where no table of it is there, the GPU's first stands in.
    ChosenTable other = tabled(kLibraries[1]).value_or(find(KernelClass::attention, a.type, {}, {}, kv));
    if (const double factor = library_factor(own_ != nullptr ? own_ : sibling_, row.factor, a.head_dim);
        factor > 0 && !other.generic) {
      other.factor = factor;
      other.transferred = true;
      return other;
    }
  }
  ChosenTable first = find(KernelClass::attention, a.type, {}, {}, kv);
  if (first.generic) first = find(KernelClass::attention, a.type);
  if (first.generic || first.transferred) datasheet(a.type);
  return first;
}

ChosenTable KernelChoice::attention_backward(const AttentionShape& a) const {
  ChosenTable chosen = find(KernelClass::attention_backward, a.type);
  if (chosen.generic) {
    chosen = find(KernelClass::attention_backward, DataType::bf16);
    chosen.transferred = true;
  }
  if (chosen.generic) chosen.table = &generic_backward_;
  return chosen;
}

ChosenTable KernelChoice::experts(DataType type, std::string_view build, const ExpertFeatures& f) const {
  // Training stacks run block-scaled experts through DeepGEMM; the inference stacks' kernels in the tables are 2-3
  // times slower.
  const bool block_scaled = type == DataType::fp8_block || type == DataType::mxfp8;
  ChosenTable chosen = find(KernelClass::experts, type, build.empty() && block_scaled ? "deepgemm" : build);
  if (chosen.generic) chosen = find(KernelClass::experts, type, build);
  if (chosen.generic && !build.empty()) {
    throw InputError("expert library", "no table \"" + std::string(build) + "\" of " +
                                           std::string(data_type_name(type)) + " on " + gpu_->name);
  }
  if (chosen.generic || chosen.transferred) datasheet(type);
  if (chosen.generic) return chosen;
  double nearest = std::numeric_limits<double>::infinity();
  const KernelTable* first = chosen.table;
  for (const KernelTables* tables : {own_, sibling_, pricing_table(kFullest)}) {
    if (tables == nullptr || first < tables->tables.data() || first >= tables->tables.data() + tables->tables.size())
      continue;
    for (const KernelTable& table : tables->tables) {
      if (table.kernel != KernelClass::experts || table.type != first->type || table.library != first->library)
        continue;
      if (const double far = family_distance(table, f); far < nearest) nearest = far, chosen.table = &table;
    }
  }
  return chosen;
}

const ChosenTable& KernelChoice::memory(MemoryKernel kernel) const { return memory_[static_cast<std::size_t>(kernel)]; }

namespace {
std::string_view pass_name(GemmPass pass, bool accumulate_fp32) {
  if (pass == GemmPass::forward) return "forward";
  return pass == GemmPass::input_grad ? "input_grad" : accumulate_fp32 ? "weight_grad_fp32" : "weight_grad";
}
}  // namespace

double KernelChoice::factor(std::string_view name) const {
  const auto* row = factor_named(own_, name);
  if (row == nullptr) row = factor_named(sibling_, name);
  return row == nullptr ? 1 : row->factor;
}

double KernelChoice::pass_factor(const Gemm& g) const {
  return g.pass == GemmPass::forward ? 1 : factor(pass_name(g.pass, g.accumulate_fp32));
}

double KernelChoice::grouped_pass_factor(const GroupedGemm& g) const {
  return g.pass == GemmPass::forward ? 1 : factor("grouped:" + std::string(pass_name(g.pass, g.accumulate_fp32)));
}

/// Operands of the three passes are the input (rows of k), the weight (of k) and the output or its gradient (of n), so
/// the forward product's n and k are what lies contiguous in each of them; tokens never do.
double KernelChoice::alignment_factor(const Gemm& g) const {
  const KernelTables* tables = own_ != nullptr ? own_ : sibling_;
  if (tables == nullptr || tables->alignments.empty()) return 1;
  const double bytes = bytes_of(g.type);
  double worst = 1;
  for (const auto& row : tables->alignments) {  // descending in bytes: the last that is broken is the worst
    const auto elements = static_cast<std::int64_t>(row.bytes / bytes);
    if (elements > 1 && (g.n % elements != 0 || g.k % elements != 0))
      worst = std::max(worst, g.batch > 1 && row.batched > 0 ? row.batched : row.factor);
  }
  return worst;
}

const KernelTables::Sustained* KernelChoice::sustained(DataType type) const {
  for (const KernelTables* tables : {own_, sibling_}) {
    if (tables == nullptr) continue;
    for (const DataType candidate : stand_ins(type)) {
      for (const auto& row : tables->sustained) {
        if (row.type == candidate) return &row;
      }
    }
  }
  return nullptr;
}

double KernelChoice::launch_floor() const {
  const KernelTables* tables = own_ != nullptr ? own_ : sibling_;
  return tables != nullptr ? tables->launch_floor : generic_.form.fixed;
}

}  // namespace shardplan
