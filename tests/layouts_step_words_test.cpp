// What single words of a layout do to a step's time.
#include <catch2/catch.hpp>
#include <string>

#include "asked_step.hpp"
#include "base/errors.hpp"
#include "layouts/step/constants.hpp"
#include "layouts/step/layer_cost.hpp"
#include "layouts/step/layer_shelf.hpp"
#include "layouts/step/step.hpp"

using namespace shardplan;
using Catch::Contains;

namespace {

StepReport mixture(const std::string& words, const std::string& without = "") {
  AskedStep a("deepseek-v3", "h800-sxm", "pp8 dp32 ep32 zero1 transport=deepep " + words, 256, 4096, 2048);
  for (std::size_t e = 0; e < kEffectNames.size(); ++e)
    if (kEffectNames[e] == without) a.q.options.without |= 1u << e;
  return simulate_step(a.q);
}

StepReport dense(const std::string& words, DataType precision = DataType::bf16) {
  AskedStep a("llama-3.1-8b", "h100-sxm", "dp8 zero1 " + words, 8, 4096, 64);
  a.q.workload.precision = precision;
  return simulate_step(a.q);
}

}  // namespace

TEST_CASE("experts in waves: one wave hides nothing, more hide more, none beats free all-to-alls") {
  const StepReport none = mixture("");
  const StepReport one = mixture("ep-overlap=waves1");
  CHECK(one.busiest.part(Part::ep) == none.busiest.part(Part::ep));
  CHECK(one.step_time_s == none.step_time_s);
  const double free = mixture("", "moe-communication").step_time_s;
  double before = none.step_time_s;
  for (const char* words : {"ep-overlap=waves2", "ep-overlap=waves4", "ep-overlap=waves8"}) {
    INFO(words);
    const double now = mixture(words).step_time_s;
    CHECK(now < before);
    CHECK(now > free);
    before = now;
  }
}

TEST_CASE("experts in waves: more waves than a rank has experts are refused") {
  CHECK_THROWS_WITH(mixture("ep-overlap=waves9"), Contains("needs as many experts on a rank; ep32 leaves 8"));
}

TEST_CASE("act-store=fp8 casts what is kept down and up again, and nothing else") {
  const StepReport wide = dense(""), kept = dense("act-store=fp8");
  const double casts = kept.busiest.part(Part::elementwise) - wide.busiest.part(Part::elementwise);
  // Linear inputs of a layer: h to QKV, h to the output, h to gate and up, f to down; gate and up themselves.
  const double h = 4096, f = 14336, values = 3 * h + f + 2 * f, tokens = 64.0 * 4096 / 8;
  const double bytes = 32 * tokens * values * (2 + 1) * 2;  // 16 bits and one byte, down and up
  CHECK(bytes / casts < 3.35e12);                           // no faster than the memory
  CHECK(bytes / casts > 0.5 * 3.35e12);
  CHECK(kept.busiest.part(Part::gemm) == wide.busiest.part(Part::gemm));
  // FP8 products quantise their inputs anyway.
  const double narrow = dense("act-store=fp8", DataType::fp8_block).busiest.part(Part::elementwise) -
                        dense("", DataType::fp8_block).busiest.part(Part::elementwise);
  CHECK(narrow / casts == Approx(2 * f / values).epsilon(0.05));
}

TEST_CASE("grad-accumulate=bf16 takes the weight gradients' FP32 traffic off") {
  CHECK(dense("grad-accumulate=bf16").busiest.part(Part::gemm) < dense("").busiest.part(Part::gemm));
  CHECK(dense("grad-accumulate=fp32").step_time_s == dense("").step_time_s);  // as the stack does it
}

TEST_CASE("offload=optimizer: gradients over the link, the optimizer in the host's memory, weights back") {
  const double parameters = 8.030261248e9 / 8;
  CHECK(dense("offload=optimizer").optimizer_s ==
        Approx(parameters * (4 + 2) / 63e9 + parameters * 30 * 8 / 614.4e9).epsilon(2e-3));
  AskedStep unknown("llama-3.1-8b", "llama3-roce", "dp8 zero1 offload=optimizer", 8, 4096, 64);
  CHECK_THROWS_WITH(simulate_step(unknown.q), Contains("host_memory_bandwidth"));
}

TEST_CASE("stacks whose operators the same Python issues share one time an operator") {
  const auto launch = [](const char* stack) { return load_stack(stack, "--stack").constants.kernel_launch_s; };
  for (const char* stack : {"megatron-core-0.14", "megatron-core-moe", "megatron-bridge", "nemo-24.07"})
    CHECK(launch(stack) == launch("megatron-core"));
  CHECK(launch("megatron-deepspeed-bloom") == launch("megatron-deepspeed"));
  CHECK(launch("megatron-lm-2020") == launch("megatron-lm-2022"));
  CHECK(launch("megatron-lm-2022") != launch("megatron-core"));
  for (const FittedConstant& c : fitted_constants(ConstantSet::all)) {
    if (c.kind != "host-code") continue;
    INFO(c.scope);
    CHECK(load_stack(c.scope == "megatron-lm" ? "megatron-lm-2022" : c.scope, "--stack").host_code == c.scope);
  }
}

TEST_CASE("an expert of a grouped layer costs the host an operator a product and pass, FP8 casts one a product") {
  // Eight experts a rank or four: the products' own operators are the same.
  const auto host = [](const char* layout, DataType precision) {
    AskedStep a("mixtral-8x7b", "h100-sxm", layout, 8, 4096, 8);
    a.q.workload.precision = precision;
    const Groups groups = groups_of(a.q.layout, a.pricer.cluster());
    const LayerPricer layers(a.q, groups);
    const LayerCost cost = layers.layer(a.model.layers.front(), false);
    return (cost.forward.host + cost.input_grad.host + cost.weight_grad.host) / StepPricer(a.q).launch();
  };
  const double eight = host("dp8", DataType::bf16), four = host("tp1 dp8 ep2", DataType::bf16);
  // Four more experts, two products, two passes; without expert parallelism there are no all-to-alls (5 operators).
  CHECK(eight - four == Approx(4 * 2 * 2 - 5).epsilon(1e-9));
  CHECK(host("dp8", DataType::fp8) - eight == Approx(2 * 2).epsilon(1e-9));
}

TEST_CASE("a GPU takes its kin's hosts, and is not measured for that") {
  const auto constants = [](const char* gpu) {
    const Cluster c = load_cluster(gpu);
    return machine_constants(c, KernelModel(c.gpu, Rates::calibrated));
  };
  CHECK(constants("h800-sxm").host_factor == constants("h100-sxm").host_factor);
  CHECK(constants("h100-sxm").gpu_fitted);
  CHECK_FALSE(constants("h800-sxm").gpu_fitted);
  CHECK(constants("mi300x").host_factor == 1);
}

TEST_CASE("experts in waves: a search prices them anew where the schedule runs weight gradients apart") {
  LayerShelf shelf;
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    AskedStep a("deepseek-v3", "h800-sxm",
                std::string("pp8 dp32 ep32 zero1 transport=deepep ep-overlap=waves4 schedule=") + schedule, 256, 4096,
                2048);
    const double alone = step_lower_bound(a.q);
    a.q.shelf = &shelf;
    CHECK(step_lower_bound(a.q) == alone);
  }
}
