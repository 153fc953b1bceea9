// What single mechanisms of expert parallelism are worth, against published pairs of runs that differ in nothing else.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <string>

#include "layouts/expert_layer.hpp"
#include "layouts/precision.hpp"
#include "layouts/score_runs.hpp"
#include "layouts/step/price.hpp"
#include "layouts/step/skew_curve.hpp"
#include "layouts/step/step.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"

using namespace shardplan;

namespace {

struct Qwen {
  Model model = load_model("qwen3-235b-a22b");
  Pricer pricer{load_cluster("h100-sxm"), Rates::calibrated, Fidelity::table};

  StepQuestion ask(const std::string& layout, std::int64_t seq, std::int64_t batch) const {
    StepQuestion q;
    q.model = &model;
    q.pricer = &pricer;
    q.layout = parse_layout(layout, 256, "layout");
    q.workload.seq_len = seq;
    q.workload.global_batch = batch;
    q.stack = load_stack("megatron-core-moe", "stack");
    return q;
  }
  /// Real routing over balanced, the published long-context layouts.
  double real_over_balanced(const std::string& degrees, std::int64_t seq) const {
    StepQuestion q = ask(degrees +
                             " pp8 vpp4 ep8 zero1 recompute=selective:layernorm,moe transport=deepep "
                             "split=embed-loss-as-layers",
                         seq, 256);
    const double balanced = simulate_step(q).step_time_s;
    q.options.routing.real = true;
    return simulate_step(q).step_time_s / balanced - 1;
  }
};

}  // namespace

TEST_CASE("the skew of real routing is the one fitted on the pair at 16k tokens, and predicts 64k within 5 points",
          "[experts][measured]") {
  // Megatron-MoE-ModelZoo c1ad0b5c89f4, best_practice/Qwen3/readme.md: TFLOP/s a GPU, forced balance and dropless.
  const Qwen qwen;
  CHECK(qwen.real_over_balanced("tp4 dp8", 16384) == Approx(295.0 / 237 - 1).margin(0.01));
  CHECK(qwen.real_over_balanced("tp4 cp4 dp2", 65536) == Approx(368.0 / 320 - 1).margin(0.05));
}

TEST_CASE("real routing loads a rank the more, the fewer experts it holds", "[experts]") {
  const Model model = load_model("qwen3-235b-a22b");
  const Moe& moe = *model.layers.back().moe;
  double before = 1;
  for (const int ep : {2, 4, 8, 16, 32, 64, 128}) {
    const double load = real_routing_load(moe, ep);
    CHECK(load > before);
    before = load;
  }
  CHECK(before <= static_cast<double>(moe.experts) / static_cast<double>(moe.top_k) + 1e-9);  // no load above 1 / k
  CHECK(real_routing_load(moe, 1) == 1);
  CHECK(real_routing_load(moe, 8, 0.0) == Approx(1).epsilon(1e-9));
  const Qwen qwen;
  RoutingQuestion routing;
  routing.real = true;
  CHECK(routed_load(routing, qwen.model, parse_layout("tp4 dp8 pp8 vpp4 ep8", 256, "layout"),
                    load_cluster("h100-sxm")) == Approx(real_routing_load(moe, 8)));
}

TEST_CASE(
    "all-to-alls under another micro-batch save at least half and at most 2.3 times what the published pair saved",
    "[experts][measured]") {
  // 19.7 and 17.6 s, -10.7 % (the same source): DeepEP over four nodes, 1F1B overlap with delayed weight gradients. The
  // prediction saves more: the host's launches hold the shorter step by more than their fitted rate says.
  const Qwen qwen;
  const std::string words =
      "tp2 pp8 vpp4 ep32 dp16 zero1 recompute=selective:layernorm,moe_act transport=deepep split=embed-loss-as-layers "
      "ep-overlap=";
  const double none = simulate_step(qwen.ask(words + "none", 4096, 2048)).step_time_s;
  const double pairs = simulate_step(qwen.ask(words + "1f1b", 4096, 2048)).step_time_s;
  const double saved = 1 - pairs / none, published = 1 - 17.6 / 19.7;
  CHECK(saved > 0.5 * published);
  CHECK(saved < 2.3 * published);
  // Weight gradients in one block with their inputs' leave less to hide under.
  CHECK(simulate_step(qwen.ask(words + "1f1b delay-wgrad=0", 4096, 2048)).step_time_s >= pairs * (1 - 1e-12));
}

TEST_CASE("CUDA graphs of modules take their launches from the host, and no others", "[experts]") {
  // One sequence of 512 tokens a pass: the host's launches hold the step.
  const Qwen qwen;
  const auto seconds = [&](const std::string& graphs) {
    return simulate_step(qwen.ask("pp8 dp32 ep8 zero1 transport=deepep cuda-graphs=" + graphs, 512, 256)).step_time_s;
  };
  const double none = seconds("none"), attention = seconds("modules:attn"), router = seconds("modules:moe_router"),
               both = seconds("modules:attn,moe_router,moe_preprocess"), layer = seconds("per-layer"),
               full = seconds("full");
  CHECK(attention < none);
  CHECK(router < none);
  CHECK(both < std::min(attention, router));
  CHECK(layer < both);
  CHECK(full < layer);
  CHECK(seconds("modules:mlp") == Approx(none).epsilon(1e-12));  // no layer has one
}

