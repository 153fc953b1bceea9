// nccl-tests logs: each layout that the tool and its launchers have written, and what must be flagged or refused.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/csv.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/import_nccl.hpp"

using namespace shardplan;

namespace {

bool has_flag(const NcclTestsLog& log, const std::string& part) {
  for (const std::string& f : log.flags) {
    if (f.find(part) != std::string::npos) return true;
  }
  return false;
}

// Times are made up; bandwidths follow from them for 16 ranks: busbw = 1.875 algbw.
const char* const kModern =
    R"(# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid    100 on    alpha-0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    101 on    alpha-1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
NCCL version 2.26.2+cuda12.8
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    50.00   20.97   20.97      0    51.00   20.56   20.56    N/A
     2097152        524288     float     sum      -1    80.00   26.21   26.21      0    81.00   25.89   25.89      0
     4194304       1048576     float     sum      -1    140.0   29.96   29.96      0    141.0   29.75   29.75      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 25.5
)";

}  // namespace

TEST_CASE("the layout since 2.12: header, version, root column, both halves", "[import_nccl]") {
  const NcclTestsLog log = import_nccl_tests(kModern, "x/all_reduce.log");
  CHECK(log.refused.empty());
  REQUIRE(log.rows.size() == 3);
  CHECK(log.rows[2].bytes == 4194304);
  CHECK(log.rows[2].type == "float");
  CHECK(log.rows[0].out_of_place->seconds == Approx(50e-6).epsilon(1e-12));
  CHECK_FALSE(log.rows[0].in_place->wrong.has_value());  // N/A
  CHECK(log.gpu == "NVIDIA H100 80GB HBM3");
  CHECK(log.nccl == "2.26.2");
  CHECK(log.header_ranks == 2);
  CHECK(log.header_nodes == 2);
  CHECK(log.table_ranks == 2);  // busbw = algbw: an all-reduce of two
  CHECK(log.complete);
  const auto rows = collective_rows(log, {"", "", "IB NDR 8x400G", 0, 0, 8});
  REQUIRE(rows.size() == 6);
  CHECK(rows[0].nodes == 2);
  CHECK(cluster_of(rows[0]).node.nic_bytes_per_second.value == Approx(50e9).epsilon(1e-12));
}

TEST_CASE("prefixes of mpirun and srun, NCCL INFO lines between, markdown cells and set-apart thousands",
          "[import_nccl]") {
  const char* const mpi =
      "[1,0]<stdout>:node:25:86 [0] NCCL INFO NET/OFI Setting something to 1\n"
      "[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong     time   "
      "algbw   busbw #wrong\n"
      "[1,0]<stdout>:    67108864      16777216     float     sum      -1    400.0  167.77  314.57      0    400.0  "
      "167.77  314.57      0   \n"
      "[1,0]<stdout>:   134217728      33554432     float     sum      -1    700.0  191.74  359.51      0    700.0  "
      "191.74  359.51      0\n";
  const char* const srun =
      "0:     67108864      16777216     float     sum      -1    400.0  167.77  314.57      0    400.0  167.77  "
      "314.57      0\n"
      "0:    134217728      33554432     float     sum      -1    700.0  191.74  359.51      0    700.0  191.74  "
      "359.51      0\n";
  const char* const markdown =
      "| 67_108_864 | 16_777_216 | float | sum | -1 | 400.0 | 167.77 | 314.57 | 0 | 400.0 | 167.77 | 314.57 | 0 |\n"
      "| 134_217_728 | 33_554_432 | float | sum | -1 | 700.0 | 191.74 | 359.51 | 0 | 700.0 | 191.74 | 359.51 | 0 |\n";
  for (const char* text : {mpi, srun, markdown}) {
    const NcclTestsLog log = import_nccl_tests(text, "all_reduce.log");
    INFO(text);
    REQUIRE(log.rows.size() == 2);
    CHECK(log.rows[1].bytes == 134217728);
    CHECK(log.rows[1].in_place.has_value());
    CHECK(log.op == "all_reduce");
    CHECK(log.table_ranks == 16);
    CHECK(log.refused.empty());
  }
}

