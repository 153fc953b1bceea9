#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/random.hpp"
#include "layouts/anchors.hpp"
#include "layouts/precision.hpp"
#include "layouts/search/candidates.hpp"
#include "layouts/step/step.hpp"
#include "layouts/step/unpriced.hpp"
#include "models/documents.hpp"
#include "models/flops.hpp"
#include "models/parameters.hpp"
#include "sim/schedules.hpp"
#include "tests/asked_step.hpp"

using namespace shardplan;

namespace {

struct Asked : AskedStep {
  Asked(const std::string& name, const std::string& cluster, const std::string& layout, std::int64_t gpus,
        std::int64_t batch, std::int64_t seq = 4096)
      : AskedStep(name, cluster, layout, gpus, seq, batch) {
    q.options.keep_trace = true;
  }
};

double busy_items(const StepReport& s) {
  return s.busiest.device() + s.launch_s + s.blocking_s + s.jitter_s + s.documents_s;
}

void check_items(const StepReport& s) {
  CHECK(busy_items(s) == Approx(s.busy_s).epsilon(1e-9));
  CHECK(s.launch_s >= -1e-9 * s.busy_s);
  for (const double part : s.busiest.parts) CHECK(part >= -1e-9 * s.busy_s);
}

double critical_seconds(const CriticalPath& c) {
  double sum = c.sends_s + c.reduction_s + c.slowest_rank_s + c.optimizer_s + c.gather_s + c.fixed_s;
  for (const CriticalShare& share : c.shares) sum += share.seconds;
  return sum;
}

}  // namespace

TEST_CASE(
    "the items of the busiest rank add up to its busy time under every schedule, and the critical path to the step") {
  int checked = 0;
  for (const ScheduleRow& row : schedules()) {
    const std::string name(row.name);
    if (name == "interleaved-free") continue;  // not a word of layouts
    const std::string chunks = !row.fixed_chunks && row.default_chunks > 1 ? " vpp2" : "";
    for (const char* overlap : {"none", "1f1b"}) {
      INFO(name << " ep-overlap=" << overlap);
      const Asked a("mixtral-8x7b", "h100-sxm", "pp4 dp16 ep8 schedule=" + name + chunks + " ep-overlap=" + overlap, 64,
                    512);
      if (refuse_layout(a.q.layout, a.model, a.q.workload, 64)) continue;
      const StepReport s = simulate_step(a.q);
      check_items(s);
      CHECK(critical_seconds(s.critical) == Approx(s.step_time_s).epsilon(1e-9));
      ++checked;
    }
  }
  CHECK(checked >= 20);
}

TEST_CASE("overlapped pairs hide all-to-alls: exposed expert communication shrinks by what the step gains") {
  const Asked a("deepseek-v3", "h800-sxm", "pp16 dp128 ep64 schedule=dualpipe ep-overlap=dualpipe transport=deepep",
                2048, 15360);
  const StepReport s = simulate_step(a.q);
  check_items(s);
  const Asked b("deepseek-v3", "h800-sxm", "pp16 dp128 ep64 transport=deepep", 2048, 15360);
  CHECK(s.busiest.part(Part::ep) < 0.5 * simulate_step(b.q).busiest.part(Part::ep));
}

TEST_CASE("the trace of a step ends when the step does, and no two slices of a thread overlap") {
  const Asked a("llama-3.1-70b", "h100-sxm", "tp8 pp4 dp16 vpp5", 512, 512, 8192);
  const StepReport s = simulate_step(a.q);
  REQUIRE(s.trace);
  double end = 0, gradients = 0, optimizer = 0, gather = 0;
  for (const TraceSlice& slice : s.trace->slices) {
    end = std::max(end, slice.start + slice.seconds);
    CHECK(slice.start >= -1e-12);
    if (slice.category == "gradient_reduction") gradients += slice.seconds;
    if (slice.category == "optimizer") optimizer += slice.seconds;
    if (slice.category == "parameter_gather") gather += slice.seconds;
  }
  CHECK(end == Approx(s.step_time_s).epsilon(1e-9));
  CHECK(gradients > 0);
  CHECK(optimizer > 0);
  CHECK(gather > 0);
  CHECK_FALSE(s.trace->flows.empty());
}

