#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/measure/calibrate.hpp"
#include "hardware/measure/measuring.hpp"
#include "hardware/measure/sha256.hpp"

using namespace shardplan;

namespace {

MeasuringFile small_file() {
  MeasuringFile file;
  file.tool = {{"name", "shardplan"}};
  file.device = {{"name", "host-cpu"}};
  MeasuredPoint p;
  p.kernel = "gemm";
  p.numbers = {{"m", 64}, {"n", 32}, {"k", 16}};
  p.words = {{"dtype", "fp32"}, {"pass", "forward"}};
  p.flops = 2.0 * 64 * 32 * 16;
  p.bytes = 4;
  set_samples(p, {1e-5, 1.1e-5, 1.2e-5, 1.1e-5, 1.3e-5}, true);
  file.points.push_back(p);
  return file;
}

std::string error_of(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  try {
    parse_measuring(text, "f.json");
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

double worst_step(const Calibration& c) {
  double worst = 0;
  for (const StepComparison& step : c.steps) worst = std::max(worst, std::abs(step.error()));
  return worst;
}

}  // namespace

TEST_CASE("SHA-256 gives the digests of the standard's examples") {
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("a measuring file survives writing and reading") {
  const std::string text = measuring_text(small_file());
  const MeasuringFile read = parse_measuring(text, "f.json");
  CHECK(read.warnings.empty());
  CHECK(read.points.at(0).time.median == Approx(1.1e-5).epsilon(1e-12));
  CHECK(read.points.at(0).number("n") == 32);
  CHECK(read.points.at(0).word("pass") == "forward");
  CHECK(measuring_text(read) == text);
}

TEST_CASE("a measuring file that cannot be trusted is refused with its place") {
  const std::string text = measuring_text(small_file());
  CHECK(error_of(text, "shardplan-measure/1", "shardplan-measure/2") ==
        "f.json: /schema: this program reads version 1 of measuring files, this one is version 2");
  CHECK(error_of(text, "shardplan-measure/1", "shardplan-measure/1.4").empty());
  CHECK(error_of(text, "shardplan-measure/1", "other/1").find("f.json: /schema: expected \"shardplan-measure/1\"") ==
        0);
  CHECK(error_of(text, "\"n\": 5", "\"n\": 3") == "f.json: /points/0/n: too few samples: 3, at least 5 are needed");
  CHECK(error_of(text, "\"n\": 5", "\"n\": 6") == "f.json: /points/0/samples_s: has 5 samples, n says 6");
  CHECK(error_of(text, "\"median_s\": 1.1e-05", "\"median_s\": 0") ==
        "f.json: /points/0/median_s: expected a number above zero, got 0");
  CHECK(error_of(text, "\"median_s\": 1.1e-05", "\"median_s\": NaN").find("f.json: not JSON") == 0);
  CHECK(error_of(text, "\"median_s\": 1.1e-05", "\"median_s\": 1e999").find("out of range") != std::string::npos);
  CHECK(error_of(text, "\"median_s\": 1.1e-05", "\"median_s\": 9").find("quantiles out of order") != std::string::npos);
  CHECK(error_of(text, "\"kernel\"", "\"kernal\"").find("did you mean \"kernel\"") != std::string::npos);
  CHECK(error_of(text, "\"hot\"", "\"warm\"") == "f.json: /points/0/state: expected hot, cold or graph, got \"warm\"");
}

TEST_CASE("points that were edited after measuring are noticed") {
  std::string text = measuring_text(small_file());
  text.replace(text.find("\"p90_s\": "), 9, "\"p90_s\": 9");
  const MeasuringFile read = parse_measuring(text, "f.json");
  REQUIRE(read.warnings.size() == 1);
  CHECK(read.warnings[0] == "f.json: the points were changed after they were measured (sha256 differs)");
}

namespace {

/// A machine of round figures: products at 40 GFLOP/s, memory read and written at 40 GB/s, messages and all-reduces at
/// `bandwidth` bytes/s; and a step that is mostly its all-reduce, as long as the machine of 3 GB/s takes for it.
MeasuringFile round_machine(double bandwidth) {
  MeasuringFile file;
  file.device = {{"name", "host-cpu"}};
  const auto add = [&](const char* kernel, std::map<std::string, double> numbers, double flops, double bytes,
                       double seconds) -> MeasuredPoint& {
    MeasuredPoint p;
    p.kernel = kernel;
    p.numbers = std::move(numbers);
    p.flops = flops;
    p.bytes = bytes;
    p.time.n = 16;
    p.time.median = p.time.mean = seconds;
    file.points.push_back(p);
    return file.points.back();
  };
  for (const char* pass : {"forward", "input-grad", "weight-grad"}) {
    for (const double m : {8.0, 64.0}) {
      for (const double n : {128.0, 256.0}) {
        for (const double k : {128.0, 256.0})
          add("gemm", {{"m", m}, {"n", n}, {"k", k}}, 2 * m * n * k, 0, 2 * m * n * k / 40e9).words = {
              {"dtype", "fp32"}, {"pass", pass}};
      }
    }
  }
  for (const double n : {1024.0, 16384.0, 262144.0}) {
    for (const char* kernel : {"copy", "add", "relu", "mask"}) add(kernel, {{"elements", n}}, 0, 8 * n, 8 * n / 40e9);
    for (const char* kernel : {"send-recv", "all-reduce"})
      add(kernel, {{"bytes", 4 * n}, {"ranks", 2}}, 0, 4 * n, 4 * n / bandwidth);
  }
  add("step",
      {{"tokens", 8},
       {"hidden", 256},
       {"inner", 256},
       {"ranks", 1},
       {"microbatches", 1},
       {"replicas", 2},
       {"chunks", 1},
       {"blocks", 2}},
      0, 0, 666e-6)
      .words = {{"schedule", "1f1b"}};
  return file;
}

}  // namespace

TEST_CASE("half the bandwidth in a calibration is outside the gate of T2") {
  // 12 products of 26.2 us and 1 MiB reduced in 349 us.
  CHECK(worst_step(calibrate_cluster({round_machine(3e9)}, "host-cpu")) < 0.02);
  CHECK(worst_step(calibrate_cluster({round_machine(1.5e9)}, "host-cpu")) > 0.15);
}
