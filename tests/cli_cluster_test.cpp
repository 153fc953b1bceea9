// The verb `cluster` as a person runs it: exit codes, one error line, JSON keys, the drawing.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

TEST_CASE("cluster show answers in JSON with the promised keys, every figure with its source", "[cli][cluster]") {
  const Answer answer = run("cluster show h100-sxm --format json");
  REQUIRE(answer.code == 0);
  const auto json = nlohmann::json::parse(answer.text);
  CHECK(json.at("name") == "h100-sxm");
  CHECK(json.at("gpu").at("peak_flops_per_s").at("bf16").at("value") == 989e12);
  CHECK(json.at("gpu").at("memory_bytes").at("value") == 80e9);
  CHECK(json.at("gpu").at("reported_memory_mib").at("value") == 81559);
  CHECK(json.at("gpu").at("capacity_bytes") == 81559.0 * 1048576);
  CHECK(json.at("node").at("nic_bytes_per_s").at("value") == 50e9);
  CHECK(json.at("node").at("network_bytes_per_s_per_gpu") == 50e9);
  CHECK(json.at("network").at("hop_s").at("value").get<double>() == Approx(5e-6).epsilon(1e-12));
  CHECK(json.at("assumed").empty());
  for (const char* section : {"gpu", "node", "network"}) {
    for (const auto& [key, figure] : json.at(section).items()) {
      if (!figure.is_object() || !figure.contains("value")) continue;
      INFO(section << "/" << key);
      CHECK_FALSE(figure.at("source").get<std::string>().empty());
    }
  }
}

TEST_CASE("the topology is drawn for people and given as a graph to programs", "[cli][cluster]") {
  const Answer drawing = run("cluster show llama3-roce --topology");
  CHECK(drawing.code == 0);
  CHECK(drawing.text.find("[4 NVSwitch planes] === every GPU, 450 GB/s") != std::string::npos);
  CHECK(drawing.text.find("21.9 TB/s up from each pod (7") != std::string::npos);
  CHECK(drawing.text.find("7.14 GB/s a GPU") != std::string::npos);
  const auto json = nlohmann::json::parse(run("cluster show mi300x --topology --gpus 8 --format json").text);
  CHECK(json.at("topology").at("gpus") == 8);
  CHECK(json.at("topology").at("links").size() == 56);
  CHECK(json.at("topology").at("links").at(0).at("bytes_per_s") == 64e9);
}

TEST_CASE("cluster list names GPUs and clusters", "[cli][cluster]") {
  const auto json = nlohmann::json::parse(run("cluster list --format json").text);
  CHECK(json.at("gpus").size() == 17);
  CHECK(json.at("clusters").size() >= 20);
  CHECK(run("cluster list").text.find("deepseek-h800") != std::string::npos);
}

TEST_CASE("mistakes about clusters are exit 2 and one line", "[cli][cluster]") {
  const std::pair<const char*, const char*> rows[] = {
      {"cluster show h100", ""},
      {"cluster show h100-sxmm", "error: cluster: unknown cluster \"h100-sxmm\" (did you mean \"h100-sxm\"?)\n"},
      {"cluster show h100-sxm --topology --gpus 0", "error: --gpus: expected 1 to 1048576 GPUs, got 0\n"},
      {"cluster show h100-sxm --topology --gpus 3.5", "error: --gpus: expected a whole number, got \"3.5\"\n"},
      {"cluster show h100-sxm --gpus 8", "error: --gpus: only --topology draws a number of GPUs\n"},
      {"cluster show h100-sxm --topologie", "error: --topologie: unknown option (did you mean \"--topology\"?)\n"},
      {"cluster shwo h100-sxm", "error: shwo: unknown verb (did you mean \"show\"?)\n"},
  };
  for (const auto& [arguments, expected] : rows) {
    INFO(arguments);
    const Answer answer = run(arguments);
    if (*expected == 0) {
      CHECK(answer.code == 0);
    } else {
      CHECK(answer.code == 2);
      CHECK(answer.text == expected);
    }
  }
}

TEST_CASE("a cluster file names a GPU file that lies beside it", "[cli][cluster]") {
  const Scratch scratch;
  const std::string gpu =
      scratch.write("gpu.json", R"({"name": "own", "peak": {"bf16": "200 TFLOP/s"}, "memory": "48 GB",
    "memory_bandwidth": "1 TB/s", "nvlink_bandwidth": "100 GB/s"})");
  const std::string cluster = scratch.write("cluster.json", R"({"name": "mine", "gpu": "gpu.json",
    "node": {"gpus": 4, "fabric": "nvswitch", "nics": 4, "nic_bandwidth": "200 Gbit/s"},
    "network": {"kind": "roce", "hop_latency": "5 us"}})");
  const Answer answer = run("cluster show " + cluster + " --format json");
  INFO(answer.text);
  REQUIRE(answer.code == 0);
  CHECK(nlohmann::json::parse(answer.text).at("gpu").at("peak_flops_per_s").at("bf16").at("value") == 200e12);
  std::filesystem::remove(gpu);
  const Answer missing = run("cluster show " + cluster);
  CHECK(missing.code == 2);
  CHECK(missing.text.find("gpu.json: no such file") != std::string::npos);
}

TEST_CASE("a name with line breaks is refused on one line", "[cli][cluster]") {
  const Answer answer = run("cluster show 'a\nb'");
  CHECK(answer.text.find('\n') == answer.text.size() - 1);
}