TEST_CASE("hardware FLOPs count recomputation: a forward pass more, a part of it, or none") {
  const auto ratio = [](const char* words) {
    const Asked a("llama-3.1-8b", "h100-sxm", std::string("tp2 pp4 dp4 ") + words, 32, 64);
    const StepReport s = simulate_step(a.q);
    return s.hardware_flops / s.model_flops;
  };
  const Model model = load_model("llama-3.1-8b");
  const TokenFlops f = forward_flops(model, 4096);
  const double layers = f.total() - f.head, training = 3 * f.total();
  CHECK(ratio("") == 1);
  CHECK(ratio("recompute=full") == Approx(1 + layers / training).epsilon(1e-12));
  // Eight layers a pipeline rank, two of them repeated (split=even).
  CHECK(ratio("recompute=full:2 split=even") == Approx(1 + 0.25 * layers / training).epsilon(1e-12));
  CHECK(ratio("recompute=selective:core_attn") == Approx(1 + f.scores / training).epsilon(1e-12));
  CHECK(ratio("recompute=selective:mlp") == Approx(1 + f.mlp / training).epsilon(1e-12));
  CHECK(ratio("recompute=selective:layernorm") == 1);
}

TEST_CASE("multi-token-prediction layers count among model FLOPs") {
  const Asked a("deepseek-v3", "h800-sxm", "pp16 dp128 ep64", 2048, 15360);
  const double tokens = 4096.0 * 15360;
  CHECK(simulate_step(a.q).model_flops ==
        Approx(tokens * (training_flops(a.model, 4096) + 3 * mtp_flops(a.model, 4096).total())).epsilon(1e-12));
}

TEST_CASE("every rank by itself gives the representative's answer, bit by bit, on 30 random layouts") {
  struct Ask {
    const char* model;
    const char* cluster;
    std::int64_t gpus, seq, batch;
    int layouts;
  };
  for (const Ask& ask :
       {Ask{"llama-3.1-8b", "h100-sxm", 32, 8192, 64, 15}, Ask{"mixtral-8x7b", "a100-sxm-80gb", 64, 4096, 128, 15}}) {
    Asked a(ask.model, ask.cluster, "dp" + std::to_string(ask.gpus), ask.gpus, ask.batch, ask.seq);
    SearchSpace space;
    space.gpus = ask.gpus;
    space.any = true;
    std::map<std::string, std::int64_t> refused;
    const auto candidates = enumerate_candidates(space, a.model, a.q.workload, a.q.stack, a.pricer.cluster(), refused);
    Random random(11);
    for (int i = 0; i < ask.layouts; ++i) {
      const Candidate& c = candidates[random.below(candidates.size())];
      a.q.layout = c.ladder[random.below(c.ladder.size())];
      INFO(layout_text(a.q.layout));
      a.q.options.all_ranks = false;
      const StepReport one = simulate_step(a.q);
      a.q.options.all_ranks = true;
      const StepReport all = simulate_step(a.q);
      CHECK(all.step_time_s == one.step_time_s);
      CHECK(all.busy_s == one.busy_s);
      CHECK(all.bubble_s == one.bubble_s);
      CHECK(all.reduce_exposed_s == one.reduce_exposed_s);
      CHECK(all.gather_exposed_s == one.gather_exposed_s);
      REQUIRE(all.job.size() == static_cast<std::size_t>(ask.gpus));
      for (const JobRank& rank : all.job) {
        const RankStep& same = one.ranks[static_cast<std::size_t>(rank.pipeline_rank)];
        CHECK(rank.busy == same.busy);
        CHECK(rank.finish == same.finish);
      }
    }
  }
}

