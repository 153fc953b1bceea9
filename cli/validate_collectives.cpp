// Collective rows: each is priced on the GPU and fabric that the row names.
#include <map>
#include <memory>

#include "base/errors.hpp"
#include "cli/validate.hpp"
#include "hardware/calibrate_collectives.hpp"
#include "hardware/collective_rows.hpp"

namespace shardplan {

namespace {

constexpr double kLargeBytes = 1 << 20;

std::string family_of(const CollectiveRow& row) {
  if (row.nodes > 1) return "across nodes " + row.op;
  const std::string source = row.dataset.rfind("aiconfigurator", 0) == 0 ? "" : " other sources";
  return row.gpu + " one node" + source + (row.bytes >= kLargeBytes ? " >= 1 MB" : " small");
}

/// Models by GPU and fabric.
class Networks {
 public:
  const NetworkModel& of(const CollectiveRow& row) {
    const std::string key = row.gpu + "|" + (row.nodes > 1 ? row.net : "") + "|" + std::to_string(row.gpus_per_node);
    auto& model = models_[key];
    if (!model) model = std::make_unique<NetworkModel>(cluster_of(row), Rates::calibrated, Fidelity::table);
    return *model;
  }

 private:
  std::map<std::string, std::unique_ptr<NetworkModel>> models_;
};

/// Why a row cannot be asked, or "".
std::string unasked(const CollectiveRow& row) {
  if (!collective_of(row.op)) return "collective \"" + row.op + "\" is not modelled";
  if (!nccl_type(row.dtype)) return "data type \"" + row.dtype + "\" is not known";
  if (row.ranks < 2) return "fewer than two ranks";
  if (!(row.bytes > 0)) return "no bytes";
  return "";
}

void predict(Networks& networks, const CollectiveRow& row, ScoredRow& scored) {
  scored.skipped = unasked(row);
  if (!scored.skipped.empty()) return;
  try {
    const NetworkModel& model = networks.of(row);
    const Price p = model
                        .collective(*collective_of(row.op), row.bytes, shape_of(row, model.cluster()),
                                    *nccl_type(row.dtype), settings_of(row))
                        .price;
    scored.predicted_s = p.seconds;
    scored.low_s = p.low;
    scored.high_s = p.high;
  } catch (const InputError& error) {
    scored.skipped = error.what();
  }
}

}  // namespace

bool is_collective_rows(const RowFile& file) {
  return file.csv && file.csv->has("op") && file.csv->has("ranks") && file.csv->has("bytes") &&
         file.csv->has("time_us");
}

std::vector<ScoredRow> score_collective_rows(const RowFile& file, const ScoreOptions& options) {
  const std::vector<CollectiveRow> rows = read_collective_rows(*file.csv);
  std::map<std::size_t, LeftOutRow> left_out;
  if (options.leave_out) {
    for (const LeftOutRow& l : leave_out_curves(rows, *collective_calibration())) left_out[l.row] = l;
  }
  Networks networks;
  std::vector<ScoredRow> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ScoredRow scored;
    scored.id = std::to_string(i + 1);
    scored.family = family_of(rows[i]);
    scored.measured_s = rows[i].seconds;
    if (const auto at = left_out.find(i); at != left_out.end()) {
      scored.predicted_s = at->second.seconds;
      scored.low_s = at->second.low;
      scored.high_s = at->second.high;
    } else {
      predict(networks, rows[i], scored);
      if (options.leave_out && scored.skipped.empty()) scored.note = "no part of a curve that can be left out";
    }
    out.push_back(std::move(scored));
  }
  return out;
}

}  // namespace shardplan
