// The verb `memory` as a person runs it: exit codes, one error line, JSON keys.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.hpp"

namespace {

const std::string k405b =
    "memory --model llama-3.1-405b --cluster h100-sxm --gpus 16384 --seq-len 8k --global-batch 2048 ";
const std::string k70b = "memory --model llama-3.1-70b --cluster h100-sxm --gpus 64 --seq-len 8k --global-batch 64 ";

}  // namespace

TEST_CASE("memory answers in JSON with the promised keys", "[cli][layouts]") {
  const Answer answer = run(k405b + "--layout 'tp8 pp16 vpp8 zero1' --format json");
  REQUIRE(answer.code == 0);
  const auto json = nlohmann::json::parse(answer.text);
  CHECK(json.at("recipe") == "megatron");
  CHECK(json.at("layout") == "tp8 pp16 vpp8 dp128");
  REQUIRE(json.at("ranks").size() == 16);
  double sum = 0;
  const auto& rank = json.at("ranks").at(1);
  for (const char* key : {"weights", "gradients", "optimizer", "activations", "logits", "embedding", "gathered",
                          "workspace", "buffers"}) {
    sum += rank.at(key).get<double>();
  }
  CHECK(rank.at("stage") == 1);
  CHECK(rank.at("peak_microbatches") == 16);
  CHECK(rank.at("allocated").get<double>() == Approx(sum).epsilon(1e-12));
  CHECK(rank.at("reserved").get<double>() == Approx(sum + rank.at("slack").get<double>()).epsilon(1e-12));
  CHECK(json.at("capacity_bytes") == 81559.0 * 1048576);
  CHECK(json.at("fits") == false);
  CHECK(json.at("shortfall").at("rank") == 1);
  CHECK(json.at("shortfall").at("term") == "activations");
  CHECK(json.at("shortfall").at("bytes").get<double>() ==
        Approx(json.at("peak_bytes").get<double>() - json.at("capacity_bytes").get<double>()).epsilon(1e-12));
  const auto fits = nlohmann::json::parse(run(k405b + "--layout 'tp8 pp16 vpp8 zero2' --format json").text);
  CHECK(fits.at("fits") == true);
  CHECK(fits.at("shortfall").is_null());
}

TEST_CASE("memory says the same bytes twice, in text as well", "[cli][layouts]") {
  const std::string ask = k70b + "--layout 'tp8 pp4 recompute=full' --explain peak";
  const Answer first = run(ask);
  CHECK(first.code == 0);
  CHECK(first.text.find("fits") != std::string::npos);
  CHECK(run(ask).text == first.text);
}

TEST_CASE("layouts that cannot be are exit 2 and one line", "[cli][layouts]") {
  const std::pair<std::string, std::string> rows[] = {
      {"--layout 'tp3'", "error: --layout: 64 GPUs are not a multiple of tp*cp*pp = 3\n"},
      {"--layout 'tp8 pp4 dp4'", "error: --layout: tp*cp*pp*dp = 128, but there are 64 GPUs\n"},
      {"--layout 'tp8 qp4'", "error: --layout: unknown word \"qp4\" (did you mean \"tp\"?)\n"},
      {"--layout 'tp64'", ""},
      {"--layout 'tp8 pp8 split=even vpp3'", "error: --layout: split=even: 80 layers do not divide into 24 stages\n"},
      {"--layout 'tp8 ep8'", "error: --layout: ep8: the model has no experts\n"},
      {"--layout 'tp8 pp8 schedule=dualpip'",
       "error: --layout: schedule: unknown schedule \"dualpip\" (did you mean \"dualpipe\"?)\n"},
      {"--layout 'tp8 mbs3'", "error: --layout: 64 sequences are not a multiple of mbs*dp = 24\n"},
      {"--layout 'tp8 pp2 split=E|L'", ""},
      {"--layout 'tp16' --for megatron",
       "error: --layout: megatron refuses: num_query_groups (8) must be a multiple of tp (16)\n"},
      {"--layout 'tp8' --for megatrn", "error: --for: unknown framework \"megatrn\" (did you mean \"megatron\"?)\n"},
      {"--layout 'tp8' --recipe megatro", "error: --recipe: unknown recipe \"megatro\" (did you mean \"megatron\"?)\n"},
      {"--layout 'tp8' --stack nanotro", "error: --stack: unknown stack \"nanotro\" (did you mean \"nanotron\"?)\n"},
      {"--layout 'tp8' --explain 1", "error: --explain: rank 1: there are 1 pipeline ranks\n"},
  };
  for (const auto& [arguments, line] : rows) {
    INFO(arguments);
    const Answer answer = run(k70b + arguments);
    if (line.empty()) {
      CHECK(answer.code == (arguments.find("tp64") != std::string::npos ? 0 : 2));
      continue;
    }
    CHECK(answer.code == 2);
    CHECK(answer.text == line);
  }
}

TEST_CASE("memory takes the routing's options as simulate does, and both agree", "[cli][experts]") {
  const std::string ask =
      " --model qwen3-235b-a22b --cluster h100-sxm --gpus 256 --layout 'tp2 pp8 vpp4 ep32 dp16' --seq-len 4096 "
      "--global-batch 512 --format json ";
  const auto peak = [&](const std::string& verb, const std::string& words) {
    const Answer answer = run(verb + ask + words);
    INFO(answer.text);
    REQUIRE(answer.code == 0);
    const auto json = nlohmann::json::parse(answer.text);
    return verb == "memory" ? json.at("peak_bytes").get<double>() : json.at("memory").at("peak_bytes").get<double>();
  };
  const double even = peak("memory", "");
  for (const std::string& words : {std::string("--skew zipf:0.8"), std::string("--skew zipf:0.8 --nodes-per-token 2"),
                                   std::string("--routing real"), std::string("--skew zipf:0.8 --capacity-factor 1.25"),
                                   std::string("--skew zipf:0.8 --redundant 32")}) {
    INFO(words);
    CHECK(peak("memory", words) > even);
    CHECK(peak("memory", words) == Approx(peak("simulate", words)).epsilon(1e-12));
  }
  CHECK(peak("memory", "--skew zipf:0.8 --capacity-factor 1.25") < peak("memory", "--skew zipf:0.8"));
  const Answer dense = run(k70b + "--layout 'tp8 pp2' --skew zipf:1");
  CHECK(dense.code == 2);
  CHECK(dense.text == "error: --model: llama-3.1-70b has no experts: routing options do not apply\n");
}

TEST_CASE("a capacity takes from memory what it drops, and skew behind it costs no more than even loads",
          "[cli][experts]") {
  const std::string base =
      "memory --model qwen3-30b-a3b --cluster h100-sxm --gpus 64 --layout 'ep8 pp2 dp32' --seq-len 4k "
      "--global-batch 512 --format json ";
  const auto activations = [&](const std::string& more) {
    const auto json = nlohmann::json::parse(run(base + more).text);
    return json.at("ranks").at(0).at("activations").get<double>();
  };
  const double dropless = activations(""), half = activations("--capacity-factor 0.5");
  CHECK(activations("--capacity-factor 1") == dropless);
  CHECK(half < 0.9 * dropless);
  CHECK(activations("--skew zipf:1") > 1.2 * dropless);
  CHECK(activations("--skew zipf:1 --capacity-factor 1") <= dropless);
}
