#include "hardware/kernel_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/csv.hpp"
#include "base/errors.hpp"
#include "base/random.hpp"
#include "hardware/kernel_tables.hpp"

namespace shardplan {

namespace {

bool has_all(const CsvTable& csv, std::initializer_list<const char*> columns) {
  return std::all_of(columns.begin(), columns.end(), [&](const char* c) { return csv.has(c); });
}

/// Names of tables for the sources' names of kernels; what is not listed keeps its own name.
struct LibraryName {
  std::string_view kernel_source, framework, name;
};
constexpr std::array<LibraryName, 11> kLibraryNames{{
    {"fa3", "sglang", "fa3-sglang"},
    {"vllm_flash_attn_fa3", "vllm", "fa3-vllm"},
    {"flash_attention", "sglang", "fa2-sglang"},
    {"vllm_flash_attn", "vllm", "fa2-vllm"},
    {"torch_flow", "trtllm", "trtllm"},
    {"vllm_flashinfer_trtllmprefill", "vllm", "flashinfer"},
    {"moe_torch_flow_cutlass", "trtllm", "trtllm-cutlass"},
    {"sglang_fused_moe_triton", "sglang", "sglang-triton"},
    {"vllm_unquantizedfusedmoe_triton_tritonexperts", "vllm", "vllm-triton"},
    {"vllm_fp8moe_triton_tritonexperts", "vllm", "vllm-triton"},
    {"vllm_fp8moe_flashinfer_cutlass_flashinferexperts", "vllm", "vllm-flashinfer"},
}};

std::string library_name(const std::string& kernel_source, const std::string& framework) {
  for (const LibraryName& row : kLibraryNames) {
    if (row.kernel_source == kernel_source && row.framework == framework) return std::string(row.name);
  }
  if (kernel_source == "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts") return "vllm-flashinfer";
  return kernel_source;
}

double microseconds(const CsvTable& csv, std::size_t i) {
  const double us = csv.number(i, "latency_us");
  if (!(us > 0)) throw InputError(csv.where(i, "latency_us"), "a measured time must be positive");
  return us * 1e-6;
}

std::int64_t positive(const CsvTable& csv, std::size_t i, const char* column) {
  const std::int64_t n = csv.count(i, column);
  if (n < 1) throw InputError(csv.where(i, column), "must be at least 1");
  return n;
}

KernelRow common(const CsvTable& csv, std::size_t i, KernelRowKind kind, const char* dtype) {
  KernelRow row;
  row.kind = kind;
  row.number = i + 1;
  row.gpu = csv.text(i, "gpu");
  row.type = parse_data_type(csv.text(i, dtype), csv.where(i, dtype));
  row.measured = microseconds(csv, i);
  row.source = csv.text_or_empty(i, "source");
  row.version = csv.text_or_empty(i, "framework") + " " + csv.text_or_empty(i, "version");
  return row;
}

KernelRow gemm_row(const CsvTable& csv, std::size_t i) {
  KernelRow row = common(csv, i, KernelRowKind::gemm, "dtype");
  row.library = csv.text_or_empty(i, "framework");
  if (csv.has("peak_tflops")) row.peak = csv.number(i, "peak_tflops") * 1e12;
  row.gemm.m = positive(csv, i, "m");
  row.gemm.n = positive(csv, i, "n");
  row.gemm.k = positive(csv, i, "k");
  row.gemm.type = row.type;
  return row;
}

KernelRow attention_row(const CsvTable& csv, std::size_t i) {
  KernelRow row = common(csv, i, KernelRowKind::attention, "attn_dtype");
  row.library = library_name(csv.text(i, "kernel_source"), csv.text(i, "framework"));
  AttentionShape& a = row.attention;
  a.batch = positive(csv, i, "batch");
  a.q_len = positive(csv, i, "seq");
  a.kv_len = a.q_len + (csv.has("prefix") ? csv.count(i, "prefix") : 0);
  a.heads = positive(csv, i, "heads");
  a.kv_heads = positive(csv, i, "kv_heads");
  a.head_dim = positive(csv, i, "head_dim");
  a.type = row.type;
  a.kv_type = parse_data_type(csv.text(i, "kv_dtype"), csv.where(i, "kv_dtype"));
  return row;
}

double skew_of(const CsvTable& csv, std::size_t i) {
  const std::string& text = csv.text(i, "distribution");
  if (text == "balanced") return 0;
  constexpr std::string_view kPower = "power_law_";
  if (text.rfind(kPower, 0) != 0)
    throw InputError(csv.where(i, "distribution"), "neither balanced nor power_law_<exponent>");
  char* end = nullptr;
  const double exponent = std::strtod(text.c_str() + kPower.size(), &end);
  if (*end != '\0' || !(exponent > 0 && exponent < 10))
    throw InputError(csv.where(i, "distribution"), "a power law's exponent is between 0 and 10");
  return exponent;
}

KernelRow expert_row(const CsvTable& csv, std::size_t i) {
  KernelRow row = common(csv, i, KernelRowKind::experts, "dtype");
  row.library = library_name(csv.text(i, "kernel_source"), csv.text(i, "framework"));
  row.tokens = positive(csv, i, "tokens");
  row.hidden = positive(csv, i, "hidden");
  row.inter = positive(csv, i, "inter");
  row.top_k = positive(csv, i, "topk");
  row.experts = positive(csv, i, "experts");
  row.tp = positive(csv, i, "tp");
  row.ep = positive(csv, i, "ep");
  row.skew = skew_of(csv, i);
  if (row.ep > row.experts || row.experts > (1 << 20))
    throw InputError(csv.where(i, "experts"), "more ranks than experts, or too many experts");
  if (row.top_k > row.experts) throw InputError(csv.where(i, "topk"), "more than there are experts");
  return row;
}

/// Query and KV heads of the models that the memory-bound rows name: rotary bytes need them.
struct ModelHeads {
  std::string_view model;
  std::int64_t heads, kv_heads;
};
constexpr std::array<ModelHeads, 7> kModelHeads{{{"Qwen/Qwen-72B", 64, 64},
                                                 {"codellama/CodeLlama-34b-Instruct-hf", 64, 8},
                                                 {"internlm/internlm-20b", 40, 40},
                                                 {"meta-llama/Llama-2-7b-hf", 32, 32},
                                                 {"meta-llama/Llama-2-70b-hf", 64, 8},
                                                 {"meta-llama/Meta-Llama-3-8B", 32, 8},
                                                 {"meta-llama/Meta-Llama-3-70B", 64, 8}}};

/// 16-bit values that a kernel reads and writes for each of M rows of N values.
struct MemoryOp {
  std::string_view name;
  MemoryKernel kernel;
  double values;  // per element of [M, N]; 0 = rotary, which depends on heads
};
constexpr std::array<MemoryOp, 6> kMemoryOps{{{"add", MemoryKernel::add, 3},
                                              {"mlp_act", MemoryKernel::activation, 3},
                                              {"input_layernorm", MemoryKernel::norm, 2},
                                              {"post_attention_layernorm", MemoryKernel::norm, 2},
                                              {"emb", MemoryKernel::embedding, 2},
                                              {"attn_rope", MemoryKernel::rotary, 0}}};

/// Q and K of one tensor-parallel rank, read and written; N = hidden size.
double rotary_values(const KernelRow& row, const std::string& model, double hidden) {
  for (const ModelHeads& m : kModelHeads) {
    if (m.model != model) continue;
    const double local = double(m.heads) / double(row.tp) + std::max(double(m.kv_heads) / double(row.tp), 1.0);
    return 2 * local * hidden / double(m.heads);
  }
  return 0;
}

KernelRow memory_row(const CsvTable& csv, std::size_t i) {
  KernelRow row;
  row.kind = KernelRowKind::memory;
  row.number = i + 1;
  row.gpu = csv.text(i, "gpu");
  row.library = "vllm";
  row.version = "Vidur's profiles of vLLM";
  row.source = "microsoft/vidur";
  row.measured = csv.number(i, "median_ms") * 1e-3;
  row.tp = positive(csv, i, "tp");
  row.tokens = positive(csv, i, "M_tokens");
  const double m = double(row.tokens), n = double(positive(csv, i, "N"));
  const std::string &op = csv.text(i, "op"), &model = csv.text(i, "model");
  const auto found =
      std::find_if(kMemoryOps.begin(), kMemoryOps.end(), [&](const MemoryOp& o) { return o.name == op; });
  if (found == kMemoryOps.end()) {
    row.unusable = "operation \"" + op + "\" is not a known memory-bound kernel";
    return row;
  }
  row.memory = found->kernel;
  row.bytes = 2 * m * (found->values > 0 ? found->values * n : rotary_values(row, model, n));
  if (row.bytes <= 0) row.unusable = "heads of \"" + model + "\" are not known";
  if (row.measured <= 0) row.unusable = "its time is below the file's resolution of 1 us";
  return row;
}

/// Rounds `shares` (any scale) to whole tokens that sum to `total`; the largest absorb the difference.
std::vector<std::int64_t> rounded(const std::vector<double>& shares, std::int64_t total) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<std::int64_t> out;
  double carried = 0;
  std::int64_t given = 0;
  for (const double share : shares) {  // cumulative rounding keeps the sum
    carried += share / sum * double(total);
    out.push_back(std::llround(carried) - given);
    given += out.back();
  }
  return out;
}

std::vector<double> draw(const KernelRow& row, Random& random) {
  const double pairs = double(row.tokens) * double(row.top_k), a = row.skew;
  const bool many = pairs > double(row.experts);
  const double low = many ? 1 : 0.01, high = many ? std::max(0.8 * double(row.tokens), 1.0001) : 2;
  std::vector<double> loads(row.experts);
  for (double& load : loads) {
    const double u = random.uniform();
    load = std::abs(a - 1) < 1e-9
               ? low * std::pow(high / low, u)
               : std::pow((std::pow(high, 1 - a) - std::pow(low, 1 - a)) * u + std::pow(low, 1 - a), 1 / (1 - a));
  }
  return loads;
}

std::vector<std::int64_t> hottest(const std::vector<std::int64_t>& loads, std::int64_t ranks) {
  std::vector<std::int64_t> best;
  std::int64_t most = -1;
  const auto n = static_cast<std::int64_t>(loads.size());
  for (std::int64_t r = 0; r < ranks; ++r) {
    const auto first = loads.begin() + r * n / ranks, last = loads.begin() + (r + 1) * n / ranks;
    const std::int64_t sum = std::accumulate(first, last, std::int64_t{0});
    if (sum > most) most = sum, best.assign(first, last);
  }
  return best;
}

}  // namespace