TEST_CASE("the factor of a fabric's collectives multiplies NCCL's all-to-all, not DeepEP's measured kernels",
          "[experts]") {
  Qwen qwen;
  const auto exchange = [&](const std::string& transport) {
    const StepQuestion q = qwen.ask("tp2 pp8 vpp4 ep32 dp16 transport=" + transport, 4096, 2048);
    const ExpertTraffic t = StepPricer(q).expert_traffic(*qwen.model.layers.back().moe, 2048, qwen.model.hidden,
                                                         groups_of(q.layout, qwen.pricer.cluster()));
    return t.dispatch.seconds + t.combine.seconds;
  };
  const double nccl = exchange("nccl"), deepep = exchange("deepep");
  MachineConstants slower = qwen.pricer.constants();
  slower.network_factor *= 2;
  qwen.pricer.set_constants(slower);
  CHECK(exchange("nccl") == Approx(2 * nccl).epsilon(1e-12));
  CHECK(exchange("deepep") == Approx(deepep).epsilon(1e-12));
}

TEST_CASE("permutations move what the transport leaves to them", "[experts]") {
  const Model model = load_model("qwen3-235b-a22b");
  ExpertLoadQuestion q;
  q.moe = &*model.layers.back().moe;
  q.hidden = model.hidden;
  q.tokens_per_rank = 4096;
  q.ep = 8;
  const auto rows = [&](ExpertTransport transport) {
    q.transport = transport;
    return permuted_rows_per_pair(q, expert_load(q));
  };
  // 16 experts a rank: 8 copies and their sum, and all sorted by expert and back. DeepEP: 5.3 of 8 ranks get a token
  // once.
  CHECK(rows(ExpertTransport::nccl) == Approx(2 * (1 + 1.0 / 8) + 4));
  CHECK(rows(ExpertTransport::deepep) == Approx(2 * (1 + expert_load(q).distinct_ranks / 8)));
  CHECK(rows(ExpertTransport::deepep) < 4);
  q.ep = 128;  // one expert a rank: nothing to sort
  q.ranks_per_node = 8;
  CHECK(rows(ExpertTransport::nccl) == Approx(2 * (1 + 1.0 / 8)));
}

TEST_CASE("the published ablations of expert parallelism have the right sign", "[experts][measured]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    WARN("skipped: SHARDPLAN_FACTS is unset");
    return;
  }
  std::vector<MeasuredRun> runs;
  for (MeasuredRun& run : read_runs(std::string(facts) + "/truth/runs.json"))
    if (run.family == "modelzoo" || run.family == "mbridge_skill") runs.push_back(std::move(run));
  PricerShelf shelf(ConstantSet::all);
  std::map<std::string, ScoredRow> by_id;
  for (ScoredRow& row : score_runs(run_questions(std::move(runs), ConstantSet::all), shelf, 0))
    if (row.skipped.empty()) by_id[row.id] = row;
  struct Pair {
    const char *from, *to;
  };
  for (const Pair& p :
       {Pair{"modelzoo-h100-235b-1", "modelzoo-h100-235b-2"}, Pair{"modelzoo-h100-235b-1", "modelzoo-h100-235b-4"},
        Pair{"modelzoo-h100-235b-long-64k-forced-balance", "modelzoo-h100-235b-long-64k-dropless-real-routing"},
        Pair{"mbridge_skill-moonlight-none", "mbridge_skill-moonlight-core_attn"},
        Pair{"mbridge_skill-moonlight-none", "mbridge_skill-moonlight-mla_up_proj"},
        Pair{"mbridge_skill-moonlight-mla_up_proj", "mbridge_skill-moonlight-mla_up_proj+mlp"},
        Pair{"mbridge_skill-llama70b-sft-baseline", "mbridge_skill-llama70b-sft-morePP"}}) {
    INFO(p.from << " -> " << p.to);
    REQUIRE(by_id.count(p.from) == 1);
    REQUIRE(by_id.count(p.to) == 1);
    const ScoredRow &a = by_id[p.from], &b = by_id[p.to];
    CHECK((b.predicted_s - a.predicted_s) * (b.measured_s - a.measured_s) > 0);
  }
  // A row without dimensions of its own says whose it took.
  CHECK(by_id["mbridge_skill-moonlight-none"].note.find("moonlight-16b-a3b") != std::string::npos);
}