TEST_CASE("a straggler holds its tensor peers in every layer and the other replicas at the gradient reduction") {
  Asked a("llama-3.1-8b", "h100-sxm", "tp2 pp4 dp4", 32, 64);
  const StepReport even = simulate_step(a.q);
  a.q.options.spread.stragglers = {{5, 1.5}};
  const StepReport touched = simulate_step(a.q);
  a.q.options.all_ranks = true;
  const StepReport all = simulate_step(a.q);
  CHECK(all.step_time_s == touched.step_time_s);
  CHECK(touched.replicas.replayed == 2);  // the straggler's pipeline and one for the other three
  CHECK(touched.replicas.replicas == 4);
  CHECK(touched.step_time_s > even.step_time_s);
  CHECK(touched.step_time_s < 1.5 * even.step_time_s);
  const JobRank& slow = all.job[5];
  for (const JobRank& rank : all.job) {
    const bool peer = rank.dp == slow.dp && rank.pipeline_rank == slow.pipeline_rank;
    if (peer) CHECK(rank.busy == slow.busy);
    if (rank.dp != slow.dp) CHECK(rank.busy < slow.busy);
    if (rank.pipeline_rank == slow.pipeline_rank) CHECK(rank.finish == slow.finish);
  }
}

TEST_CASE("jitter repeats with its seed, costs more on more ranks, and vanishes with its size") {
  const auto step = [](const char* layout, std::int64_t gpus, std::int64_t batch, double jitter, std::uint64_t seed) {
    Asked a("llama-3.1-8b", "h100-sxm", layout, gpus, batch);
    a.q.options.spread.expected = 0;
    a.q.options.spread.jitter = jitter;
    a.q.options.spread.seed = seed;
    return simulate_step(a.q).step_time_s;
  };
  const double even = step("tp2 pp2 dp2", 8, 32, 0, 1);
  CHECK(step("tp2 pp2 dp2", 8, 32, 0.05, 1) == step("tp2 pp2 dp2", 8, 32, 0.05, 1));
  CHECK(step("tp2 pp2 dp2", 8, 32, 0.05, 1) != step("tp2 pp2 dp2", 8, 32, 0.05, 2));
  CHECK(step("tp2 pp2 dp2", 8, 32, 1e-7, 1) == Approx(even).epsilon(1e-5));
  const double small = step("tp2 pp2 dp2", 8, 32, 0.1, 1) / even;
  const double large = step("tp2 pp2 dp32", 128, 512, 0.1, 1) / step("tp2 pp2 dp32", 128, 512, 0, 1);
  CHECK(small > 1);
  CHECK(large > small);
}

TEST_CASE("equal ranks wait for the slowest: nothing on one GPU, more on more, as drawn ranks do in the mean") {
  const auto step = [](const char* layout, std::int64_t gpus, std::int64_t batch, bool on) {
    Asked a("llama-3.1-8b", "h100-sxm", layout, gpus, batch);
    if (!on) a.q.options.without = 1u << static_cast<unsigned>(Effect::jitter);
    return simulate_step(a.q);
  };
  CHECK(step("recompute=full", 1, 4, true).slowest_rank_s == 0);
  double before = 0;
  for (const int dp : {4, 64, 1024}) {
    const std::string layout = "tp2 dp" + std::to_string(dp);
    const StepReport with = step(layout.c_str(), 2LL * dp, 8LL * dp, true),
                     without = step(layout.c_str(), 2LL * dp, 8LL * dp, false);
    const double share = with.step_time_s / without.step_time_s - 1;
    CHECK(share > before);
    CHECK(share < 0.013);
    CHECK(with.step_time_s - without.step_time_s == Approx(with.slowest_rank_s).epsilon(1e-9));
    before = share;
  }
  // Ranks that keep one drawn speed for the whole step (here as stragglers) hold it as long as the formula expects.
  Asked a("llama-3.1-8b", "h100-sxm", "tp2 pp2 dp4", 16, 64);
  a.q.options.spread.expected = 0;
  const double even = simulate_step(a.q).step_time_s;
  Random random(5);
  double sum = 0;
  const int draws = 60;
  for (int i = 0; i < draws; ++i) {
    a.q.options.spread.stragglers.clear();
    for (int rank = 0; rank < 16; ++rank) a.q.options.spread.stragglers[rank] = 1 + 0.02 * random.normal();
    sum += simulate_step(a.q).step_time_s;
  }
  a.q.options.spread.stragglers.clear();
  a.q.options.spread.expected = 0.02;
  const double drawn = sum / draws - even, expected = simulate_step(a.q).step_time_s - even;
  CHECK(drawn == Approx(expected).epsilon(0.25));
}

