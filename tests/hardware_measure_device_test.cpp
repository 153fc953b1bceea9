#include <catch2/catch.hpp>

#include "hardware/kernels.hpp"
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
