// The verbs `experts` and `router` as a person runs them: promised keys, exit codes, one error line, the same bytes
// twice.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.hpp"

namespace {

nlohmann::json json_of(const std::string& arguments) {
  const Answer answer = run(arguments + " --format json");
  INFO(answer.text);
  REQUIRE(answer.code == 0);
  return nlohmann::json::parse(answer.text);
}

const std::string kEp64 =
    "experts --model deepseek-v3 --cluster h100-sxm --gpus 64 --ep 64 --tokens-per-gpu 8192 --nodes-per-token 4";

}  // namespace

TEST_CASE("experts gives the whiteboard's figures with datasheet rates", "[cli][experts]") {
  const auto json = json_of(kEp64 + " --count-own-node 1 --rates datasheet --precision bf16");
  CHECK(json.at("pairs") == 65536);
  CHECK(json.at("flops").get<double>() == Approx(6.494e12).epsilon(1e-3));
  CHECK(json.at("network_bytes").get<double>() == Approx(704643072).epsilon(1e-9));
  CHECK(json.at("network_s").get<double>() == Approx(14.09e-3).epsilon(1e-3));
  CHECK(json.at("nvlink_bytes").get<double>() == Approx(1409286144).epsilon(1e-9));
  CHECK(json.at("nvlink_s").get<double>() == Approx(3.13e-3).epsilon(1e-3));
  CHECK(json.at("comm_over_compute").get<double>() == Approx(2.62).epsilon(5e-3));
  CHECK(json.at("load").at("max_violation_gpu").get<double>() == Approx(0).margin(1e-9));
  CHECK(json.at("load").at("histogram").size() == 256);
  CHECK(json.at("overlapped_s").get<double>() > 0);
  CHECK(json.at("assumptions").size() >= 8);
}

TEST_CASE("experts names what decode reads and where the ridge is", "[cli][experts]") {
  const auto decode = json_of(kEp64 + " --decode-batch 128").at("decode");
  CHECK(decode.at("experts_touched").get<double>() == Approx(251.6).epsilon(1e-3));
  CHECK(decode.at("intensity").get<double>() == Approx(9.12).epsilon(1e-3));
  CHECK(decode.at("gap_limit").get<double>() == Approx(28.56).epsilon(1e-3));
  CHECK(std::abs(decode.at("experts_touched_sampled").at("mean").get<double>() - 251.6) < 1);
}

TEST_CASE("experts says how many SMs its exchange holds", "[cli][experts]") {
  const auto json = json_of(kEp64);
  REQUIRE(json.at("sms_held").get<double>() > 0);
  CHECK(run(kEp64).text.find(", its kernels hold " + std::to_string(json.at("sms_held").get<int>()) + " SMs\n") !=
        std::string::npos);
  CHECK(run(kEp64 + " --transport deepep-low-latency").text.find("its kernels hold") == std::string::npos);
}

TEST_CASE("experts shows what batch mates, rounding and gates do", "[cli][experts]") {
  const auto json = json_of(kEp64 + " --demonstrate --capacity-factor 1").at("demonstrations");
  CHECK(json.at("batch_mates").at("changed_tokens") > 0);
  CHECK(json.at("batch_mates").at("changed_tokens_dropless") == 0);
  const auto& rounding = json.at("rounding_flips");
  CHECK(rounding.at("bf16_scores").at("choices") > 0.005);
  CHECK(rounding.at("fp32_other_order_expected_choices") > 1e-6);
  CHECK(rounding.at("fp32_other_order_expected_choices") < 5e-5);
  CHECK(json.at("gate_gradients").at("logits_that_carry_any") == 8);
  CHECK(json.at("gate_gradients").at("logits_that_carry_none") == 248);
  CHECK(json.at("routing_replay_bytes") == 7602176);
  CHECK(run(kEp64 + " --demonstrate").text.find("8 of 256 logits carry any, 248 none; as top-1") != std::string::npos);
}