namespace {

StepReport packed(const std::string& layout, std::int64_t gpus, std::int64_t batch, double mean, bool vary = true,
                  bool every_rank = false) {
  Asked a("llama-3.1-8b", "h100-sxm", layout, gpus, batch, 32768);
  a.q.options.spread.expected = 0;
  a.q.options.spread.documents = vary;
  a.q.options.mean_document = mean;
  a.q.options.all_ranks = every_rank;
  return simulate_step(a.q);
}

/// What documents that differ cost, over the attention of a rank.
double document_wait(const std::string& layout, std::int64_t gpus, std::int64_t batch, double mean) {
  const StepReport even = packed(layout, gpus, batch, mean, false);
  return (packed(layout, gpus, batch, mean).step_time_s - even.step_time_s) / even.busiest.part(Part::attention);
}

}  // namespace

TEST_CASE("packed documents: less attention the shorter they are, and a wait for the longest") {
  const StepReport whole = packed("tp4 dp2", 8, 8, 0), one = packed("tp4 dp2", 8, 8, 1e12),
                   many = packed("tp4 dp2", 8, 8, 2048);
  CHECK(one.step_time_s == Approx(whole.step_time_s).epsilon(1e-3));
  CHECK(whole.documents_s == 0);
  // 32,768 tokens of 2,048 on average: 11.7 % of the mask; shorter attention runs at a lower rate.
  const double share = many.busiest.part(Part::attention) / whole.busiest.part(Part::attention);
  CHECK(share > 0.117);
  CHECK(share < 0.2);
  double before = whole.busiest.part(Part::attention);
  for (const double mean : {16384.0, 4096.0, 1024.0, 256.0, 64.0, 1.0}) {
    INFO("mean document " << mean);
    const double attention = packed("tp4 dp2", 8, 8, mean, false).busiest.part(Part::attention);
    CHECK(attention <= before);
    before = attention;
  }
  check_items(many);
  CHECK(critical_seconds(many.critical) == Approx(many.step_time_s).epsilon(1e-9));
  // Without a pipeline the step waits for the replica whose sequences attend most: their mean over the mean of all.
  for (const int dp : {4, 16}) {
    const std::vector<double> drawn = draw_attention(8LL * dp, 32768, 8192, 1);
    double longest = 0;
    for (int d = 0; d < dp; ++d) {
      double sum = 0;
      for (int i = 0; i < 8; ++i) sum += drawn[static_cast<std::size_t>(i * dp + d)];
      longest = std::max(longest, sum / 8);
    }
    INFO("dp " << dp);
    CHECK(longest > 1.05);
    CHECK(document_wait("tp4 dp" + std::to_string(dp), 4LL * dp, 8LL * dp, 8192) == Approx(longest - 1).epsilon(0.01));
  }
}

TEST_CASE("long and short micro-batches leave bubbles inside a pipeline, the same on every rank by itself") {
  // One replica, the same sequences: nothing to wait for without a pipeline, something with one.
  CHECK(document_wait("tp8 dp1", 8, 32, 8192) == Approx(0).margin(1e-9));
  CHECK(document_wait("tp2 pp4 dp1", 8, 32, 8192) > 0.01);
  CHECK(document_wait("tp2 pp4 dp1", 8, 32, 8192) > 2 * document_wait("tp2 pp4 dp1", 8, 32, 512));
  for (const char* layout : {"tp2 pp4 dp4", "tp2 pp4 vpp2 dp4", "pp4 dp8 zero3", "tp2 pp4 dp4 schedule=dualpipe"}) {
    INFO(layout);
    const StepReport kinds = packed(layout, 32, 64, 4096), all = packed(layout, 32, 64, 4096, true, true);
    CHECK(kinds.step_time_s == all.step_time_s);
    CHECK(kinds.step_time_s >= packed(layout, 32, 64, 4096, false).step_time_s * (1 - 1e-12));
    check_items(kinds);
    CHECK(critical_seconds(kinds.critical) == Approx(kinds.step_time_s).epsilon(1e-9));
    Asked a("llama-3.1-8b", "h100-sxm", layout, 32, 64, 32768);
    a.q.options.mean_document = 4096;
    CHECK(step_lower_bound(a.q) <= kinds.step_time_s);
  }
}

