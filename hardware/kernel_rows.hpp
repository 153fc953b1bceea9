#pragma once
// Measured kernels as rows: read from CSV, used to make tables and to score predictions.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hardware/kernels.hpp"

namespace shardplan {

class CsvTable;

enum class KernelRowKind { gemm, attention, experts, memory };

/// One measured kernel; which members hold is told by `kind`.
struct KernelRow {
  KernelRowKind kind = KernelRowKind::gemm;
  std::size_t number = 0;  // of the row in its file, the first after the header being 1
  std::string gpu;         // as the file writes it
  std::string library;     // name of its table
  std::string source, version;
  DataType type = DataType::bf16;
  double measured = 0;  // seconds
  double peak = 0;      // dense peak FLOP/s that the file states for the type; 0 = not stated
  Gemm gemm;
  AttentionShape attention;  // its build points nowhere: use `library`
  // experts
  std::int64_t tokens = 0, hidden = 0, inter = 0, top_k = 0, experts = 0, tp = 1, ep = 1;
  double skew = 0;  // exponent of the power law, 0 = balanced
  MemoryKernel memory = MemoryKernel::copy;
  double bytes = 0;      // read and written
  std::string unusable;  // why the row cannot be priced or fitted; empty = it can
};

/// Whether a file's name for a GPU is that GPU.
bool is_gpu_name(const std::string& published, const std::string& gpu);
/// What the header tells, or nothing where no kind of kernel row has it.
std::optional<KernelRowKind> kernel_row_kind(const CsvTable&);
std::vector<KernelRow> read_kernel_rows(const CsvTable&);

/// Tokens of each local expert of the rank that is timed. Balanced: every expert gets tokens top_k / experts, rounded
/// so that sums hold. Skewed: each expert's load is drawn by inverse CDF of density x^-a on [1, 0.8 tokens] and
/// normalised to tokens top_k (on [0.01, 2] where there are fewer pairs than experts); contiguous experts form a rank;
/// the hottest rank is timed: here of the draw with the median hottest load out of 61 (fixed seed), since the measured
/// draw is not published.
std::vector<std::int64_t> timed_group_sizes(const KernelRow&);
/// The row as the layer that was timed, its group sizes in `sizes`.
ExpertLayer expert_layer(const KernelRow&, const std::vector<std::int64_t>& sizes);
/// The row's kernel with the row's own library. InputError where the model has no such table or type.
Price price_row(const KernelModel&, const KernelRow&);

}  // namespace shardplan
