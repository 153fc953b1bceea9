#pragma once
// Calibration tables of kernels: one file a GPU, one table per kernel class, data type and library.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/basis.hpp"
#include "hardware/cluster.hpp"
#include "hardware/kernel_form.hpp"
#include "hardware/kernel_grid.hpp"

namespace shardplan {

enum class KernelClass { gemm, attention, attention_backward, experts, memory };
inline constexpr std::array<std::string_view, 5> kKernelClassNames = {"gemm", "attention", "attention-backward",
                                                                      "experts", "memory"};

/// Factors on a prediction that hold 80 % of left-out rows of this size: low = seconds * low, high = seconds * high.
/// Bands are ascending in `up_to` (predicted seconds); the last holds for everything longer.
struct ErrorBand {
  double up_to = 0;
  double low = 1;
  double high = 1;
};

/// Error on rows left out of the fit, as the table's maker found it.
struct LeftOut {
  int n = 0;
  double mape = 0;         // fraction
  double coverage_80 = 0;  // share of rows within the stated interval
};

struct KernelTable {
  KernelClass kernel = KernelClass::gemm;
  std::string variant;  // memory: the MemoryKernel's name
  DataType type = DataType::bf16;
  DataType kv_type = DataType::bf16;  // attention: of the cached K and V
  std::string library;                // as the source names it: "trtllm", "fa3-vllm"
  std::string source;                 // begins with "assumed" where nobody published a measurement
  std::string date;
  bool assumed() const { return source.rfind("assumed", 0) == 0; }
  KernelRates rates;  // peak and bandwidth of the GPU that was measured
  RooflineForm form;
  LogGrid grid;         // log seconds, or log of measured over form; empty = form alone
  bool ratios = false;  // which of the two
  double scale = 1;     // times the grid and the form (attention-backward: over forward)
  std::vector<ErrorBand> bands;
  LeftOut left_out;
};

/// All tables of one GPU.
struct KernelTables {
  std::string name;            // "h100-sxm"
  double launch_floor = 3e-6;  // seconds from one kernel to the next inside a CUDA graph
  std::string launch_source;
  struct Sustained {
    DataType type;
    double fraction;
    std::string source;
  };
  std::vector<Sustained> sustained;
  struct PassFactor {  // time of a backward product over the forward one of the same shape
    std::string pass;  // input_grad | weight_grad | weight_grad_fp32
    double factor;
    std::string source;
  };
  std::vector<PassFactor> passes;
  struct Alignment {  // time factor where a contiguous dimension of an operand is no multiple of `bytes`
    double bytes;
    double factor;
    std::string source;
    double batched = 0;  // of strided batched products (attention without a fused kernel); 0 = `factor`
  };
  std::vector<Alignment> alignments;
  std::vector<KernelTable> tables;

  const KernelTable* find(KernelClass, DataType type, std::string_view library = {}, std::string_view variant = {},
                          std::optional<DataType> kv = {}) const;
};

/// Parses a table file; InputError with the place.
KernelTables parse_kernel_tables(std::string_view text, const std::string& name);
/// The same as text, numbers at the precision that the fit deserves.
std::string kernel_tables_text(const KernelTables&);
/// The built-in tables of that calibration name, or nothing.
const KernelTables* builtin_kernel_tables(std::string_view calibration);
std::vector<std::string> builtin_kernel_table_names();
/// Published figures of a GPU that its tables are made with: floors, factors, forms of classes that nobody measured in
/// rows.
const KernelTables* published_kernel_figures(std::string_view gpu);

DataType parse_data_type(std::string_view text, const std::string& where);

}  // namespace shardplan
