// The verb `bubble` as a person runs it: exit codes, one error line, JSON keys, files.
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

namespace {

Answer bubble(const std::string& arguments) { return run("bubble " + arguments); }

nlohmann::json json_of(const std::string& arguments) {
  const Answer answer = bubble(arguments + " --format json");
  INFO(answer.text);
  REQUIRE(answer.code == 0);
  return nlohmann::json::parse(answer.text);
}

}  // namespace

TEST_CASE("bubble answers in JSON with the promised keys", "[sim][cli]") {
  const auto a = json_of("--schedule 1f1b --stages 4 --microbatches 16");
  CHECK(a.at("schedule") == "1f1b");
  CHECK(a.at("makespan") == 57);
  CHECK(a.at("max_stage_window") == 57);
  CHECK(a.at("bubble").at("over_ideal").get<double>() == Approx(0.1875).epsilon(1e-12));
  CHECK(a.at("bubble").at("over_total").get<double>() == Approx(3.0 / 19).epsilon(1e-12));
  CHECK(a.at("bubble").at("window").get<double>() == Approx(3.0 / 19).epsilon(1e-12));
  CHECK(a.at("ranks").size() == 4);
  CHECK(a.at("ranks").at(0).at("idle") == 9);
  CHECK(a.at("ranks").at(0).at("peak_chunks_until_input_grad") == 4);
  CHECK(a.at("parameter_copies") == 1);
  CHECK(a.at("closed_form").at("value") == 57);
  CHECK(a.at("closed_form").at("holds") == true);
  CHECK(json_of("--schedule v-min --stages 4 --microbatches 8").at("closed_form").is_null());
  CHECK(json_of("--schedule dualpipe --stages 4 --microbatches 8").at("parameter_copies") == 2);
}

TEST_CASE("bubble text shows orders, definitions, the picture and the closed form in 120 columns of picture",
          "[sim][cli]") {
  const Answer a = bubble("--schedule 1f1b --stages 2 --microbatches 2");
  CHECK(a.code == 0);
  for (const char* part :
       {"over ideal   (makespan - longest busy) / longest busy", "1 - sum of busy / (ranks x makespan)",
        "(longest window - longest busy) / longest window", "(m+p-1)(F+I+W) = 9", "   1  1F0 1B0 1F1 1B1",
        "   0 |F0--F1--........B0------....B1------|"}) {
    INFO(part);
    CHECK(a.text.find(part) != std::string::npos);
  }
  CHECK(bubble("--schedule 1f1b --stages 2 --microbatches 2").text == a.text);
  const Answer pair = bubble(
      "--schedule dualpipe --stages 16 --microbatches 120 --forward 97.363 --input-grad 111.611 --weight-grad "
      "23.712 --overlapped 129.012");
  CHECK(pair.text.find("a pair takes 129.012, its halves one after the other 232.686: each saves 103.674") !=
        std::string::npos);
}

TEST_CASE("what cannot run is exit 2 with one line that says why", "[sim][cli]") {
  const std::pair<const char*, const char*> rows[] = {
      {"--schedule zb-v --stages 4 --microbatches 8 --chunks 3", "error: zb-v: always has 2 chunks a rank, not 3\n"},
      {"--schedule dualpipe --stages 3 --microbatches 8", "error: dualpipe: needs an even number of stages, not 3\n"},
      {"--schedule dualpipe-v --stages 4 --microbatches 7",
       "error: dualpipe-v: needs at least 2 x stages = 8 micro-batches, not 7\n"},
      {"--schedule 1f2b --stages 4 --microbatches 8",
       "error: --schedule: unknown schedule \"1f2b\" (did you mean \"1f1b\"?)\n"},
      {"--stages 4 --microbatches 8", "error: --schedule: give a schedule, or --order FILE\n"},
      {"--schedule 1f1b --stages 0 --microbatches 8",
       "error: --stages: out of range: 0 is not between 1 and 1000000\n"},
      {"--schedule 1f1b --stages 4 --microbatches 8 --forward nan", "error: --forward: "},
      {"--schedule 1f1b --stages 4 --microbatches 8 --stage-scale 1,1",
       "error: --stage-scale: 2 factors for 4 stages\n"},
      {"--schedule 1f1b --stages 4 --microbatches 8 --stage-scale 1,1,1,-1",
       "error: --stage-scale: must not be negative"},
      {"--schedule 1f1b --stages 1000000 --microbatches 1000000",
       "error: 1f1b: more than 20000000 passes are not replayed\n"},
      {"--schedule zb-auto --stages 4 --microbatches 8 --memory-limit 0.5",
       "error: zb-auto: not even one micro-batch fits in the memory limit\n"},
      {"--schedule interleaved-1f1b --stages 4 --microbatches 6 --chunks 2 --group 2",
       "error: schedule: deadlock, the waiting cycle is: 3F3"},
      {"--schedule interleaved-1f1b --stages 6 --microbatches 3 --group 6 --for megatron",
       "error: --for: megatron refuses: the group of 6 is not in [PP=6, M=3]"},
      {"--schedule interleaved-1f1b --stages 4 --microbatches 10 --group 4 --for megatron",
       "error: --for: megatron refuses: 10 micro-batches"},
      {"--schedule interleaved-1f1b --stages 4 --microbatches 9 --for pytorch",
       "error: --for: pytorch refuses: 9 micro-batches"},
      {"--schedule 1f1b --stages 4 --microbatches 3 --for pytorch",
       "error: --for: pytorch refuses: 1F1B needs at least as many"},
      {"--schedule 1f1b --stages 4 --microbatches 8 --for megatrom",
       "error: --for: unknown framework \"megatrom\" (did you mean \"megatron\"?)\n"},
      {"--order /nowhere/x.csv", "error: /nowhere/x.csv: "},
  };
  for (const auto& [arguments, line] : rows) {
    INFO(arguments);
    const Answer a = bubble(arguments);
    CHECK(a.code == 2);
    INFO(a.text);
    CHECK(a.text.find(line) == 0);
    CHECK(a.text.find('\n') == a.text.size() - 1);
  }
  CHECK(json_of("--schedule interleaved-1f1b --stages 6 --microbatches 3 --group 6").at("frameworks").at("megatron") ==
        "refuses: the group of 6 is not in [PP=6, M=3]");
}

