#include <catch2/catch.hpp>
#include <memory>
#include <set>

#include "base/random.hpp"
#include "layouts/memory.hpp"
#include "layouts/ranks.hpp"
#include "layouts/search/search.hpp"
#include "layouts/step/data_parallel.hpp"
#include "layouts/step/pipeline.hpp"
#include "layouts/step/price.hpp"
#include "layouts/step/step.hpp"
#include "tests/asked_step.hpp"

using namespace shardplan;

namespace {

double sum_of(const StepReport& s) {
  return s.busy_s + s.bubble_s + s.reduce_exposed_s + s.slowest_rank_s + s.optimizer_s + s.gather_exposed_s + s.fixed_s;
}

}  // namespace

TEST_CASE("the items of a step add up to its time, whatever the layout") {
  for (const char* layout :
       {"tp8 pp4 dp16", "tp8 pp4 dp16 vpp5", "tp4 cp2 pp2 dp32 mbs2", "dp512 zero3 recompute=full",
        "tp8 pp4 dp16 schedule=zb-h1", "tp8 pp4 dp16 schedule=dualpipe", "tp8 pp4 dp16 schedule=zb-v",
        "tp8 pp8 dp8 zero2 vpp2 recompute=selective:layernorm,mlp"}) {
    INFO(layout);
    const AskedStep b("llama-3.1-70b", "h100-sxm", layout, 512, 8192, 512);
    const StepReport s = simulate_step(b.q);
    CHECK(sum_of(s) == Approx(s.step_time_s).epsilon(1e-12));
    CHECK(s.low_s < s.step_time_s);
    CHECK(s.high_s > s.step_time_s);
    CHECK(s.bubble_s >= 0);
    CHECK(s.reduce_exposed_s >= -1e-12 * s.step_time_s);
  }
}

TEST_CASE("the lower bound never exceeds the replay, for every layout of small questions") {
  struct Ask {
    const char* model;
    const char* cluster;
    std::int64_t gpus, seq, batch;
  };
  for (const Ask& ask :
       {Ask{"llama-3.1-8b", "h100-sxm", 32, 8192, 64}, Ask{"mixtral-8x7b", "a100-sxm-80gb", 64, 4096, 128},
        Ask{"deepseek-v2-lite", "h100-sxm", 64, 4096, 128}, Ask{"moonlight-16b-a3b", "gb200", 32, 4096, 64}}) {
    const Model model = load_model(ask.model);
    const Pricer pricer(load_cluster(ask.cluster), Rates::calibrated, Fidelity::table);
    SearchSpace space;
    space.gpus = ask.gpus;
    space.any = true;
    Workload workload;
    workload.seq_len = ask.seq;
    workload.global_batch = ask.batch;
    std::map<std::string, std::int64_t> refused;
    const Stack stack = load_stack("megatron-core", "--stack");
    const auto candidates = enumerate_candidates(space, model, workload, stack, pricer.cluster(), refused);
    REQUIRE(candidates.size() > 200);
    Random random(7);
    for (int i = 0; i < 300; ++i) {
      const Candidate& c = candidates[random.below(candidates.size())];
      const Layout layout = with_path(c.ladder[random.below(c.ladder.size())], c.paths[random.below(c.paths.size())]);
      StepQuestion q;
      q.model = &model;
      q.pricer = &pricer;
      q.layout = layout;
      q.workload = workload;
      q.stack = stack;
      INFO(layout_text(layout));
      const double step = simulate_step(q).step_time_s;
      CHECK(step_lower_bound(q) <= step * (1 + 1e-9));
    }
  }
}