TEST_CASE("a run without dimensions takes those of the built-in model of its name, and must not contradict them") {
  const auto parse = [](const std::string& text) { return model_of_run(Field::parse(text, "row")); };
  CHECK(parse(R"({"name": "Moonlight 16B", "layers": 27, "dense_layers": 1})").hidden == 2048);
  CHECK(parse(R"({"name": "deepseek v3"})").mtp.empty());
  CHECK(parse(R"({"name": "deepseek v3", "mtp_layers": 1})").mtp.size() == 1);
  CHECK_THROWS_WITH(parse(R"({"name": "Moonlight 16B", "layers": 28})"), Catch::Contains("moonlight-16b-a3b has 27"));
  // "Qwen3" begins many names, "Nemotron_3_Nano" none: nothing is guessed.
  CHECK_THROWS_WITH(parse(R"({"name": "Qwen3"})"), Catch::Contains("is not stated"));
  CHECK_THROWS_WITH(parse(R"({"name": "Nemotron_3_Nano"})"), Catch::Contains("is not stated"));
}

TEST_CASE("Moonlight's parameters are the published ones", "[models]") {
  // "Muon is scalable for LLM training" (arXiv 2502.16982), table 3: 15.29 B parameters without the embeddings, of
  // which 2.24 B active.
  const Model m = load_model("moonlight-16b-a3b");
  const ParameterCounts count = count_parameters(m);
  const double embeddings = 2.0 * static_cast<double>(m.vocab * m.hidden);
  CHECK(static_cast<double>(count.total) - embeddings == Approx(15.29e9).epsilon(0.002));
  CHECK(static_cast<double>(count.active_without_embeddings) == Approx(2.24e9).epsilon(0.005));
}

TEST_CASE("a step grows with the skew of its experts, and says in what", "[experts]") {
  const Qwen qwen;
  const StepQuestion q = qwen.ask("tp2 pp8 vpp4 ep32 dp16 zero1 transport=deepep", 4096, 512);
  MemoryOptions memory;
  memory.traits = memory_traits("megatron-core-moe");
  const std::vector<SkewPoint> curve = skew_curve(q, memory, 1);
  REQUIRE(curve.size() == std::size(kSkewExponents));
  CHECK(curve.front().busiest_rank == Approx(1).epsilon(1e-9));
  CHECK(curve.front().step_time_s == Approx(simulate_step(q).step_time_s).epsilon(1e-12));
  for (std::size_t i = 1; i < curve.size(); ++i) {
    CHECK(curve[i].busiest_rank > curve[i - 1].busiest_rank);
    CHECK(curve[i].busiest_expert >= curve[i].busiest_rank);
    CHECK(curve[i].step_time_s > curve[i - 1].step_time_s);
    CHECK(curve[i].experts_s > curve[i - 1].experts_s);
    CHECK(curve[i].exchange_s > curve[i - 1].exchange_s);
    CHECK(curve[i].memory_bytes > curve[i - 1].memory_bytes);
    CHECK(curve[i].step_time_s == Approx(curve[i].experts_s + curve[i].exchange_s + curve[i].rest_s).epsilon(1e-12));
  }
  const Model dense = load_model("llama-3.1-8b");
  StepQuestion no_experts = q;
  no_experts.model = &dense;
  CHECK_THROWS_WITH(skew_curve(no_experts, memory, 1), Catch::Contains("no experts"));
}

TEST_CASE("DeepSeek-V3 on 2,048 H800: the published layout's GPU-hours, and what they consist of",
          "[experts][measured]") {
  // arXiv 2412.19437: 180 thousand GPU-hours a trillion tokens; a peer gets EP64 the wrong way round.
  const Model model = load_model("deepseek-v3");
  const Pricer pricer(load_cluster("deepseek-h800"), Rates::calibrated, Fidelity::table);
  const auto seconds = [&](const std::string& layout, double busiest = 1, std::uint32_t without = 0) {
    StepQuestion q;
    q.model = &model;
    q.pricer = &pricer;
    q.layout = parse_layout(layout, 2048, "layout");
    q.workload.seq_len = 4096;
    q.workload.global_batch = 15360;
    q.workload.precision = parse_precision("fp8-block", "precision");
    q.stack = load_stack("megatron-core", "stack");
    q.options.routing.nodes_per_token = 4;
    q.options.routing.max_over_mean = busiest;
    q.options.without = without;
    return simulate_step(q).step_time_s;
  };
  const std::string as_published =
      "pp16 dp128 ep64 zero1 schedule=dualpipe ep-overlap=dualpipe transport=deepep act-store=fp8 "
      "recompute=selective:norm,mla_up_proj,moe_act";
  const double published = seconds(as_published);
  const double tokens = 4096.0 * 15360;
  const double hours = 2048 * published / 3600 / (tokens / 1e12);
  CHECK(hours > 145e3);
  CHECK(hours < 200e3);
  const double ratio = seconds("pp16 dp128 ep8 zero1 recompute=full transport=deepep") / published;
  CHECK(ratio > 1.2);
  CHECK(ratio < 1.7);
  CHECK(seconds(as_published, 1.2) > 1.02 * published);
  for (const Effect e : {Effect::p2p, Effect::vocabulary, Effect::dp_communication, Effect::moe_communication}) {
    INFO(kEffectNames[static_cast<std::size_t>(e)]);
    CHECK(seconds(as_published, 1, std::uint32_t{1} << static_cast<unsigned>(e)) < published);
  }
}
