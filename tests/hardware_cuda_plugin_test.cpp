#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/errors.hpp"
#include "hardware/measure/cuda_plugin.hpp"
#include "tests/run_program.hpp"

using namespace shardplan;

TEST_CASE("the CUDA plug-in compiles, links and loads where the toolkit is", "[cuda]") {
  const auto versions = cuda_plugin_versions();
  if (!SHARDPLAN_BUILDS_CUDA) {
    std::printf("CUDA plug-in: skipped: no CUDA toolkit\n");
    return;
  }
  REQUIRE(std::filesystem::exists(cuda_plugin_path()));
  // It is there, so it must load: every symbol of cuBLASLt and NCCL resolved, the interface of this version.
  REQUIRE(versions);
  CHECK(versions->find("cublasLt ") != std::string::npos);
  CHECK(versions->find("nccl ") != std::string::npos);
  std::printf("CUDA plug-in: compiled, linked and loaded (%s)\n", versions->c_str());
}

TEST_CASE("without a driver or without the plug-in, measuring on CUDA is exit 3 and one sentence", "[cuda]") {
  const Answer without =
      run("measure --backend cuda --out /dev/null", "SHARDPLAN_CUDA_PLUGIN=/nowhere/libshardplan_measure_cuda.so ");
  CHECK(without.code == 3);
  CHECK(without.text.find("error: --backend cuda: this build has no CUDA plug-in") == 0);
  CHECK(without.text.find("-DSHARDPLAN_CUDA=ON") != std::string::npos);
  CHECK(std::count(without.text.begin(), without.text.end(), '\n') == 1);

  const Answer not_a_plugin =
      run("measure --backend cuda --out /dev/null", "SHARDPLAN_CUDA_PLUGIN=" SHARDPLAN_BINARY " ");
  CHECK(not_a_plugin.code == 3);
  CHECK(not_a_plugin.text.find("error: --backend cuda: ") == 0);

  // Where a driver is installed this machine may really measure: leave that to scripts/device-check.
  if (!std::filesystem::exists(cuda_plugin_path()) || std::filesystem::exists("/dev/nvidiactl")) return;
  const Answer no_driver = run("measure --backend cuda --out /dev/null");
  CHECK(no_driver.code == 3);
  CHECK(no_driver.text.find("error: --backend cuda: no NVIDIA driver on this machine") == 0);
  CHECK(std::count(no_driver.text.begin(), no_driver.text.end(), '\n') == 1);
}
