#include "hardware/measure/measured_rows.hpp"

#include <optional>

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
constexpr MemoryName kMemoryNames[] = {{"copy", MemoryKernel::copy},       {"add", MemoryKernel::add},
                                       {"norm", MemoryKernel::norm},       {"cast", MemoryKernel::cast},
                                       {"permute", MemoryKernel::permute}, {"swiglu", MemoryKernel::activation},
                                       {"relu", MemoryKernel::activation}};

std::optional<KernelRow> gemm_row(const MeasuredPoint& p) {
  const auto type = type_of(p.word("dtype"));
  if (!type || p.word("pass") != "forward" || p.state == "hot" || p.number("sm_target") > 0) return std::nullopt;
  KernelRow row;
  row.kind = KernelRowKind::gemm;
  row.type = *type;
  row.gemm.m = static_cast<std::int64_t>(p.number("m"));
  row.gemm.n = static_cast<std::int64_t>(p.number("n"));
  row.gemm.k = static_cast<std::int64_t>(p.number("k"));
  row.gemm.type = *type;
  if (row.gemm.m < 1 || row.gemm.n < 1 || row.gemm.k < 1) return std::nullopt;
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