TEST_CASE("the layout before 2.12: no root column, the error instead of a count", "[import_nccl]") {
  const NcclTestsLog log = import_nccl_tests(
      "#   Rank  0 Pid     25 on host-0 device  0 [0x10] A100-SXM4-40GB\n"
      "   268435456      67108864   float     sum   1500.0  178.96  313.17  5e-07   1510.0  177.77  311.10  1e-07\n",
      "all_reduce.log");
  REQUIRE(log.rows.size() == 1);
  CHECK(log.rows[0].unused.empty());  // an error of 5e-07 is no count of wrong elements
  CHECK(log.rows[0].in_place->seconds == Approx(1510e-6).epsilon(1e-12));
  CHECK(log.gpu == "A100-SXM4-40GB");
  CHECK(log.table_ranks == 8);
}

TEST_CASE("per-iteration columns and a time stamp stand behind each half", "[import_nccl]") {
  const NcclTestsLog log = import_nccl_tests(
      "# nccl-tests version 2.18.0 nccl-headers=23007 nccl-library=23007\n# Collective test starting: all_gather_perf\n"
      "   268435456      16777216      half    none      -1   750.0  357.91  313.17      0   740.0   790.0   789.0    "
      "1.20"
      "   760.0  353.20  309.05      0   750.0   800.0   799.0    1.30\n",
      "x.log");
  REQUIRE(log.rows.size() == 1);
  CHECK(log.op == "all_gather");
  CHECK(log.nccl == "2.30.7");
  CHECK(log.rows[0].out_of_place->seconds == Approx(750e-6).epsilon(1e-12));
  CHECK(log.rows[0].in_place->seconds == Approx(760e-6).epsilon(1e-12));
  CHECK(log.table_ranks == 8);
}

TEST_CASE("the report of -J", "[import_nccl]") {
  const NcclTestsLog log = import_nccl_tests(R"({"version": 1, "args": ["./build/alltoall_perf", "-J", "out.json"],
    "config": {"nthreads": 1, "ngpus": 1, "maximum_bytes": 268435456, "devices": [
      {"rank": 0, "group": 0, "pid": 7, "hostname": "a", "device": 0, "device_hex": "0000:1b:00", "device_info": "NVIDIA H100 80GB HBM3"},
      {"rank": 1, "group": 0, "pid": 8, "hostname": "a", "device": 1, "device_hex": "0000:2b:00", "device_info": "NVIDIA H100 80GB HBM3"}]},
    "results": [{"size": 268435456, "count": 67108864, "type": "float", "redop": "none", "root": "    -1",
      "out_of_place": {"time": 500.0, "alg_bw": 536.87, "bus_bw": 268.44, "nwrong": 0},
      "in_place": {"time": 510.0, "alg_bw": 526.34, "bus_bw": 263.17, "nwrong": null}, "actual_iterations": 20}],
    "out_of_bounds": {"count": 0, "okay": true}})",
                                             "out.json");
  REQUIRE(log.rows.size() == 1);
  CHECK(log.op == "alltoall");
  CHECK(log.header_ranks == 2);
  CHECK(log.table_ranks == 2);
  CHECK(log.complete);
  CHECK(log.refused.empty());
  CHECK_THROWS_AS(import_nccl_tests("{\"results\": [", "broken.json"), InputError);
}

TEST_CASE("a header that does not belong to its table is flagged, and the table's ranks are taken", "[import_nccl]") {
  const NcclTestsLog log = import_nccl_tests(
      "#  Rank 143 Group  0 Pid  14840 on rack-7 device  3 [0x01] NVIDIA Graphics Device\n"
      "  4294967296    1073741824     float     sum      -1    11000  390.45  774.80      0    11000  390.45  774.80   "
      "   0\n"
      "  8589934592    2147483648     float     sum      -1    21000  409.04  811.70      0    21000  409.04  811.70   "
      "   0\n",
      "all_reduce.log");
  CHECK(log.header_ranks == 144);
  CHECK(log.table_ranks == 128);  // 2 x 127 / 128 = 1.9844
  CHECK(log.ranks() == 128);
  CHECK(has_flag(log, "do not belong together"));
  CHECK(has_flag(log, "1 of 144 ranks"));
}

