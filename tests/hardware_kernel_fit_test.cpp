// Making tables from rows: a known law comes back, files round-trip, rows left out of the fit are met.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "base/csv.hpp"
#include "base/errors.hpp"
#include "base/random.hpp"
#include "hardware/calibrate_kernels.hpp"
#include "hardware/kernel_fit.hpp"
#include "hardware/kernel_shapes.hpp"

namespace shardplan {
namespace {

/// Rows of a made-up GPU that follows the form exactly, times a smooth bump in n.
std::vector<KernelRow> made_up_rows(double noise) {
  const Gpu gpu = load_cluster("h100-sxm").gpu;
  const RooflineForm form{0.7, 0.8, 5e-6, 3};
  Random random(3);
  std::vector<KernelRow> rows;
  for (const double m : {64, 512, 4096, 16384}) {
    for (const double n : {1024, 2048, 4096, 8192, 16384}) {
      for (const double k : {1024, 4096, 16384}) {
        KernelRow row;
        row.number = rows.size() + 1;
        row.gpu = "h100_sxm", row.library = "made-up", row.source = "made up";
        row.gemm.m = std::int64_t(m), row.gemm.n = std::int64_t(n), row.gemm.k = std::int64_t(k);
        const double bump = 1 + 0.1 * std::sin(std::log(n));
        row.measured = form.seconds(gemm_work(row.gemm), {gpu.peak(DataType::bf16), gpu.hbm_bytes_per_second.value}) *
                       bump * (1 + noise * random.normal());
        rows.push_back(row);
      }
    }
  }
  return rows;
}

TEST_CASE("Rows of a known law give tables that meet them", "[kernels][fit]") {
  const Gpu gpu = load_cluster("h100-sxm").gpu;
  const std::vector<KernelRow> rows = made_up_rows(0);
  auto tables = std::make_shared<KernelTables>();
  tables->name = gpu.name;
  tables->tables = tables_from_rows(rows, gpu, {});
  REQUIRE(tables->tables.size() == 1);
  const KernelModel model(gpu, Rates::calibrated, tables);
  for (const KernelRow& row : rows) CHECK(price_row(model, row).seconds == Approx(row.measured).epsilon(0.02));
}

TEST_CASE("Intervals hold about 80 percent of rows left out, whatever the noise", "[kernels][fit]") {
  const Gpu gpu = load_cluster("h100-sxm").gpu;
  for (const double noise : {0.02, 0.1}) {
    const std::vector<KernelRow> rows = made_up_rows(noise);
    const std::vector<Price> prices = left_out_prices(rows, gpu, 5);
    int inside = 0;
    double width = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      inside += prices[i].low <= rows[i].measured && rows[i].measured <= prices[i].high;
      width += std::log(prices[i].high / prices[i].low) / double(rows.size());
    }
    CHECK(inside >= 0.65 * double(rows.size()));
    CHECK(inside <= 0.95 * double(rows.size()));
    CHECK(width > 1.5 * noise);
    CHECK(width < 6 * noise);
  }
}

TEST_CASE("A table file reads back as it was written", "[kernels][fit]") {
  for (const std::string& name : builtin_kernel_table_names()) {
    const std::string text = kernel_tables_text(*builtin_kernel_tables(name));
    CHECK(kernel_tables_text(parse_kernel_tables(text, name)) == text);
  }
}

TEST_CASE("Every built-in table has its source and date", "[kernels][fit]") {
  REQUIRE(builtin_kernel_table_names().size() == 4);
  for (const std::string& name : builtin_kernel_table_names()) {
    for (const KernelTable& table : builtin_kernel_tables(name)->tables) {
      CHECK(!table.source.empty());
      CHECK(!table.date.empty());
      CHECK(!table.bands.empty());
    }
  }
}

TEST_CASE("Damaged table files are refused with their place", "[kernels][fit]") {
  const std::string text = kernel_tables_text(*builtin_kernel_tables("h200-sxm"));
  const auto damaged = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    out.replace(out.find(from), from.size(), to);
    return out;
  };
  CHECK_THROWS_AS(parse_kernel_tables(damaged("shardplan-kernels/1", "shardplan-kernels/9"), "t"), InputError);
  CHECK_THROWS_AS(parse_kernel_tables(damaged("\"gemm\"", "\"gem\""), "t"), InputError);
  CHECK_THROWS_AS(parse_kernel_tables(damaged("\"library\"", "\"libary\""), "t"), InputError);
  CHECK_THROWS_AS(parse_kernel_tables(damaged("\"microseconds\": [", "\"microseconds\": [1.0,"), "t"), InputError);
}

TEST_CASE("Skewed loads follow the law they were measured with", "[kernels][fit]") {
  // 128 experts over 8 ranks: hottest over mean 1.66 and 1.95 (means over draws of the published law).
  KernelRow row;
  row.kind = KernelRowKind::experts;
  row.tokens = 4096, row.top_k = 8, row.experts = 128, row.ep = 8, row.hidden = 4096, row.inter = 1536;
  const auto hottest_over_mean = [&] {
    const auto sizes = timed_group_sizes(row);
    return double(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})) /
           (double(row.tokens * row.top_k) / double(row.ep));
  };
  CHECK(hottest_over_mean() == Approx(1).epsilon(1e-9));
  row.skew = 1.01;
  CHECK(hottest_over_mean() == Approx(1.66).epsilon(0.06));
  row.skew = 1.2;
  CHECK(hottest_over_mean() == Approx(1.95).epsilon(0.06));
}

TEST_CASE("Measured products left out of the fit are met within 3.8 percent on H100", "[kernels][measured]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    std::puts("skipped: SHARDPLAN_FACTS is unset");
    return;
  }
  std::vector<KernelRow> rows;
  for (const KernelRow& row : read_kernel_rows(CsvTable::read(std::string(facts) + "/kernels/gemm_shapes.csv"))) {
    if (row.gpu == "h100_sxm" && row.type == DataType::bf16) rows.push_back(row);
  }
  const std::vector<Price> prices = left_out_prices(rows, load_cluster("h100-sxm").gpu, 5);
  double error = 0;
  int n = 0, inside = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Gemm& g = rows[i].gemm;
    if (std::min({g.m, g.n, g.k}) < 512) continue;
    error += std::abs(prices[i].seconds / rows[i].measured - 1);
    inside += prices[i].low <= rows[i].measured && rows[i].measured <= prices[i].high;
    ++n;
  }
  REQUIRE(n > 200);
  CHECK(error / n < 0.038);
  CHECK(double(inside) / n == Approx(0.8).margin(0.05));
}

}  // namespace
}  // namespace shardplan
