// Kernel rows: each is priced on its own GPU with its own library.
#include <algorithm>
#include <map>
#include <memory>

#include "base/errors.hpp"
#include "cli/validate.hpp"
#include "hardware/calibrate_kernels.hpp"

namespace shardplan {

namespace {

constexpr int kFolds = 5;

/// The families under which kernel rows are summed up: class, type and size, by GPU.
std::string family_of(const KernelRow& row) {
  const std::string type = std::string(data_type_name(row.type)) + " " + row.gpu;
  if (row.kind == KernelRowKind::gemm) {
    const bool large = std::min({row.gemm.m, row.gemm.n, row.gemm.k}) >= 512;
    return "gemm " + type + (large ? " >=512" : " small");
  }
  if (row.kind == KernelRowKind::attention) {
    return "attention " + row.library + " " + type + (row.attention.q_len >= 1024 ? " s>=1k" : " s<1k");
  }
  if (row.kind == KernelRowKind::memory) {
    const std::string kernel =
        row.unusable.empty() ? std::string(kMemoryKernelNames[static_cast<std::size_t>(row.memory)]) : "memory-bound";
    return kernel + " " + row.gpu + (row.bytes >= 1e6 ? " >=1MB" : " <1MB");
  }
  return std::string("experts ") + row.library + " " + type + (row.skew > 0 ? " skewed" : " balanced") +
         (row.tokens >= 1024 ? " >=1k" : " <1k");
}

class Models {
 public:
  /// The model of a GPU by its published name, or why there is none.
  const KernelModel* find(const std::string& gpu, std::string& reason) {
    auto [found, is_new] = models_.try_emplace(gpu);
    if (is_new) {
      try {
        found->second.model = std::make_unique<KernelModel>(load_cluster(gpu).gpu, Rates::calibrated);
      } catch (const InputError& error) {
        found->second.reason = "GPU " + gpu + ": " + error.what();
      }
    }
    reason = found->second.reason;
    return found->second.model.get();
  }

 private:
  struct Entry {
    std::unique_ptr<KernelModel> model;
    std::string reason;
  };
  std::map<std::string, Entry> models_;
};

}  // namespace

bool is_kernel_rows(const RowFile& file) { return file.csv && kernel_row_kind(*file.csv); }

namespace {

/// Rows of each GPU are predicted from tables fitted without their fold.
void predict_left_out(const std::vector<KernelRow>& rows, std::vector<ScoredRow>& scored) {
  std::map<std::string, std::vector<std::size_t>> by_gpu;
  for (std::size_t i = 0; i < rows.size(); ++i) by_gpu[rows[i].gpu].push_back(i);
  for (const auto& [gpu, members] : by_gpu) {
    std::vector<KernelRow> own;
    for (const std::size_t i : members) own.push_back(rows[i]);
    std::vector<Price> prices;
    std::string reason;
    try {
      prices = left_out_prices(own, load_cluster(gpu).gpu, kFolds);
    } catch (const InputError& error) {
      reason = error.where() + ": " + error.what();
    }
    for (std::size_t j = 0; j < members.size(); ++j) {
      ScoredRow& row = scored[members[j]];
      if (!row.skipped.empty()) continue;
      if (!reason.empty()) {
        row.skipped = reason;
      } else if (!(prices[j].seconds > 0)) {
        row.skipped = "no row of its table is left when its fold is taken out";
      } else {
        row.predicted_s = prices[j].seconds, row.low_s = prices[j].low, row.high_s = prices[j].high;
      }
    }
  }
}

void predict(const std::vector<KernelRow>& rows, std::vector<ScoredRow>& scored) {
  Models models;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ScoredRow& row = scored[i];
    if (!row.skipped.empty()) continue;
    const KernelModel* model = models.find(rows[i].gpu, row.skipped);
    if (model == nullptr) continue;
    try {
      const Price price = price_row(*model, rows[i]);
      row.predicted_s = price.seconds, row.low_s = price.low, row.high_s = price.high;
    } catch (const InputError& error) {
      row.skipped = error.where() + ": " + error.what();
    }
  }
}

}  // namespace

std::vector<ScoredRow> score_kernel_rows(const RowFile& file, const ScoreOptions& options) {
  const std::vector<KernelRow> rows = read_kernel_rows(*file.csv);
  std::vector<ScoredRow> scored(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    scored[i].id = std::to_string(rows[i].number);
    scored[i].family = family_of(rows[i]);
    scored[i].measured_s = rows[i].measured;
    scored[i].skipped = rows[i].unusable;
  }
  if (options.leave_out) {
    predict_left_out(rows, scored);
  } else {
    predict(rows, scored);
  }
  return scored;
}

}  // namespace shardplan
