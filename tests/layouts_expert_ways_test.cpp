// The search over transports and overlaps of the experts' exchange: which machine has which, and that none is lost.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "base/random.hpp"
#include "layouts/machine_needs.hpp"
#include "layouts/search/expert_ways.hpp"
#include "layouts/search/search.hpp"
#include "layouts/step/price.hpp"
#include "models/load_model.hpp"

using namespace shardplan;

namespace {

struct Asked {
  Model model;
  Pricer pricer;
  PlanQuestion q;

  Asked(const char* name, const char* cluster, std::int64_t gpus, std::int64_t seq, std::int64_t batch,
        const char* stack = "megatron-core")
      : model(load_model(name)), pricer(load_cluster(cluster), Rates::calibrated, Fidelity::table) {
    q.model = &model;
    q.pricer = &pricer;
    q.space.gpus = gpus;
    q.workload.seq_len = seq;
    q.workload.global_batch = batch;
    q.stack = load_stack(stack, "--stack");
    q.memory.traits = memory_traits(stack);
  }
  void fix(const char* words) { q.space = parse_fixed(words, q.space.gpus, "--fix"); }
};

bool runs(const char* layout, const char* cluster, std::int64_t gpus) {
  return !refused_by_machine(parse_layout(layout, gpus, "layout"), load_cluster(cluster));
}

std::set<std::string> transports_of(const Asked& a) {
  std::map<std::string, std::int64_t> refused;
  std::set<std::string> out;
  for (const Candidate& c :
       enumerate_candidates(a.q.space, a.model, a.q.workload, a.q.stack, a.pricer.cluster(), refused))
    for (const ExpertPath& p : c.paths)
      out.insert(!p.transport ? "nccl" : *p.transport == Transport::deepep ? "deepep" : "hybridep");
  return out;
}

}  // namespace

TEST_CASE("kernels of an exchange run on the machines that their sources name") {
  CHECK(runs("dp64 ep64 transport=deepep", "h100-sxm", 64));
  CHECK(runs("dp64 ep64 transport=deepep", "deepseek-h800", 64));
  CHECK(runs("dp64 ep64 transport=hybridep", "gb200", 64));
  CHECK(runs("dp64 ep64 transport=hybridep", "h100-sxm", 64));
  CHECK_FALSE(runs("dp64 ep64 transport=deepep", "gb200", 64));
  CHECK_FALSE(runs("dp64 ep64 transport=deepep", "p5-efa", 64));  // EFA: no RDMA verbs of its kind
  CHECK(runs("dp64 ep8 transport=deepep", "p5-efa", 64));         // inside a node
  CHECK(runs("dp64 ep8 transport=deepep", "a100-sxm-80gb", 64));
  CHECK_FALSE(runs("dp64 ep16 transport=deepep", "a100-sxm-80gb", 64));  // no SM90: none between nodes
  CHECK_FALSE(runs("dp64 ep8 transport=hybridep", "a100-sxm-80gb", 64));
  CHECK_FALSE(runs("dp96 ep12 transport=deepep", "h100-sxm", 96));  // no such size, and not whole nodes
  for (const char* cluster : {"mi300x", "v100-sxm-32gb"}) {
    INFO(cluster);
    CHECK_FALSE(runs("dp64 ep8 transport=deepep", cluster, 64));
    CHECK_FALSE(runs("dp64 ep8 transport=hybridep", cluster, 64));
    CHECK(runs("dp64 ep8 transport=nccl", cluster, 64));
  }
}

TEST_CASE("tensor-parallel communication is searched with an overlap only where the machine has one") {
  const auto overlapped = [](const char* cluster, auto change) {
    Asked a("llama-3.1-8b", "h100-sxm", 16, 8192, 64);
    Cluster machine = load_cluster(cluster);
    change(machine);
    std::map<std::string, std::int64_t> refused;
    bool any = false;
    for (const Candidate& c : enumerate_candidates(a.q.space, a.model, a.q.workload, a.q.stack, machine, refused))
      any = any || c.layout.tp_overlap == TpOverlap::async;
    return any;
  };
  const auto as_it_is = [](Cluster&) {};
  CHECK(overlapped("h100-sxm", as_it_is));
  CHECK(overlapped("a100-sxm-80gb", as_it_is));
  CHECK(overlapped("gb200", as_it_is));
  CHECK_FALSE(overlapped("v100-sxm-32gb", as_it_is));
  CHECK_FALSE(overlapped("mi300x", as_it_is));
  CHECK_FALSE(overlapped("h100-sxm", [](Cluster& c) { c.node.fabric = IntraFabric::pcie; }));
}