TEST_CASE("an order written as CSV and read back gives the same replay; the trace is JSON", "[sim][cli]") {
  const Scratch folder;
  const std::string csv = folder.file("order.csv"), trace = folder.file("trace.json");
  for (const char* format : {"compute-only", "compute-comms"}) {
    const auto written =
        json_of("--schedule dualpipe-v --stages 4 --microbatches 10 --overlapped 2.5 --p2p 0.25 --write-order " + csv +
                " --order-format " + format + " --trace " + trace);
    const auto read = json_of("--order " + csv + " --overlapped 2.5 --p2p 0.25");
    CHECK(read.at("schedule") == "custom order");
    CHECK(read.at("makespan") == written.at("makespan"));
    CHECK(read.at("ranks") == written.at("ranks"));
  }
  std::ifstream in(trace);
  CHECK(nlohmann::json::parse(in).at("traceEvents").size() > 100);
  std::ofstream(csv) << "0F0garbage,0B0\n";
  const Answer bad = bubble("--order " + csv);
  CHECK(bad.code == 2);
  CHECK(bad.text.find(": row 1, cell 1: \"0F0garbage\": \"garbage\" is left over") != std::string::npos);
  std::ofstream(csv) << "0F0,0F1,0B0,0F1\n";
  CHECK(bubble("--order " + csv).text == "error: " + csv + ": 0F1 stands twice\n");
  std::ofstream(csv) << "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n";
  CHECK(bubble("--order " + csv).text.find("error: " + csv + ": deadlock, the waiting cycle is: ") == 0);
}

TEST_CASE("pairs in the steady state are asked for by a flag", "[sim][cli]") {
  const std::string q = "--schedule interleaved-1f1b --stages 4 --microbatches 16 --overlapped 1.8";
  CHECK(json_of(q + " --overlap-pairs").at("makespan").get<double>() < json_of(q).at("makespan").get<double>());
  CHECK(bubble("--schedule gpipe --stages 4 --microbatches 16 --overlap-pairs").text ==
        "error: --overlap-pairs: is a word of 1f1b and interleaved-1f1b, not of gpipe\n");
  CHECK(bubble("--schedule 1f1b --stages 4 --microbatches 16 --overlap-pairs --for megatron").code == 2);
}

TEST_CASE("units are read, bytes and the optimizer step are answered", "[sim][cli]") {
  const auto a = json_of(
      "--schedule zb-h2 --stages 4 --microbatches 16 --forward '10 ms' --input-grad 10ms --weight-grad 0.01 "
      "--chunk-bytes '5.7 GB' --weight-grad-memory 0.5 --optimizer post-validation --optimizer-time 5ms");
  CHECK(a.at("makespan").get<double>() == Approx(0.51).epsilon(1e-12));
  CHECK(a.at("step").at("seconds").get<double>() == Approx(0.485).epsilon(1e-12));
  CHECK(a.at("ranks").at(0).at("peak_bytes_until_input_grad").get<double>() == Approx(7 * 5.7e9).epsilon(1e-12));
  const auto z = json_of(
      "--schedule zb-auto --stages 4 --microbatches 16 --memory-limit 6 --weight-grad-memory 0.5 --stage-scale "
      "1,1,1,1.25");
  CHECK(z.at("search").at("gap").get<double>() <= 0.02);
  CHECK(z.at("makespan").get<double>() <=
        json_of("--schedule zb-h1 --stages 4 --microbatches 16 --stage-scale 1,1,1,1.25").at("makespan").get<double>());
}