TEST_CASE("the model's own group limit is an answer of --nodes-per-token", "[cli][experts]") {
  const std::string base = "experts --model deepseek-v3 --cluster h100-sxm --gpus 32 --ep 32 --tokens-per-gpu 1024 ";
  const auto model = json_of(base + "--nodes-per-token model"), free = json_of(base);
  CHECK(model.at("distinct_nodes").get<double>() == Approx(3.14).epsilon(0.01));
  CHECK(model.at("network_bytes") < 0.9 * free.at("network_bytes").get<double>());
  // A group a node: the node limit itself.
  const std::string ep64 = "experts --model deepseek-v3 --cluster h100-sxm --gpus 64 --ep 64 --tokens-per-gpu 1024 ";
  CHECK(json_of(ep64 + "--nodes-per-token model").at("network_bytes") ==
        json_of(ep64 + "--nodes-per-token 4").at("network_bytes"));
  const std::string step =
      "simulate --model deepseek-v3 --cluster deepseek-h800 --gpus 1024 --layout 'pp16 ep64 transport=deepep' "
      "--seq-len 4k --global-batch 1024 ";
  CHECK(json_of(step + "--nodes-per-token model").at("step_time_s").get<double>() ==
        Approx(json_of(step + "--nodes-per-token 4").at("step_time_s").get<double>()).epsilon(0.01));
}

TEST_CASE("a capacity counted by each GPU drops more than the popularity alone", "[cli][experts]") {
  const auto even = json_of(kEp64 + " --capacity-factor 1").at("load");
  CHECK(even.at("dropped").get<double>() == Approx(0).margin(1e-12));
  CHECK(even.at("dropped_counting_per_gpu").get<double>() == Approx(0.0245).epsilon(0.02));
  const auto skewed = json_of(kEp64 + " --capacity-factor 1 --skew zipf:1").at("load");
  CHECK(skewed.at("dropped_counting_per_gpu") >= skewed.at("dropped"));
}

TEST_CASE("redundant experts lower the busiest GPU, and its bound is kept", "[cli][experts]") {
  const std::string base =
      "experts --model deepseek-v3 --cluster h100-sxm --gpus 144 --ep 144 --tokens-per-gpu 1024 --skew zipf:1.0";
  const auto before = json_of(base).at("load"), after = json_of(base + " --redundant 32").at("load");
  CHECK(after.at("max_violation_gpu") < 0.1 * before.at("max_violation_gpu").get<double>());
  CHECK(after.at("max_violation_gpu") >= after.at("lower_bound_gpu"));
  CHECK(after.at("max_violation_gpu_before") == before.at("max_violation_gpu"));
  CHECK(before.at("max_violation_expert") <= 31);
  CHECK(after.at("experts_per_gpu").at("most") == 2);
}

TEST_CASE("experts and router answer with the same bytes every time", "[cli][experts]") {
  for (const std::string& arguments : {kEp64 + " --skew dirichlet:0.5 --seed 4 --waves 2",
                                       std::string("router --top-k 2 --steps 20 --tokens 512 --balance bias")}) {
    CHECK(run(arguments).text == run(arguments).text);
    CHECK(run(arguments + " --format json").text == run(arguments + " --format json").text);
  }
}

TEST_CASE("router numbers its steps and names its law", "[cli][router]") {
  const auto json = json_of("router --experts 16 --top-k 1 --steps 101 --balance none --seed 3");
  CHECK(json.at("law").get<std::string>().rfind("mean-field", 0) == 0);
  REQUIRE(json.at("steps").size() == 101);
  CHECK(json.at("steps").at(100).at("step") == 100);
  CHECK(json.at("steps").at(100).contains("idle_experts"));
  CHECK(json.at("final").at("max_violation") == json.at("steps").at(100).at("max_violation"));
  CHECK(run("router --balance bias --bias-rate 0.001 --top-k 2 --steps 400").text.find("too small to hold") !=
        std::string::npos);
}