TEST_CASE("pruning by the bound finds the same plans as replaying every layout") {
  const Model model = load_model("llama-3.1-8b");
  const Pricer pricer(load_cluster("h100-sxm"), Rates::calibrated, Fidelity::table);
  PlanQuestion q;
  q.model = &model;
  q.pricer = &pricer;
  q.space.gpus = 16;
  q.workload.seq_len = 8192;
  q.workload.global_batch = 64;
  q.stack = load_stack("megatron-core", "--stack");
  q.memory.traits = memory_traits("megatron-core");
  const PlanAnswer pruned = search_plans(q);
  q.exhaustive = true;
  const PlanAnswer all = search_plans(q);
  REQUIRE(pruned.plans.size() == 10);
  CHECK(all.pruned == 0);
  CHECK(pruned.replayed < all.replayed);
  for (std::size_t i = 0; i < pruned.plans.size(); ++i) {
    CHECK(layout_text(pruned.plans[i].layout) == layout_text(all.plans[i].layout));
    CHECK(pruned.plans[i].step.step_time_s == all.plans[i].step.step_time_s);
  }
  CHECK(pruned.considered == all.considered);
}

TEST_CASE("an effect that is switched off never makes the step slower") {
  const AskedStep b("mixtral-8x7b", "a100-sxm-80gb", "tp2 pp4 dp8 ep8 recompute=full", 64, 4096, 128);
  const double with = simulate_step(b.q).step_time_s;
  for (std::size_t e = 0; e < kEffectNames.size(); ++e) {
    StepQuestion q = b.q;
    q.options.without = 1u << e;
    INFO(kEffectNames[e]);
    // The release and the sustained rate may lie on either side of the tables.
    if (static_cast<Effect>(e) == Effect::release) continue;
    CHECK(simulate_step(q).step_time_s <= with * (1 + 1e-9));
  }
}

TEST_CASE("datasheet rates price 405B's matrix products at the printed peak") {
  // 70.55 G parameters less the input embedding, 8,192 tokens, tp8 on 989.4 TFLOP/s: 6 N T / (8 peak) = 0.43 s, and
  // 0.036 s of causal attention more.
  const AskedStep b("llama-3.1-70b", "h100-sxm", "tp8 dp64 zero1", 512, 8192, 64, Rates::datasheet);
  const StepReport s = simulate_step(b.q);
  const double peak = b.pricer.cluster().gpu.peak(DataType::bf16);
  const double matmul = s.busiest.part(Part::gemm) + s.busiest.part(Part::attention);
  CHECK(matmul == Approx(s.model_flops / 512 / peak - 6 * 8192.0 * 8192 * 128256 / 8 / peak).epsilon(0.02));
  CHECK(s.low_s == s.step_time_s);
}

TEST_CASE("more micro-batches take longer, and their bubble shrinks") {
  double last = 0, bubble = 1;
  for (const std::int64_t batch : {64, 128, 256, 512}) {
    const AskedStep b("llama-3.1-8b", "h100-sxm", "tp2 pp4 dp4", 32, 8192, batch);
    const StepReport s = simulate_step(b.q);
    CHECK(s.step_time_s > last);
    CHECK(s.over_total < bubble);
    last = s.step_time_s;
    bubble = s.over_total;
  }
}

TEST_CASE("a group with some of a node's GPUs may reach only part of their NICs") {
  AskedStep b("llama-3.1-8b", "h100-sxm", "tp4 pp4 dp4", 64, 8192, 256);
  const double bytes = 8e9;  // bandwidth-bound
  const auto seconds = [&](int members, double strided) {
    MachineConstants c = b.pricer.constants();
    c.strided_nics = strided;
    b.pricer.set_constants(c);
    const StepPricer price(b.q);
    return price.collective(Collective::all_gather, bytes, group_shape(b.pricer.cluster(), 64, members)).seconds;
  };
  CHECK(seconds(2, 0.5) / seconds(2, 1) == Approx(2 / 1.5).epsilon(0.03));
  CHECK(seconds(4, 0.5) / seconds(4, 1) == Approx(4 / 2.5).epsilon(0.03));
  CHECK(seconds(8, 0.5) == seconds(8, 1));  // a whole node: every ring leaves where it entered
  CHECK(seconds(1, 0.5) == seconds(1, 1));  // one GPU, one NIC
}