TEST_CASE("a straggler that is no rank of the job is named") {
  Asked a("llama-3.1-8b", "h100-sxm", "tp2 pp4 dp4", 32, 64);
  a.q.options.spread.stragglers = {{32, 2.0}};
  CHECK_THROWS_WITH(simulate_step(a.q), Catch::Contains("32"));
}

TEST_CASE("words that the step does not price are named, the others are not") {
  const auto count = [](const char* words) {
    const Asked a("mixtral-8x7b", "h100-sxm", std::string("pp4 dp16 ep8 ") + words, 64, 512);
    return unpriced_words(a.q).size();
  };
  CHECK(count("") == 0);
  CHECK(count("ep-overlap=shared transport=deepep cuda-graphs=full grad-reduce=bf16") == 0);
  CHECK(count("ep-overlap=waves1 act-store=fp8 grad-accumulate=bf16") == 0);
  for (const char* words : {"offload=optimizer", "delay-wgrad=1"}) {
    INFO(words);
    CHECK(count(words) == 1);
  }
}

TEST_CASE("every measured anchor is predicted by the same code, within a factor of two") {
  PricerShelf shelf(ConstantSet::all);
  const auto anchors = measured_anchors();
  CHECK(anchors.size() >= 25);
  for (const Anchor& anchor : anchors) {
    INFO(anchor.id);
    const double predicted =
        simulate_step(question_of(anchor.question, shelf.of(anchor.question.run.cluster), 0)).step_time_s;
    CHECK(predicted / anchor.measured_s > 0.5);
    CHECK(predicted / anchor.measured_s < 2);
  }
}

TEST_CASE("every measured anchor asks the same question as its published row") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    WARN("skipped: SHARDPLAN_FACTS is unset");
    return;
  }
  PricerShelf shelf(ConstantSet::all);
  std::map<std::string, RunQuestion> rows;
  for (RunQuestion& q : run_questions(read_runs(std::string(facts) + "/truth/runs.json"), ConstantSet::all))
    rows.emplace(q.run.id, std::move(q));
  for (const Anchor& anchor : measured_anchors()) {
    INFO(anchor.id);
    const auto found = rows.find(anchor.id);
    REQUIRE(found != rows.end());
    const RunQuestion& row = found->second;
    CHECK(row.run.skipped.value_or("") == "");
    CHECK(row.run.step_time_s == anchor.measured_s);
    const auto step = [&](const RunQuestion& r) {
      return simulate_step(question_of(r, shelf.of(r.run.cluster), 0)).step_time_s;
    };
    CHECK(step(anchor.question) == Approx(step(row)).epsilon(1e-12));
  }
}

TEST_CASE("the nearest measured run of a published layout is that run") {
  Asked a("llama-3.1-405b", "h100-sxm", "tp8 cp2 pp8 dp8 vpp8", 1024, 1536, 8192);
  const char* const published = "mbridge-26.06-H100-LLAMA3.1_405B-pretrain-FP8-1024-21";
  NearestRun n = nearest_run(a.q);
  CHECK(n.distance == Approx(1).epsilon(0.01));  // in 16 bits
  CHECK(n.anchor.id == published);
  a.q.workload.precision = parse_precision("fp8-tensor", "--precision");
  n = nearest_run(a.q);
  CHECK(n.distance < 0.05);
  CHECK(n.anchor.id == published);
}

TEST_CASE("a run of the same model and GPU is nearer than one of as many GPUs of another kind") {
  const Asked a("llama-3.1-405b", "h100-sxm", "tp8 pp16 vpp8 dp128", 16384, 2048, 8192);
  const NearestRun n = nearest_run(a.q);
  CHECK(n.anchor.question.run.cluster.gpu.name == "h100-sxm");
  CHECK(run_size(a.q).parameters / 405.85e9 == Approx(1).epsilon(1e-3));
  CHECK(static_cast<double>(count_parameters(n.anchor.question.run.model).total) / 405.85e9 == Approx(1).epsilon(0.01));
}