TEST_CASE("mistakes of experts and router are exit 2 and one line that names the option", "[cli][experts]") {
  const std::string base = "experts --model deepseek-v3 --cluster h100-sxm --gpus 64 --tokens-per-gpu 1024 ";
  const std::pair<std::string, const char*> rows[] = {
      {base + "--ep 7", "error: --ep: 7 does not divide 64 GPUs"},
      {base + "--ep 64 --skew zip:1", "did you mean \"zipf\""},
      {base + "--ep 64 --skew zipf:-1", "error: --skew"},
      {base + "--ep 64 --skew file:/no/such/file", "/no/such/file"},
      {base + "--ep 64 --nodes-per-token 0", "error: --nodes-per-token"},
      {base + "--ep 64 --dispatch fp4", "error: --dispatch"},
      {base + "--ep 64 --transport depep", "did you mean \"deepep\""},
      {base + "--ep 64 --waves 9", "error: --waves: 9 waves"},
      {base + "--ep 64 --redundant -1", "error: --redundant"},
      {base + "--ep 64 --placement contiguous --redundant 8", "error: --placement"},
      {base + "--ep 64 --capacity-factor -1", "error: --capacity-factor"},
      {base + "--ep 64 --resident 300", "error: --resident: out of range"},
      {"experts --model mixtral-8x7b --cluster h100-sxm --gpus 8 --ep 8 --tokens-per-gpu 1 --nodes-per-token model",
       "error: --nodes-per-token: mixtral-8x7b's router has no groups"},
      {"memory --model mixtral-8x7b --cluster h100-sxm --gpus 8 --layout 'ep8' --global-batch 8 --nodes-per-token 0",
       "error: --nodes-per-token"},
      {"router --balance aux-loss --aux-scope batch", "error: --aux-scope"},
      {base + "--ep 64 --tokens-per-gpu", "error: --tokens-per-gpu"},
      {"experts --model llama-3.1-8b --cluster h100-sxm --gpus 8 --ep 8 --tokens-per-gpu 1",
       "no mixture-of-experts layer"},
      {"router --experts 1", "error: --experts"},
      {"router --top-k 16", "error: --top-k"},
      {"router --balance hash --tokens mean-field", "error: --tokens"},
      {"router --gain x", "error: --gain"},
      {"router --setps 3", "did you mean \"--steps\""},
  };
  for (const auto& [arguments, expected] : rows) {
    const Answer answer = run(arguments);
    INFO(arguments << "\n" << answer.text);
    CHECK(answer.code == 2);
    CHECK(answer.text.rfind("error: ", 0) == 0);
    CHECK(answer.text.find(expected) != std::string::npos);
    CHECK(answer.text.find('\n') == answer.text.size() - 1);
  }
}

TEST_CASE("simulate and plan report how the step grows with skew", "[cli][experts]") {
  const std::string simulate =
      "simulate --model mixtral-8x7b --cluster h100-sxm --gpus 64 --layout 'pp4 dp16 ep8' --seq-len 4096 "
      "--global-batch "
      "128 ";
  CHECK_FALSE(json_of(simulate).contains("skew_curve"));
  const auto curve = json_of(simulate + "--skew-curve").at("skew_curve");
  REQUIRE(curve.size() >= 5);
  CHECK(curve.front().at("zipf_exponent") == 0);
  CHECK(curve.front().at("growth") == 0);
  for (std::size_t i = 1; i < curve.size(); ++i) {
    CHECK(curve[i].at("step_time_s") > curve[i - 1].at("step_time_s"));
    CHECK(curve[i].at("busiest_rank_over_mean") > curve[i - 1].at("busiest_rank_over_mean"));
  }
  // A skew asked for is reason enough; its own step is on the curve.
  const auto asked = json_of(simulate + "--skew zipf:0.5");
  CHECK(asked.at("skew_curve").at(2).at("step_time_s") == asked.at("step_time_s"));
  const auto plan = json_of(
      "plan --model mixtral-8x7b --cluster h100-sxm --gpus 16 --seq-len 4096 --global-batch 32 --top 1 --skew-curve");
  CHECK(plan.at("skew_curve").at(0).at("step_time_s") == plan.at("plans").at(0).at("step_time_s"));
  CHECK(run(simulate + "--skew-curve").text.find("how the step grows with skew") != std::string::npos);
  CHECK(run("simulate --model llama-3.1-8b --cluster h100-sxm --gpus 8 --layout dp8 --global-batch 8 --skew-curve")
            .code == 2);
}