TEST_CASE("transports are searched that both the stack and the machine have") {
  CHECK(transports_of(Asked("deepseek-v3", "h800-sxm", 2048, 4096, 15360)) ==
        std::set<std::string>{"nccl", "deepep", "hybridep"});
  CHECK(transports_of(Asked("deepseek-v3", "gb200", 256, 4096, 2048)) == std::set<std::string>{"nccl", "hybridep"});
  CHECK(transports_of(Asked("deepseek-v3", "mi300x", 256, 4096, 2048)) == std::set<std::string>{"nccl"});
  CHECK(transports_of(Asked("deepseek-v3", "h800-sxm", 2048, 4096, 15360, "megatron-core-0.14")) ==
        std::set<std::string>{"nccl", "deepep"});
  CHECK(transports_of(Asked("deepseek-v3", "h800-sxm", 2048, 4096, 15360, "nemo-24.07")) ==
        std::set<std::string>{"nccl"});
  Asked fixed("deepseek-v3", "h800-sxm", 2048, 4096, 15360);
  fixed.fix("transport=deepep");
  CHECK(transports_of(fixed) == std::set<std::string>{"deepep"});
}

TEST_CASE("pruning loses no plan of a model with experts: ways, bounds and variants against replaying all") {
  for (const char* cluster : {"h100-sxm", "gb200"}) {
    INFO(cluster);
    Asked a("deepseek-v2-lite", cluster, 32, 4096, 128);
    a.fix("mbs1");
    const PlanAnswer pruned = search_plans(a.q);
    a.q.exhaustive = true;
    const PlanAnswer all = search_plans(a.q);
    REQUIRE(pruned.plans.size() == 10);
    CHECK(pruned.considered == all.considered);
    CHECK(10 * pruned.replayed < all.replayed);
    for (std::size_t i = 0; i < pruned.plans.size(); ++i) {
      INFO(layout_text(all.plans[i].layout));
      CHECK(layout_text(pruned.plans[i].layout) == layout_text(all.plans[i].layout));
      CHECK(pruned.plans[i].step.step_time_s == all.plans[i].step.step_time_s);
    }
  }
}

TEST_CASE("layers from the shelf of a search price a step as its own do") {
  const Asked a("deepseek-v2-lite", "h100-sxm", 64, 4096, 128);
  std::map<std::string, std::int64_t> refused;
  SearchSpace space = a.q.space;
  space.any = true;
  const auto candidates = enumerate_candidates(space, a.model, a.q.workload, a.q.stack, a.pricer.cluster(), refused);
  LayerShelf shelf;
  Random random(11);
  for (int i = 0; i < 200; ++i) {
    const Candidate& c = candidates[random.below(candidates.size())];
    StepQuestion q{&a.model, &a.pricer, {}, a.q.workload, a.q.stack, a.q.options};
    q.layout = with_path(c.ladder[random.below(c.ladder.size())], c.paths[random.below(c.paths.size())]);
    if (i % 5 == 0) q.layout.recompute_layers = q.layout.recompute == Recompute::full ? 1 : 0;
    INFO(layout_text(q.layout));
    const double bound = step_lower_bound(q);
    q.shelf = &shelf;
    CHECK(step_lower_bound(q) == bound);
  }
}

TEST_CASE("Megatron's own conditions on overlapped pairs are in its notes") {
  const Model model = load_model("deepseek-v2-lite");
  Workload w;
  w.seq_len = 4096;
  w.global_batch = 128;
  const auto refused = [&](const char* text) {
    const auto notes = framework_notes(parse_layout(text, 64, "layout"), model, w);
    return std::any_of(notes.begin(), notes.end(), [](const FrameworkNote& n) { return n.framework == "megatron"; });
  };
  CHECK_FALSE(refused("dp64 ep8 ep-overlap=1f1b"));
  CHECK(refused("pp2 dp32 ep8 ep-overlap=1f1b"));  // pairs need interleaving
  CHECK_FALSE(refused("pp2 vpp2 dp32 ep8 ep-overlap=1f1b"));
  CHECK(refused("dp64 ep8 ep-overlap=1f1b recompute=full"));
  CHECK(refused("dp64 ep8 ep-overlap=1f1b recompute=selective:moe"));
  CHECK_FALSE(refused("dp64 ep8 ep-overlap=1f1b recompute=selective:moe_act"));
  CHECK(refused("dp64 ep8 ep-overlap=shared transport=deepep"));
  CHECK_FALSE(refused("dp64 ep8 ep-overlap=shared"));
}

TEST_CASE("the best plan's other ways differ in one word and are no faster") {
  Asked a("qwen3-235b-a22b", "h100-sxm", 256, 4096, 2048);
  const PlanAnswer answer = search_plans(a.q);
  REQUIRE_FALSE(answer.plans.empty());
  const RankedPlan& best = answer.plans.front();
  const WaysAnswer ways = other_ways(a.q, best);
  REQUIRE(ways.others.size() >= 2);
  for (const OtherWay& other : ways.others) {
    INFO(layout_text(other.layout));
    CHECK((other.layout.transport == best.layout.transport) != (other.layout.ep_overlap == best.layout.ep_overlap));
    REQUIRE(other.step.has_value() == other.why.empty());
    if (other.step) CHECK(other.step->step_time_s >= best.step.step_time_s);
  }
}