bool is_gpu_name(const std::string& published, const std::string& gpu) {
  thread_local std::map<std::string, std::string> known;  // a file has one or a few names on thousands of rows
  auto [found, is_new] = known.try_emplace(published);
  if (is_new) {
    try {
      found->second = load_cluster(published).gpu.name;
    } catch (const InputError&) {
      found->second = published;  // a name of no GPU here
    }
  }
  return found->second == gpu;
}

std::optional<KernelRowKind> kernel_row_kind(const CsvTable& csv) {
  if (has_all(csv, {"gpu", "dtype", "m", "n", "k", "latency_us"}) && !csv.has("bytes")) return KernelRowKind::gemm;
  if (has_all(csv, {"gpu", "kernel_source", "framework", "attn_dtype", "kv_dtype", "batch", "seq", "heads", "kv_heads",
                    "head_dim", "latency_us"})) {
    return KernelRowKind::attention;
  }
  if (has_all(csv, {"gpu", "kernel_source", "framework", "dtype", "tokens", "hidden", "inter", "topk", "experts", "tp",
                    "ep", "distribution", "latency_us"})) {
    return KernelRowKind::experts;
  }
  if (has_all(csv, {"gpu", "model", "op", "tp", "M_tokens", "N", "median_ms"})) return KernelRowKind::memory;
  return std::nullopt;
}

