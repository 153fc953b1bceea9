// Kernel rows: each is priced on its own GPU with its own library.
#include <algorithm>
#include <map>
#include <memory>

#include "base/errors.hpp"
#include "cli/validate.hpp"
#include "hardware/kernel_rows.hpp"

namespace shardplan {

namespace {

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
  return std::string("experts ") + row.library + " " + type + (row.skew > 0 ? " skewed" : " balanced") +
         (row.tokens >= 1024 ? " >=1k" : " <1k");
}

Price price_of(const KernelModel& model, const KernelRow& row) {
  switch (row.kind) {
    case KernelRowKind::gemm:
      return model.gemm(row.gemm);
    case KernelRowKind::attention: {
      AttentionShape shape = row.attention;
      shape.build = row.library;
      return model.attention(shape);
    }
    case KernelRowKind::experts:
      break;
  }
  const std::vector<std::int64_t> sizes = timed_group_sizes(row);
  return model.expert_layer(expert_layer(row, sizes));
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

std::vector<ScoredRow> score_kernel_rows(const RowFile& file, const ScoreOptions&) {
  Models models;
  std::vector<ScoredRow> out;
  for (const KernelRow& row : read_kernel_rows(*file.csv)) {
    ScoredRow scored;
    scored.id = std::to_string(row.number);
    scored.family = family_of(row);
    scored.measured_s = row.measured;
    if (const KernelModel* model = models.find(row.gpu, scored.skipped)) {
      try {
        const Price price = price_of(*model, row);
        scored.predicted_s = price.seconds;
        scored.low_s = price.low;
        scored.high_s = price.high;
      } catch (const InputError& error) {
        scored.skipped = error.where() + ": " + error.what();
      }
    }
    out.push_back(std::move(scored));
  }
  return out;
}

}  // namespace shardplan
