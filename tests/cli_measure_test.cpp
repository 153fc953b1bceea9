#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/field.hpp"
#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

using namespace shardplan;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

Field json_of(const std::string& arguments) {
  const Answer answer = run(arguments + " --format json");
  INFO(arguments << "\n" << answer.text);
  REQUIRE(answer.code == 0);
  return Field::parse(answer.text.substr(answer.text.find("{\n")), "answer");  // behind the warnings
}

/// Measures, calibrates, and asks `simulate` for every step of the executor that a layout can say. Returns the worst
/// error; `figures` for people.
double worst_of_simulated_steps(const Scratch& folder, std::string& figures, int& steps) {
  REQUIRE(run("measure --backend cpu --quick --out " + folder.file("cpu.json")).code == 0);
  const Field calibrated =
      json_of("measure calibrate " + folder.file("cpu.json") + " --cluster host-cpu --out " + folder.file("host.json"));
  const Field list = calibrated.at("steps");
  double worst = 0;
  steps = 0;
  figures.clear();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string command = list.item(i).at("command").text();
    if (command.empty()) continue;
    const std::string program = "shardplan ";
    REQUIRE(command.find(program) == 0);
    const double simulated = json_of(command.substr(program.size())).at("step_time_s").number();
    CHECK(simulated == Approx(list.item(i).at("simulated_s").number()).epsilon(1e-9));
    const double error = simulated / list.item(i).at("measured_s").number() - 1;
    char line[160];
    std::snprintf(line, sizeof line, "%s %s %+.1f %%", steps == 0 ? "" : ";", list.item(i).at("step").text().c_str(),
                  100 * error);
    figures += line;
    worst = std::max(worst, std::abs(error));
    ++steps;
  }
  return worst;
}

}  // namespace

TEST_CASE("simulate predicts the steps that the cpu backend ran within 15 %", "[measure]") {
  if (kSanitized) return;  // times of an instrumented program say nothing
  const Scratch folder;
  std::string figures;
  int steps = 0;
  double worst = worst_of_simulated_steps(folder, figures, steps);
  if (worst > 0.15) worst = worst_of_simulated_steps(folder, figures, steps);  // once more with fresh calibration
  std::printf("T2 by the verb simulate, gate 15 %%:%s\n", figures.c_str());
  CHECK(steps >= 5);
  CHECK(worst <= 0.15);
}

TEST_CASE("what a backend cannot do is refused, not ignored") {
  CHECK(run("measure --backend cpu --traffic m.txt --out x.json").text == "error: --traffic: is for --backend cuda\n");
  CHECK(run("measure --backend cpu --only gemm --out x.json").code == 2);
  const Answer mpi = run("measure --backend cpu --transport mpi --out x.json");
  CHECK(mpi.code == 3);
  CHECK(mpi.text.find("error: --transport mpi: ranks as Open MPI processes are not part of this program") == 0);
}

TEST_CASE("compare sets the streams of a real step against the simulated ones") {
  // 10 ms of products on stream 7; 4 ms of gradient reduction on stream 20, 1 ms of it after the last product.
  const std::string text =
      "{\"traceEvents\":["
      "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"nvjet\",\"ts\":0,\"dur\":10000,\"args\":{\"stream\":7}},"
      "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclDevKernel_AllReduce_Sum\",\"ts\":7000,\"dur\":4000,\"args\":"
      "{\"stream\":20}}]}";
  const Scratch folder;
  write_text_file(folder.file("t.json"), text);
  const Field streams = json_of("compare " + folder.file("t.json") +
                                " --model llama-3.1-8b --cluster h100-sxm --gpus 8 --layout dp8 --seq-len 4k "
                                "--global-batch 8")
                            .at("step")
                            .at("streams");
  double last = 1e300;
  bool compute = false, collectives = false;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const Field s = streams.item(i);
    const double gap = std::abs(s.at("difference_s").number());
    CHECK(gap <= last);
    last = gap;
    if (s.at("lane").text() == "compute") {
      compute = true;
      CHECK(s.at("streams").item(0).number() == 7);
      CHECK(s.at("measured_busy_s").number() == Approx(10e-3).epsilon(1e-9));
      CHECK(s.at("simulated_busy_s").number() > 0.05);
    }
    if (s.at("lane").text() == "collectives") {
      collectives = true;
      CHECK(s.at("streams").item(0).number() == 20);
      CHECK(s.at("measured_busy_s").number() == Approx(4e-3).epsilon(1e-9));
      CHECK(s.at("measured_exposed_s").number() == Approx(1e-3).epsilon(1e-9));
      CHECK(s.at("simulated_busy_s").number() > s.at("simulated_exposed_s").number());
    }
  }
  CHECK(compute);
  CHECK(collectives);
}
