#pragma once
// Makes kernel tables from measured rows: the built-in tables are its output, and a user's own measurements give the
// same kind.
#include <string>
#include <vector>

#include "hardware/kernel_rows.hpp"
#include "hardware/kernel_tables.hpp"

namespace shardplan {

class CsvTable;

struct KernelCalibration {
  int folds = 5;     // of the left-out error behind intervals; 0 = none (then 20 % intervals)
  std::string date;  // of the measurements, as text
};

/// Tables from rows of one GPU: one per class, type, KV type and library. Rows of other GPUs are not used.
std::vector<KernelTable> tables_from_rows(const std::vector<KernelRow>& rows, const Gpu& gpu,
                                          const KernelCalibration& how);

/// The built-in tables of that GPU (launch floor, factors and tables of what the rows lack) with those made from the
/// rows in their place. kernel_tables_text() writes them; a GPU file's `calibration` may name the file.
KernelTables calibrate_kernels(const std::vector<KernelRow>& rows, const Gpu& gpu, const KernelCalibration& how);

/// Each row of one GPU priced from tables made of the rows of the other folds (by shape), by the whole procedure,
/// intervals included; seconds = 0 where the row is unusable or its table has no other rows.
std::vector<Price> left_out_prices(const std::vector<KernelRow>& rows, const Gpu& gpu, int folds);

/// Which of `folds` a row's shape falls into, by a hash of its shape: equal shapes of other libraries and GPUs fall
/// together.
std::uint64_t shape_hash(const KernelRow& row);

}  // namespace shardplan
