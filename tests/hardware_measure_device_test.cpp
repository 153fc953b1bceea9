#include <catch2/catch.hpp>
#include <filesystem>

#include "base/field.hpp"
#include "hardware/collective_rows.hpp"
#include "hardware/kernels.hpp"
#include "hardware/measure/calibrate.hpp"
#include "hardware/measure/device_compare.hpp"

using namespace shardplan;

TEST_CASE("measured kernels of a GPU are set against its calibration, throttled ones left out") {
  const Cluster cluster = load_cluster("h100-sxm");
  const KernelModel model(cluster.gpu, Rates::calibrated);
  MeasuringFile file;
  for (const std::int64_t m : {256, 1024, 4096}) {
    MeasuredPoint p;
    p.kernel = "gemm";
    p.state = "cold";
    p.words = {{"dtype", "bf16"}, {"pass", "forward"}};
    p.numbers = {{"m", double(m)}, {"n", 4096}, {"k", 7168}};
    Gemm g;
    g.m = m;
    g.n = 4096;
    g.k = 7168;
    p.time.median = model.gemm(g).seconds / 1.1;  // a GPU that is a tenth faster than its calibration
    file.points.push_back(p);
  }
  MeasuredPoint slow = file.points.back();
  slow.flags = {"throttled"};
  slow.time.median *= 10;
  file.points.push_back(slow);
  MeasuredPoint layer;
  layer.kernel = "layer";
  layer.words = {{"phase", "forward"}};
  layer.numbers = {{"parts_s", 0.9e-3}};
  layer.time.median = 1e-3;
  file.points.push_back(layer);

  const auto groups = compare_kernels(file, cluster);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].group == "gemm bf16 forward");
  CHECK(groups[0].n == 3);
  CHECK(groups[0].throttled == 1);
  CHECK(groups[0].median_error == Approx(0.1).epsilon(1e-9));
  CHECK(groups[1].group == "layer forward (sum of its parts)");
  CHECK(groups[1].median_error == Approx(-0.1).epsilon(1e-9));
}

TEST_CASE("measured collectives of a node become the table of its cluster") {
  MeasuringFile file;
  file.device = {{"name", "NVIDIA H100 80GB HBM3"}};
  const Cluster before = load_cluster("h100-sxm");
  const NetworkModel known(before, Rates::calibrated, Fidelity::table);
  const GroupShape four = group_shape(before, 4);
  for (const Collective op : {Collective::all_reduce, Collective::all_to_all}) {
    for (double bytes = 1024; bytes <= 1 << 28; bytes *= 4) {
      MeasuredPoint p;
      p.kernel = std::string(collective_name(op));
      p.words = {{"dtype", "bf16"}};
      p.numbers = {{"bytes", bytes}, {"ranks", 4}};
      p.bytes = bytes;
      p.time.n = 11;
      p.time.median = p.time.mean = 1.3 * known.collective(op, bytes, four).price.seconds;  // a slower node
      file.points.push_back(p);
    }
  }
  MeasuredPoint skewed = file.points.front();
  skewed.kernel = "all-to-allv";  // its pairs differ: no point of a curve
  file.points.push_back(skewed);

  const std::string folder = (std::filesystem::temp_directory_path() / "shardplan_nccl_points").string();
  std::filesystem::create_directories(folder);
  const Calibration c = calibrate_cluster({file}, "h100-sxm", "node.tables.json");
  write_text_file(folder + "/node.tables.json", c.tables_text);
  write_text_file(folder + "/node.json", c.cluster);
  const Cluster after = load_cluster(folder + "/node.json");  // the tables are found beside the file
  const NetworkModel own(after, Rates::calibrated, Fidelity::table);
  for (const Collective op : {Collective::all_reduce, Collective::all_to_all}) {
    for (const double bytes : {4096.0, 1048576.0, 268435456.0}) {
      const Price asked = own.collective(op, bytes, four).price;
      CHECK(asked.seconds == Approx(1.3 * known.collective(op, bytes, four).price.seconds).epsilon(0.04));
      CHECK(asked.basis == Basis::measured);
    }
  }
  // The kernels stay what they were.
  Gemm g;
  g.m = g.n = g.k = 4096;
  CHECK(KernelModel(after.gpu, Rates::calibrated).gemm(g).seconds ==
        Approx(KernelModel(before.gpu, Rates::calibrated).gemm(g).seconds).epsilon(0.01));
  // A second calibration, of kernels alone, keeps the collectives.
  MeasuringFile kernels;
  kernels.device = file.device;
  for (const double n : {1e6, 1e7, 1e8, 1e9, 1e10, 3e10}) {
    MeasuredPoint p;
    p.kernel = "copy";
    p.bytes = n;
    p.time.n = 11;
    p.time.median = p.time.mean = 3e-6 + n / 2.9e12;
    kernels.points.push_back(p);
  }
  const Calibration again = calibrate_cluster({kernels}, folder + "/node.json", "again.tables.json");
  CHECK(again.tables_text.find("\"collectives\"") != std::string::npos);
  std::filesystem::remove_all(folder);
}
