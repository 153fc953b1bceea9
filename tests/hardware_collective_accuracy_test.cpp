// Measured collectives and DeepEP sweeps that had no part in the fit.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "base/csv.hpp"
#include "hardware/calibrate_collectives.hpp"
#include "hardware/calibrate_deepep.hpp"
#include "hardware/collective_tables.hpp"

using namespace shardplan;

namespace {

struct Error {
  double sum = 0;
  int n = 0, inside = 0;
  void add(double predicted, double measured, double low = 0, double high = 0) {
    sum += std::abs(predicted / measured - 1);
    inside += low <= measured && measured <= high;
    ++n;
  }
  double mean() const { return sum / n; }
  double coverage() const { return static_cast<double>(inside) / n; }
};

std::string facts_or_skip() {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) WARN("skipped: SHARDPLAN_FACTS is unset");
  return facts == nullptr ? "" : facts;
}

bool is_sweep(const CollectiveRow& r) { return r.dataset.rfind("aiconfigurator", 0) == 0; }
bool is_target_gpu(const CollectiveRow& r) {
  return r.gpu == "a100_sxm" || r.gpu == "h100_sxm" || r.gpu == "h200_sxm" || r.gpu == "b200_sxm";
}

/// Predicts the rows that `held` picks by a calibration on the others.
Error held_out(const std::vector<CollectiveRow>& rows, bool (*held)(const CollectiveRow&),
               const std::set<std::string>& ops) {
  std::vector<CollectiveRow> seen;
  for (const CollectiveRow& r : rows) {
    if (!held(r) && (is_sweep(r) && r.nodes == 1)) seen.push_back(r);
  }
  CollectiveCalibration start = *collective_calibration();
  for (CollectiveTable& t : start.tables) t.curves.clear();
  const auto c = std::make_shared<const CollectiveCalibration>(calibrate_collectives(seen, start));
  Error e;
  for (const CollectiveRow& r : rows) {
    if (!held(r) || !ops.contains(r.op) || r.bytes < (1 << 20)) continue;
    const NetworkModel m(cluster_of(r), Rates::calibrated, Fidelity::table, c);
    e.add(m.collective(*collective_of(r.op), r.bytes, shape_of(r, m.cluster()), *nccl_type(r.dtype)).price.seconds,
          r.seconds);
  }
  return e;
}

}  // namespace

TEST_CASE(
    "whole curves left out: in one domain within 8 %, small within 15 %, across nodes within 15 %, intervals hold 80 %",
    "[collectives][facts][measured][slow]") {
  const std::string facts = facts_or_skip();
  if (facts.empty()) return;
  const auto rows = read_collective_rows(CsvTable::read(facts + "/hardware/collectives.csv"));
  Error large, small, across;
  for (const LeftOutRow& l : leave_out_curves(rows, *collective_calibration())) {
    const CollectiveRow& r = rows[l.row];
    if (r.nodes > 1)
      across.add(l.seconds, r.seconds, l.low, l.high);
    else if (is_target_gpu(r))
      (r.bytes >= (1 << 20) ? large : small).add(l.seconds, r.seconds, l.low, l.high);
  }
  CHECK(large.n > 1500);
  CHECK(large.mean() < 0.08);
  CHECK(small.mean() < 0.15);
  CHECK(across.mean() < 0.15);
  for (const Error* e : {&large, &small, &across}) CHECK(e->coverage() == Approx(0.8).margin(0.05).epsilon(0));
}

TEST_CASE("eight GPUs from two and four, four from two and eight", "[collectives][facts][measured][slow]") {
  const std::string facts = facts_or_skip();
  if (facts.empty()) return;
  auto rows = read_collective_rows(CsvTable::read(facts + "/hardware/collectives.csv"));
  std::erase_if(rows, [](const CollectiveRow& r) { return !is_sweep(r) || !is_target_gpu(r); });
  const std::set<std::string> copying = {"all_gather", "reduce_scatter", "alltoall"};
  CHECK(held_out(rows, [](const CollectiveRow& r) { return r.ranks == 8; }, copying).mean() < 0.13);
  CHECK(held_out(rows, [](const CollectiveRow& r) { return r.ranks == 4; },
                 {"all_reduce", "all_gather", "reduce_scatter", "alltoall"})
            .mean() < 0.10);
}

TEST_CASE("DeepEP rows left out: normal within 6 %, low latency within 8 %", "[deepep][facts][measured][slow]") {
  const std::string facts = facts_or_skip();
  if (facts.empty()) return;
  for (const char* gpu : {"h100_sxm", "h200_sxm"}) {
    for (const auto& [kind, limit] : {std::pair("normal", 0.06), std::pair("ll", 0.08)}) {
      const auto rows = read_deepep_rows(CsvTable::read(facts + "/kernels/deepep_" + kind + "_" + gpu + ".csv"));
      const auto left = leave_out_deepep(rows, 5);
      Error e;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        e.add(left[i].dispatch, rows[i].dispatch_seconds);
        e.add(left[i].combine, rows[i].combine_seconds);
      }
      INFO(gpu << " " << kind);
      CHECK(e.mean() < limit);
    }
  }
}