std::vector<KernelRow> read_kernel_rows(const CsvTable& csv) {
  const auto kind = kernel_row_kind(csv);
  if (!kind) throw InputError(csv.name(), "the header is of no known kind of kernel rows");
  std::vector<KernelRow> rows;
  rows.reserve(csv.size());
  for (std::size_t i = 0; i < csv.size(); ++i) {
    switch (*kind) {
      case KernelRowKind::gemm:
        rows.push_back(gemm_row(csv, i));
        break;
      case KernelRowKind::attention:
        rows.push_back(attention_row(csv, i));
        break;
      case KernelRowKind::experts:
        rows.push_back(expert_row(csv, i));
        break;
      case KernelRowKind::memory:
        rows.push_back(memory_row(csv, i));
        break;
    }
  }
  return rows;
}

std::vector<std::int64_t> timed_group_sizes(const KernelRow& row) {
  const std::int64_t pairs = row.tokens * row.top_k;
  if (row.skew <= 0) return hottest(rounded(std::vector<double>(row.experts, 1.0), pairs), row.ep);
  constexpr int kDraws = 61;
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> draws;
  Random random(0x5EED);
  for (int i = 0; i < kDraws; ++i) {
    std::vector<std::int64_t> sizes = hottest(rounded(draw(row, random), pairs), row.ep);
    const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    draws.emplace_back(sum, std::move(sizes));
  }
  std::sort(draws.begin(), draws.end());
  return draws[kDraws / 2].second;
}

ExpertLayer expert_layer(const KernelRow& row, const std::vector<std::int64_t>& sizes) {
  ExpertLayer layer;
  layer.tokens = sizes;
  layer.hidden = row.hidden;
  layer.inter = std::max<std::int64_t>(1, row.inter / row.tp);
  layer.tokens_in = row.tokens;
  layer.top_k = row.top_k;
  layer.type = row.type;
  layer.build = row.library;
  return layer;
}

Price price_row(const KernelModel& model, const KernelRow& row) {
  switch (row.kind) {
    case KernelRowKind::gemm:
      return model.gemm(row.gemm);
    case KernelRowKind::attention: {
      AttentionShape shape = row.attention;
      shape.build = row.library;
      return model.attention(shape);
    }
    case KernelRowKind::memory:
      return model.memory_bound(row.memory, row.bytes);
    case KernelRowKind::experts:
      break;
  }
  const std::vector<std::int64_t> sizes = timed_group_sizes(row);
  return model.expert_layer(expert_layer(row, sizes));
}

}  // namespace shardplan