TEST_CASE("a step long enough to leave most of its steady state out of the replay takes what the whole one takes") {
  // Asking for a trace replays every pass.
  for (const char* layout : {"tp2 pp4", "tp2 pp4 vpp4 zero2", "tp2 pp4 schedule=zb-h1", "tp2 pp4 schedule=zb-v",
                             "tp2 pp4 schedule=dualpipe", "tp2 pp4 vpp2 schedule=looped-bfs"}) {
    INFO(layout);
    AskedStep b("llama-3.1-8b", "h100-sxm", layout, 16, 8192, 131'072);
    const StepReport s = simulate_step(b.q);
    b.q.options.keep_trace = true;
    const StepReport whole = simulate_step(b.q);
    CHECK(s.step_time_s == Approx(whole.step_time_s).epsilon(1e-10));
    CHECK(s.busy_s == Approx(whole.busy_s).epsilon(1e-10));
    CHECK(s.bubble_s == Approx(whole.bubble_s).epsilon(1e-6));
    CHECK(s.reduce_exposed_s == Approx(whole.reduce_exposed_s).epsilon(1e-6).margin(1e-9));
    CHECK(s.busiest.device() == Approx(whole.busiest.device()).epsilon(1e-10));
    CHECK(s.launch_s == Approx(whole.launch_s).epsilon(1e-6).margin(1e-9));
    CHECK(s.blocking_s == Approx(whole.blocking_s).epsilon(1e-10).margin(1e-9));
    CHECK(s.over_ideal == Approx(whole.over_ideal).epsilon(1e-6));
    CHECK(s.over_total == Approx(whole.over_total).epsilon(1e-6));
    CHECK(s.window == Approx(whole.window).epsilon(1e-6));
    CHECK(s.ranks.back().finish == Approx(whole.ranks.back().finish).epsilon(1e-10));
  }
}

TEST_CASE("an interval is wider on a GPU that no step was measured on") {
  const auto width = [](const char* cluster) {
    const AskedStep b("llama-3.1-8b", cluster, "tp8", 8, 8192, 16);
    const StepReport s = simulate_step(b.q);
    return std::log(s.high_s / s.low_s);
  };
  CHECK(width("mi300x") > 1.5 * width("h100-sxm"));
  CHECK(width("v100-sxm-32gb") > 1.5 * width("h100-sxm"));
}

TEST_CASE("each pipeline message takes what joins its two ranks: NVLink in a node, the network between nodes") {
  // Two GPUs a stage, four stages a node; chunks go round from the last stage to the first.
  const AskedStep a("llama-3.1-70b", "h100-sxm", "tp2 pp8 vpp2", 16, 4096, 64);
  const Layout& l = a.q.layout;
  CHECK(crossing_hops(l, a.pricer.cluster()) ==
        std::vector<bool>{false, false, false, true, false, false, false, true});
  const Groups groups = groups_of(l, a.pricer.cluster());
  const Pipeline p = build_pipeline(a.q, groups, 64);
  const double bytes = 2.0 * 4096 * 8192 / 2;
  const StepPricer price(a.q);
  const double inside = price.collective(Collective::send_recv, bytes, {2, 2, 2}).seconds,
               between =
                   price.collective(Collective::send_recv, bytes, {2, 1, 1}).seconds + a.pricer.constants().message_s;
  REQUIRE(inside < 0.5 * between);
  for (std::size_t s = 0; s < 16; ++s) {
    INFO("stage " << s);
    CHECK(p.hop_next[s] == Approx(s == 15 ? 0 : s % 4 == 3 ? between : inside).epsilon(1e-12));
    CHECK(p.hop_previous[s] == Approx(s == 0 ? 0 : s % 4 == 0 ? between : inside).epsilon(1e-12));
  }
  CHECK(simulate_step(a.q).hop_s == Approx(between).epsilon(1e-12));
  // A V-shaped placement turns on one rank: no message there.
  const AskedStep v("llama-3.1-70b", "h100-sxm", "tp8 pp4 schedule=zb-v", 32, 4096, 64);
  const Pipeline turned = build_pipeline(v.q, groups_of(v.q.layout, v.pricer.cluster()), 64);
  CHECK(turned.hop_next[3] == 0);
  CHECK(turned.hop_previous[4] == 0);
  CHECK(turned.hop_next[2] > 0);
  // One domain holds all: NVLink everywhere. Pipeline ranks innermost: neighbours share a node under any tp.
  CHECK(crossing_hops(parse_layout("tp2 pp4", 8, ""), a.pricer.cluster()) == std::vector<bool>(4, false));
  CHECK(crossing_hops(parse_layout("tp8 pp4 order=pp-tp-cp-dp", 32, ""), a.pricer.cluster()) ==
        std::vector<bool>(4, false));
}

TEST_CASE("bidirectional schedules share gradients and optimizer states over both copies of a stage") {
  const AskedStep one("llama-3.1-8b", "h100-sxm", "tp2 pp4 dp4", 32, 4096, 64),
      both("llama-3.1-8b", "h100-sxm", "tp2 pp4 dp4 schedule=dualpipe", 32, 4096, 64);
  const auto parallel = [](const AskedStep& a) { return DataParallel(a.q, groups_of(a.q.layout, a.pricer.cluster())); };
  LocalParameters p;
  p.dense = 1e9;
  const double norm = parallel(one).gradient_norm();
  CHECK(norm > 0);
  CHECK(norm < 1e-3);
  LocalParameters half = p;
  half.dense /= 2;
  CHECK(parallel(both).optimizer(p) == Approx(parallel(one).optimizer(half)).epsilon(1e-12));
  // A ring over 8 ranks moves 7/8 of the bytes, over 4 it moves 3/4.
  CHECK(parallel(both).reduce(p) > 1.05 * parallel(one).reduce(p));
  CHECK(parallel(both).gather(p) > 1.05 * parallel(one).gather(p));
  // No data parallelism: the two copies still reduce over each other.
  const AskedStep alone("llama-3.1-8b", "h100-sxm", "tp2 pp4 schedule=dualpipe", 8, 4096, 64);
  CHECK(parallel(alone).reduce(p) > 0);
}

TEST_CASE("sharded units of more layers: fewer and longer gathers, more memory") {
  const auto asked = [](const std::string& words, const char* stack) {
    auto a = std::make_unique<AskedStep>("llama-3.1-8b", "h100-sxm", "dp64 zero3 " + words, 64, 4096, 64);
    a->q.stack = load_stack(stack, "--stack");
    return a;
  };
  const auto seconds = [&](const std::string& words) {
    return simulate_step(asked(words, "torchtitan")->q).step_time_s;
  };
  CHECK(seconds("wrap=1") == seconds(""));
  // Nothing to gather ahead of: the first unit is exposed, all of the model where it is one unit.
  CHECK(seconds("wrap=32") > seconds("wrap=8"));
  CHECK(seconds("wrap=8") > seconds(""));
  CHECK(seconds("wrap=64") == Approx(seconds("wrap=32")).epsilon(1e-12));
  const auto held = [&](const std::string& words) {
    const auto a = asked(words, "torchtitan");
    return memory_of(a->model, a->pricer.cluster(), a->q.layout, a->q.workload, MemoryOptions{}).peak_bytes();
  };
  CHECK(held("wrap=4") > held("") + 3 * 2 * 0.2e9);
  CHECK(held("wrap=1") == held(""));
  // Layers reduce-scatter in the type that the layout names.
  CHECK(seconds("grad-reduce=bf16 prefetch=0") < seconds("grad-reduce=fp32 prefetch=0"));
}
