// plan as a person asks it: questions at the edge, and what its answer says beside the layouts.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.hpp"

namespace {

bool says(const Answer& a, const std::string& what) { return a.text.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("a model that no layout fits is told on how many GPUs it fits", "[cli]") {
  const Answer a = run("plan --model llama-3.1-8b --cluster h100-sxm --gpus 1 --seq-len 8k --global-batch 16");
  INFO(a.text);
  CHECK(a.code == 1);
  CHECK(says(a, "nothing fits"));
  CHECK(says(a, "it fits on "));
}

TEST_CASE("a batch that no number of replicas divides is refused with one that all GPUs divide", "[cli]") {
  const Answer a = run("plan --model llama-3.1-8b --cluster h100-sxm --gpus 127 --seq-len 8k --global-batch 128");
  INFO(a.text);
  CHECK(a.code == 2);
  CHECK(says(a, "a multiple of 127 sequences"));
}

TEST_CASE("plan says on what its best plan stands, in text and in JSON", "[cli]") {
  const std::string question =
      "plan --model llama-3.1-8b --cluster h100-sxm --gpus 8 --seq-len 8k --global-batch 32 --top 2 ";
  const Answer text = run(question);
  INFO(text.text);
  CHECK(says(text, "stands on measured runs: "));
  CHECK(says(text, " of h100-sxm (bf16)"));
  CHECK_FALSE(says(text, "way to its experts"));
  const auto json = nlohmann::json::parse(run(question + "--format json").text);
  CHECK(json.at("evidence").at("runs").at(0).at("scope").get<std::string>() == "h100-sxm");
  CHECK(json.at("evidence").at("runs").at(0).at("runs").get<int>() > 0);
  CHECK(json.at("other_ways").empty());
  CHECK_FALSE(says(run(question + "--rates datasheet"), "stands on measured runs"));
}

TEST_CASE("plan of a model with experts says what another way to them is worth", "[cli]") {
  const std::string question =
      "plan --model qwen3-30b-a3b --cluster gb200 --gpus 8 --seq-len 4k --global-batch 256 --fix \"ep8\" --top 1 ";
  const Answer text = run(question);
  INFO(text.text);
  CHECK(says(text, "the best plan's way to its experts is transport="));
  CHECK(says(text, "transport=deepep does not run on gb200"));
  const auto json = nlohmann::json::parse(run(question + "--format json").text);
  const double best = json.at("plans").at(0).at("step_time_s").get<double>();
  REQUIRE(json.at("other_ways").size() >= 2);
  for (const auto& way : json.at("other_ways"))
    if (way.contains("step_time_s")) CHECK(way.at("step_time_s").get<double>() >= best);
}
