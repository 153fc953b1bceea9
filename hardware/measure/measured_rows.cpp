#include "hardware/measure/measured_rows.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

namespace shardplan {
namespace {

std::optional<DataType> type_of(const std::string& word) {
  for (std::size_t i = 0; i < kDataTypeNames.size(); ++i) {
    if (kDataTypeNames[i] == word) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

struct MemoryName {
  const char* measured;
  MemoryKernel kernel;
};
// The host's mask (an activation backwards) is left out: one table of bytes cannot hold two kernels.
constexpr MemoryName kMemoryNames[] = {{"copy", MemoryKernel::copy},       {"add", MemoryKernel::add},
                                       {"norm", MemoryKernel::norm},       {"cast", MemoryKernel::cast},
                                       {"permute", MemoryKernel::permute}, {"swiglu", MemoryKernel::activation},
                                       {"relu", MemoryKernel::activation}};

std::optional<KernelRow> gemm_row(const MeasuredPoint& p) {
  const auto gemm = measured_gemm(p);
  if (!gemm || gemm->pass != GemmPass::forward) return std::nullopt;
  KernelRow row;
  row.kind = KernelRowKind::gemm;
  row.type = gemm->type;
  row.gemm = *gemm;
  return row;
}

std::optional<KernelRow> memory_row(const MeasuredPoint& p) {
  for (const MemoryName& name : kMemoryNames) {
    if (p.kernel != name.measured || !(p.bytes > 0)) continue;
    KernelRow row;
    row.kind = KernelRowKind::memory;
    row.memory = name.kernel;
    row.bytes = p.bytes;
    return row;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Gemm> measured_gemm(const MeasuredPoint& p) {
  const auto type = type_of(p.word("dtype"));
  const std::string pass = p.word("pass");
  if (p.kernel != "gemm" || !type || p.state == "hot" || p.number("sm_target") > 0) return std::nullopt;
  Gemm g;
  g.m = static_cast<std::int64_t>(p.number("m"));
  g.n = static_cast<std::int64_t>(p.number("n"));
  g.k = static_cast<std::int64_t>(p.number("k"));
  g.type = *type;
  if (g.m < 1 || g.n < 1 || g.k < 1) return std::nullopt;
  if (pass == "forward") return g;
  g.pass = pass == "input-grad" ? GemmPass::input_grad : GemmPass::weight_grad;
  g.accumulate_fp32 = pass == "weight-grad";
  if (pass != "input-grad" && pass != "weight-grad") return std::nullopt;
  return g;
}

std::vector<KernelTables::PassFactor> measured_pass_factors(const MeasuringFile& file, const Gpu& gpu,
                                                            const KernelTables& tables) {
  auto forward_only = std::make_shared<KernelTables>(tables);
  forward_only->passes.clear();
  const KernelModel model(gpu, Rates::calibrated, forward_only);
  const bool host = gpu.name == "host-cpu";
  std::vector<double> input, weight;  // log of measured over the forward product of the same dimensions
  for (const MeasuredPoint& p : file.points) {
    const auto gemm = measured_gemm(p);
    // The widest type that was measured stands for all: backward products of narrow types add their casts.
    if (!gemm || gemm->pass == GemmPass::forward || p.flagged("throttled") || bytes_of(gemm->type) < 2) continue;
    const double ratio = (host ? p.time.mean : p.time.median) / model.gemm(*gemm).seconds;
    (gemm->pass == GemmPass::input_grad ? input : weight).push_back(std::log(ratio));
  }
  std::vector<KernelTables::PassFactor> out;
  const auto add = [&](const char* pass, const std::vector<double>& logs) {
    if (logs.size() < 5) return;
    out.push_back(
        {pass, std::exp(median(logs)), "measured: the middle of " + std::to_string(logs.size()) + " products"});
  };
  add("input_grad", input);
  add("weight_grad_fp32", weight);
  return out;
}

std::vector<CollectiveRow> measured_collective_rows(const MeasuringFile& file, const Gpu& gpu) {
  std::vector<CollectiveRow> rows;
  for (const MeasuredPoint& p : file.points) {
    const auto op = collective_of(p.kernel);
    if (!op || p.kernel == "all-to-allv" || p.flagged("throttled") || p.flagged("one-rank")) continue;
    CollectiveRow row;
    row.dataset = kMeasuredHere;
    row.gpu = gpu.name;
    row.op = p.kernel;
    row.dtype = p.word("dtype");
    row.ranks = static_cast<int>(p.number("ranks"));
    row.gpus_per_node = std::max(row.ranks, 1);
    row.bytes = p.bytes;
    row.seconds = p.time.median;
    if (row.ranks >= 2 && row.bytes > 0) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<KernelRow> measured_kernel_rows(const MeasuringFile& file, const Gpu& gpu) {
  const bool host = gpu.name == "host-cpu";
  std::vector<KernelRow> rows;
  for (std::size_t i = 0; i < file.points.size(); ++i) {
    const MeasuredPoint& p = file.points[i];
    if (p.flagged("throttled")) continue;
    auto row = p.kernel == "gemm" ? gemm_row(p) : memory_row(p);
    if (!row) continue;
    row->number = i + 1;
    row->gpu = gpu.name;
    row->library = p.kernel == "gemm" ? p.word("library") : "measured";
    row->source = "measured";
    row->version = "sha256 " + file.source_sha256.substr(0, 16);
    row->measured = host ? p.time.mean : p.time.median;
    rows.push_back(*row);
  }
  return rows;
}

}  // namespace shardplan
