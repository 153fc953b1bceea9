#pragma once
// Which table answers for which GPU, data type and library, and what is transferred where there is none.
#include <array>
#include <memory>

#include "hardware/kernel_price.hpp"
#include "hardware/kernel_shapes.hpp"

namespace shardplan {

/// Dense FLOP/s of a type, or of the one that stands in for it (BF16 before Ampere: FP16; scaled FP8: FP8); 0 = none.
double peak_of(const Gpu&, DataType);

/// Rules of transfer, in order: the GPU's own table of that type; its own table of a neighbouring type; its sibling's
/// table of the same type; a neighbouring type there; the built-in GPU that has the class at all. Times move by the
/// ratio of the fitted forms, which carries peak FLOP/s and HBM bytes/s of both GPUs.
class KernelChoice {
 public:
  /// `tables`: used in place of the built-in ones of this GPU; null = built-in.
  explicit KernelChoice(const Gpu& gpu, std::shared_ptr<const KernelTables> tables = nullptr);

  const ChosenTable& gemm(DataType) const;
  ChosenTable attention(const AttentionShape&) const;
  ChosenTable attention_backward(const AttentionShape&) const;
  /// Of the family whose hidden size, experts' width and rows are nearest to the layer.
  ChosenTable experts(DataType, std::string_view build, const ExpertFeatures&) const;
  const ChosenTable& memory(MemoryKernel) const;
  double pass_factor(const Gemm&) const;
  double grouped_pass_factor(const GroupedGemm&) const;
  double alignment_factor(const Gemm&) const;
  const KernelTables::Sustained* sustained(DataType) const;
  double launch_floor() const;
  /// Peak and bandwidth of the datasheet; InputError where the GPU has no such arithmetic.
  KernelRates datasheet(DataType) const;

 private:
  double factor(std::string_view name) const;
  ChosenTable find(KernelClass, DataType, std::string_view library = {}, std::string_view variant = {},
                   std::optional<DataType> kv = {}) const;
  ChosenTable from(const KernelTables&, const KernelTable*, DataType asked) const;

  const Gpu* gpu_;
  const KernelTables* own_ = nullptr;         // measured on this GPU
  const KernelTables* sibling_ = nullptr;     // transferred from
  std::shared_ptr<const KernelTables> read_;  // of a file that the GPU names, or given
  KernelTable generic_;                       // a datasheet and ordinary fractions
  KernelTable generic_backward_;              // attention backward over forward: the ratio of their FLOPs
  std::array<ChosenTable, kDataTypeNames.size()> gemm_{};
  std::array<ChosenTable, kMemoryKernelNames.size()> memory_{};
};

}  // namespace shardplan
