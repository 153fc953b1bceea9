// The verb `model` as a person runs it: exit codes, one error line, JSON keys.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.hpp"

TEST_CASE("model show answers in JSON with the promised keys", "[cli][models]") {
  const Answer answer = run("model show deepseek-v3 --seq-len 4k --format json");
  REQUIRE(answer.code == 0);
  const auto json = nlohmann::json::parse(answer.text);
  CHECK(json.at("name") == "deepseek-v3");
  CHECK(json.at("layers") == 61);
  CHECK(json.at("parameters").at("total") == 671026404352);
  CHECK(json.at("parameters").at("checkpoints").at("bf16_mtp") == 684489845504);
  CHECK(json.at("parameters").at("by_component").at("attention") == 11413547008);
  CHECK(json.at("flops_per_token").at("seq_len") == 4096);
  CHECK(json.at("flops_per_token").at("training").get<double>() ==
        Approx(3 * json.at("flops_per_token").at("forward").get<double>()).epsilon(1e-12));
  CHECK(json.at("weight_bytes").at("bf16") == 1342052808704);
  CHECK(json.at("kv_bytes_per_token") == 70272);
}

TEST_CASE("transforms show the model before and after", "[cli][models]") {
  const Answer answer = run("model show mixtral-8x7b --segment 4 --format json");
  REQUIRE(answer.code == 0);
  const auto json = nlohmann::json::parse(answer.text);
  CHECK(json.at("moe").at("experts") == 32);
  CHECK(json.at("moe").at("combinations") == 10518300);
  CHECK(json.at("before").at("moe").at("combinations") == 28);
  CHECK(json.at("parameters").at("by_component").at("routed_experts") ==
        json.at("before").at("parameters").at("by_component").at("routed_experts"));
  CHECK(run("model show llama-3.1-8b --upcycle 8 --format json").code == 0);
}

TEST_CASE("mistakes on the command line are exit 2 and one line", "[cli][models]") {
  const std::pair<const char*, const char*> rows[] = {
      {"model show lama-3.1-8b", "error: --model: unknown model \"lama-3.1-8b\" (did you mean \"llama-3.1-8b\"?)\n"},
      {"model shw llama-3.1-8b", "error: shw: unknown verb (did you mean \"show\"?)\n"},
      {"model show llama-3.1-8b --seqlen 4k", "error: --seqlen: unknown option (did you mean \"--seq-len\"?)\n"},
      {"model show llama-3.1-8b --segment 2", "error: --segment: llama-3.1-8b has no experts\n"},
      {"model show llama-3.1-8b --top-k 2", "error: --top-k: needs --upcycle\n"},
      {"model show llama-3.1-8b --upcycle 2 --top-k 3", "error: --upcycle: a token chooses 3 of 2 experts\n"},
      {"model show deepseek-v4-pro",
       "error: --model: deepseek-v4-pro: not modelled: compressed sparse attention and hyper-connections\n"},
      {"model show /no/such/file.json", "error: /no/such/file.json: no such file\n"}};
  for (const auto& [arguments, text] : rows) {
    INFO(arguments);
    const Answer answer = run(arguments);
    CHECK(answer.code == 2);
    CHECK(answer.text == text);
  }
}

TEST_CASE("model list and compare give the same bytes every time", "[cli][models]") {
  const Answer list = run("model list"), compare = run("model compare deepseek-v3 kimi-k2");
  CHECK(list.code == 0);
  CHECK(compare.code == 0);
  CHECK(list.text == run("model list").text);
  CHECK(compare.text == run("model compare deepseek-v3 kimi-k2").text);
}
