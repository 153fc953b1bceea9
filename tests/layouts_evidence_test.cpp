// On what a prediction says that it stands, and how its interval follows.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "layouts/step/evidence.hpp"
#include "tests/asked_step.hpp"

using namespace shardplan;

namespace {

Evidence of(const AskedStep& a) { return evidence_of(a.q, simulate_step(a.q)); }

bool names(const std::vector<std::string>& list, const std::string& part) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& s) { return s.find(part) != std::string::npos; });
}

double width(const AskedStep& a) {
  const StepReport s = simulate_step(a.q);
  return std::log(s.high_s / s.low_s);
}

}  // namespace

TEST_CASE("evidence counts the runs behind the constants of this GPU, network and stack") {
  AskedStep a("llama-3.1-70b", "h100-sxm", "tp8 pp4 vpp5", 512, 8192, 512);
  const Evidence e = of(a);
  REQUIRE(e.rows.size() == 4);
  CHECK(e.rows[0].scope == "h100-sxm");
  CHECK(e.rows[0].constant == "bf16");
  CHECK(e.rows[0].runs >= 50);
  CHECK(e.rows[1].constant == "attention_cudnn");
  CHECK(e.rows[2].scope == "infiniband-400");
  CHECK(e.rows[2].constant == "network_factor");
  CHECK(e.rows[3].scope == "megatron-core");
  CHECK(e.rows[3].runs == a.q.stack.constants.fit_rows);
  CHECK(e.kind == "dense");
  CHECK(e.left_out_sd == a.q.stack.constants.residual_sd);
  a.q.workload.precision = DataType::fp8;
  CHECK(of(a).rows.size() == 5);
  a.q.options.rates = Rates::datasheet;
  CHECK(of(a).rows.empty());
}

TEST_CASE("a GPU without measured runs says so, and so does a stack without runs with experts") {
  const Evidence e = of(AskedStep("llama-3.1-8b", "mi300x", "dp8", 8, 8192, 16));
  CHECK(e.rows.front().scope == "mi300x");
  CHECK(e.rows.front().runs == 0);
  CHECK(names(e.wider_for, "GPU"));
  const Evidence moe = of(AskedStep("qwen3-30b-a3b", "h100-sxm", "dp64 ep8", 64, 4096, 512));
  CHECK(moe.kind == "with experts");
  CHECK_FALSE(moe.left_out_measured);
  CHECK(std::count(moe.measured_stacks.begin(), moe.measured_stacks.end(), "megatron-bridge") == 1);
  CHECK(std::count(moe.measured_stacks.begin(), moe.measured_stacks.end(), "torchtitan") == 0);  // another framework
}

TEST_CASE("an interval is wider for a stack with few runs and for a network with none") {
  AskedStep a("llama-3.1-70b", "h100-sxm", "tp8 pp4 vpp5", 512, 8192, 512);
  a.q.stack = load_stack("megatron-bridge", "stack");
  CHECK(of(a).wider_for.empty());
  const double measured = width(a);
  CHECK(measured == Approx(2 * 1.2816 * a.q.stack.constants.residual_sd).epsilon(1e-9));
  a.q.stack.constants.fit_rows = 4;
  CHECK(width(a) > measured);
  CHECK(names(of(a).wider_for, "fewer than 5"));
  // Data parallelism over a cloud's network: its gradients' exposed reduction is what the network is asked for.
  const AskedStep far("llama-3.1-8b", "gcp-a3-high", "dp64", 64, 8192, 64);
  CHECK(names(of(far).wider_for, "network"));
}

TEST_CASE("the stages of a layout in Megatron's notation are read back as they are") {
  const Model model = load_model("deepseek-v3");
  for (const char* text : {"pp16 dp2 ep8", "pp8 vpp4 dp4 ep8", "pp4 vpp2 dp8 ep8", "dp32 ep8"}) {
    INFO(text);
    Layout layout = parse_layout(text, 0, "layout");
    const std::vector<StageSlice> slices = split_stages(layout, model);
    layout.split = SplitKind::pattern;
    layout.split_pattern = stage_layout_of(slices);
    CHECK(split_stages(layout, model) == slices);
  }
}