TEST_CASE("what cannot be true is refused, what is odd is not used", "[import_nccl]") {
  // 1,400 GB/s over NVLink: a copy inside the GPU.
  const NcclTestsLog fast = import_nccl_tests(
      "  1073741824     536870912  bfloat16     sum      -1    763.8  1405.86  1405.86      0     1.40  769156.03  "
      "769156.03    N/A\n",
      "sendrecv.log");
  CHECK(fast.refused.find("above what the links carry") != std::string::npos);
  CHECK(collective_rows(fast, {}).empty());
  // Eight GPUs of 300 GB/s cannot show 400, those of 450 can.
  const std::string row =
      "  1073741824     536870912      half     sum      -1   4698.0  228.55  399.97      0   4698.0  228.55  399.97   "
      "   0\n";
  CHECK_FALSE(import_nccl_tests(row, "all_reduce.log", {"", "A100-SXM-80GB", "", 0, 0, 8}).refused.empty());
  CHECK(import_nccl_tests(row, "all_reduce.log", {"", "H100-SXM", "", 0, 0, 8}).refused.empty());
  // Bandwidths of another unit.
  CHECK_FALSE(import_nccl_tests("  1073741824     536870912      half     sum      -1   4698.0  22.85  39.97      0\n",
                                "all_reduce.log")
                  .refused.empty());
  // No rows at all.
  CHECK(import_nccl_tests("# Using devices\n", "all_reduce.log").refused == "holds no rows of results");
  // Wrong results, size 0, and a first call that still warms up.
  const NcclTestsLog odd = import_nccl_tests(
      "           0             0     float     sum      -1    15.51    0.00    0.00      0    15.40    0.00    0.00   "
      "   0\n"
      "        1024           256     float     sum      -1   680.00    0.00    0.00      0    24.00    0.04    0.07   "
      "   0\n"
      "        2048           512     float     sum      -1    25.00    0.08    0.14      0    24.00    0.09    0.15   "
      "   0\n"
      "    67108864      16777216     float     sum      -1    400.0  167.77  293.60     12    400.0  167.77  293.60   "
      "   0\n"
      "   134217728      33554432     float     sum      -1    700.0  191.74  335.54      0    700.0  191.74  335.54   "
      "   0\n",
      "all_reduce.log");
  REQUIRE(odd.rows.size() == 5);
  CHECK(odd.rows[0].unused == "size 0");
  CHECK(odd.rows[1].unused.find("times as long") != std::string::npos);
  CHECK(odd.rows[2].unused.empty());
  CHECK(odd.rows[3].unused == "wrong results");
  CHECK(collective_rows(odd, {}).size() == 4);
  CHECK(odd.table_ranks == 8);
}

TEST_CASE("rows survive their own CSV", "[import_nccl]") {
  const auto rows = collective_rows(import_nccl_tests(kModern, "all_reduce, \"b\".log"), {});
  const auto back = read_collective_rows(CsvTable::parse(csv_of(rows, "here"), "rows.csv"));
  REQUIRE(rows.size() == 6);
  REQUIRE(back.size() == 6);
  CHECK(back[3].seconds == Approx(rows[3].seconds).epsilon(1e-5));
  CHECK(back[3].dataset == "all_reduce, \"b\".log");
  CHECK(back[3].ranks == 2);
}

TEST_CASE("any text at all is answered, never a crash", "[import_nccl]") {
  for (const char* text :
       {"", "\n\n", "1 2 float", "1 2 float sum -1 x y z", "[1,0]<stdout>:", "| | |", "Rank Rank on on device",
        "999999999999999999999999 1 float sum -1 1 1 1 0", "# Rank 9999999999 on x device 0 [1] G"}) {
    CHECK_FALSE(import_nccl_tests(text, "x").refused.empty());
  }
}

TEST_CASE("published logs are imported or refused as their quirks call for", "[import_nccl][facts]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    WARN("skipped: SHARDPLAN_FACTS is unset");
    return;
  }
  const std::string folder = std::string(facts) + "/logs/nccl-tests/";
  const Field index = Field::read(folder + "INDEX.json").at("logs");
  REQUIRE(index.size() == 19);
  for (std::size_t i = 0; i < index.size(); ++i) {
    const Field entry = index.item(i);
    const std::string file = entry.at("file").text();
    const NcclTestsLog log = import_nccl_tests(read_text_file(folder + file), file);
    INFO(file << " " << log.refused);
    const std::int64_t rows = entry.at("rows").count();
    if (rows == 0) {
      CHECK_FALSE(log.refused.empty());
      continue;
    }
    CHECK(log.refused.empty());
    CHECK(static_cast<std::int64_t>(log.rows.size()) == rows);
    if (const auto op = entry.find("op")) CHECK(collective_of(log.op) == collective_of(op->text()));
    if (const auto ratio = entry.find("ranks_from_ratio"))
      CHECK(log.table_ranks == Approx(ratio->number()).epsilon(0.005));
  }
}
