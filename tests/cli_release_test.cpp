// --release: what a step is worth on one release of its stack, and what is refused.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "layouts/step/stack.hpp"
#include "tests/run_program.hpp"

namespace {

const std::string kQuestion =
    "simulate --model llama-3.1-70b --cluster h100-sxm --gpus 64 --layout \"tp4 pp4 vpp5\" --seq-len 8k --global-batch "
    "128 --format json ";

nlohmann::json ask(const std::string& more) { return nlohmann::json::parse(run(kQuestion + more).text); }

}  // namespace

TEST_CASE("--release scales the stack's kernels by the release's factor", "[release]") {
  const shardplan::Stack stack = shardplan::load_stack("megatron-bridge", "--stack");
  const auto [release, factor] = *stack.releases.begin();
  const auto mean = ask("--stack megatron-bridge"), told = ask("--stack megatron-bridge --release " + release);
  CHECK_FALSE(mean.contains("release"));
  CHECK(told.at("release") == release);
  for (const char* kind : {"gemm", "attention", "elementwise"})
    CHECK(told.at("breakdown_s").at(kind).get<double>() ==
          Approx(factor * mean.at("breakdown_s").at(kind).get<double>()).epsilon(1e-9));
}

TEST_CASE("an unknown release is refused with those that are known", "[release]") {
  const Answer wrong = run(kQuestion + "--stack megatron-bridge --release 26.07");
  CHECK(wrong.code == 2);
  CHECK(wrong.text.find("error: --release: no measured release of megatron-bridge is \"26.07\"") != std::string::npos);
  CHECK(wrong.text.find("26.0") != std::string::npos);
  const Answer none = run(kQuestion + "--stack torchtitan --release 2.6");
  CHECK(none.code == 2);
  CHECK(none.text == "error: --release: no releases of torchtitan were told apart\n");
}