TEST_CASE("bytes and FLOP of a layer are whole numbers, whatever the loads", "[cli][experts]") {
  const auto j = json_of(
      "experts --model deepseek-v3 --cluster h100-sxm --gpus 64 --ep 64 --tokens-per-gpu 1 --skew zipf:0.7 "
      "--decode-batch 3");
  for (const char* key : {"flops", "routed_flops", "network_bytes", "nvlink_bytes", "permute_bytes"}) {
    INFO(key);
    CHECK(j.at(key).is_number_integer());
    CHECK(j.at(key) > 0);
  }
  CHECK(j.at("decode").at("weight_bytes").is_number_integer());
  CHECK(j.at("decode").at("host_offload").at("bytes").is_number_integer());
}

TEST_CASE("simulate names what DeepEP would gain where the transport is left open", "[cli][experts]") {
  const std::string question =
      "simulate --model qwen3-30b-a3b --cluster h100-sxm --gpus 64 --seq-len 4k --global-batch 256 --layout 'pp4 vpp4 "
      "dp16 ep16";
  const auto open = json_of(question + "'"), chosen = json_of(question + " transport=deepep'");
  CHECK(open.at("step_time_with_deepep_s") == chosen.at("step_time_s"));
  CHECK_FALSE(chosen.contains("step_time_with_deepep_s"));
  CHECK_FALSE(json_of(question + " transport=nccl'").contains("step_time_with_deepep_s"));
  CHECK(run(question + "'").text.find("with transport=deepep the step takes") != std::string::npos);
}

TEST_CASE("a grouped product takes no longer than its experts one after the other, and says how it runs",
          "[cli][experts]") {
  const auto grouped = json_of("kernel explain grouped-gemm --gpu h100-sxm --tokens 65536 --experts 4 -n 4096 -k 7168");
  const auto single = json_of("kernel gemm --gpu h100-sxm -m 16384 -n 4096 -k 7168");
  CHECK(grouped.at("run_as") == "loop of single products");
  CHECK(grouped.at("time_s").get<double>() == Approx(4 * single.at("time_s").get<double>()).epsilon(1e-12));
  CHECK(grouped.at("evidence").at("fused_s") > grouped.at("time_s"));
  const auto small = json_of("kernel explain grouped-gemm --gpu h100-sxm --tokens 4096 --experts 64 -n 4096 -k 7168");
  CHECK(small.at("run_as") == "one fused kernel");
  CHECK(small.at("evidence").at("loop_s") >= small.at("time_s").get<double>());
  // A named library is that kernel, whatever a loop would take.
  const auto named =
      json_of("kernel grouped-gemm --gpu h100-sxm --tokens 65536 --experts 4 -n 4096 -k 7168 --library sglang-triton");
  CHECK_FALSE(named.contains("run_as"));
  CHECK(named.at("time_s").get<double>() == Approx(grouped.at("evidence").at("fused_s").get<double>()).epsilon(1e-9));
  CHECK(json_of(kEp64).at("routed_products") == "a loop of single products");
  CHECK(json_of(kEp64 + " --rates datasheet").at("routed_products") == "at the datasheet's peak");
}
