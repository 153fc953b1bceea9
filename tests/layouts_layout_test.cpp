// Layout texts, legality, stages and ranks: facts, laws over random layouts, malformed inputs with their exact error
// lines.
#include "layouts/layout.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "layouts/ranks.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

Model dense_model(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv, std::int64_t ffn,
                  std::int64_t vocab) {
  Model m;
  m.hidden = hidden;
  m.vocab = vocab;
  Layer layer;
  layer.attention.heads = heads;
  layer.attention.kv_heads = kv;
  layer.attention.head_dim = hidden / heads;
  layer.mlp.width = ffn;
  m.layers.assign(static_cast<std::size_t>(layers), layer);
  return m;
}

Model llama_70b() { return dense_model(80, 8192, 64, 8, 28672, 128256); }
Model llama_405b() { return dense_model(126, 16384, 128, 8, 53248, 128256); }

Model expert_model() {
  Model m = dense_model(32, 4096, 32, 8, 14336, 32000);
  for (Layer& layer : m.layers) {
    layer.moe.emplace();
    layer.moe->experts = 8;
    layer.moe->top_k = 2;
    layer.moe->width = 14336;
  }
  return m;
}

Layout of(const std::string& text) { return parse_layout(text, 0, "--layout"); }

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

Cluster small_cluster(int gpus, int domain, double nics) {
  Cluster c;
  c.node.gpus = gpus;
  c.node.nvlink_domain = domain;
  c.node.nics.value = nics;
  return c;
}

/// Any layout that the text can say, legal or not.
Layout random_layout(Random& random) {
  Layout l;
  const auto power = [&](int most) { return 1 << random.below(most + 1); };
  const auto flip = [&] { return random.below(2) == 1; };
  l.tp = power(4), l.cp = power(2), l.pp = power(4), l.dp = power(6), l.vpp = power(3),
  l.mbs = 1 + static_cast<int>(random.below(8));
  if (flip()) l.ep = std::min(power(5), l.tp * l.cp * l.dp);
  if (flip()) l.zero = static_cast<int>(random.below(4));
  if (flip()) l.shard = power(3);
  if (flip()) l.sp = flip();
  if (flip()) l.reshard = flip();
  if (flip()) l.prefetch = static_cast<int>(random.below(4));
  if (flip()) l.wrap = 1 + static_cast<int>(random.below(4));
  if (flip()) l.group = power(4);
  const auto rows = schedules();
  if (random.below(4) > 0) l.schedule = rows[random.below(rows.size())].name;
  l.split = static_cast<SplitKind>(random.below(5));
  if (l.split == SplitKind::pattern) l.split_pattern = "Et*3|(tt|)*29,m|L";
  l.recompute = static_cast<Recompute>(random.below(3));
  if (l.recompute == Recompute::full) l.recompute_layers = static_cast<int>(random.below(5));
  if (l.recompute == Recompute::selective) {
    l.modules.core_attn = flip(), l.modules.layernorm = flip(), l.modules.moe_act = flip(), l.modules.per_op = flip();
    l.modules.mla_up_proj = true;
  }
  if (flip()) l.cp_by = static_cast<ContextParallel>(random.below(3));
  if (flip()) l.tp_overlap = static_cast<TpOverlap>(random.below(3));
  if (flip()) l.ep_overlap = static_cast<EpOverlap>(random.below(5));
  if (l.ep_overlap == EpOverlap::waves) l.waves = 4;
  if (flip()) l.transport = static_cast<Transport>(random.below(3));
  l.offload_optimizer = flip();
  l.offload_activation_layers = static_cast<int>(random.below(3)) - 1;
  if (flip()) l.act_store_fp8 = flip();
  if (flip()) l.cuda_graphs = "modules:attn,moe_router";
  if (flip()) l.compile = flip();
  if (flip()) l.grad_reduce_fp32 = flip();
  if (flip()) l.grad_accumulate_fp32 = flip();
  if (flip()) l.fused_loss = flip();
  if (flip()) l.delay_wgrad = flip();
  if (flip()) l.order = {Axis::tp, Axis::dp, Axis::pp, Axis::cp};
  return canonical(l);
}

}  // namespace

TEST_CASE("a layout text says degrees, and dp follows from the GPUs") {
  const Layout l = parse_layout("tp8,pp4xvpp2 recompute=full:12 schedule=interleaved-1f1b sp", 512, "--layout");
  CHECK(l.tp == 8);
  CHECK(l.pp == 4);
  CHECK(l.vpp == 2);
  CHECK(l.dp == 16);
  CHECK(l.recompute_layers == 12);
  CHECK(layout_text(l) == "tp8 pp4 vpp2 dp16 recompute=full:12");
  CHECK(layout_text(of("dp1")) == "dp1");
  CHECK(layout_text(of("tp2 dp4 zero1 sp mbs1 order=tp-cp-dp-pp")) == "tp2 dp4");
  CHECK(layout_text(of("tp2 dp4 zero3 nosp recompute=selective:norm,moe_act")) ==
        "tp2 dp4 zero3 nosp recompute=selective:layernorm,moe_act");
  CHECK(of("pp16 split=\"Et*3|(tt|)*29,m|L\"").split_pattern == "Et*3|(tt|)*29,m|L");
  CHECK(of("tp08").tp == 8);
}

TEST_CASE("any layout survives printing and reading") {
  Random random(7);
  for (int i = 0; i < 5000; ++i) {
    const Layout l = random_layout(random);
    const std::string text = layout_text(l);
    INFO(text);
    const Layout back = of(text);
    REQUIRE(back == l);
    REQUIRE(layout_text(back) == text);
  }
}

TEST_CASE("malformed layout texts are refused with the word that is wrong") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "empty: expected words like \"tp8 pp4 dp16\""},
      {"tq8", "unknown word \"tq8\" (did you mean \"tp\"?)"},
      {"tp", "tp: a number is missing, as in tp2"},
      {"tp0", "tp: 0 is not between 1 and 1048576"},
      {"tp-2", "tp: expected a whole number, got \"-2\""},
      {"tp2.5", "tp: expected a whole number, got \"2.5\""},
      {"tp99999999999999999999", "tp: expected a whole number, got \"99999999999999999999\""},
      {"tp2 tp4", "tp given twice"},
      {"tp2,,pp2", "a word is missing in \"tp2,,pp2\""},
      {"tp=8", "tp: the number follows without \"=\", as in tp2"},
      {"zero4", "zero: 4 is not between 0 and 3"},
      {"sp nosp", "sp given twice"},
      {"schedule=1f1", "schedule: unknown schedule \"1f1\" (did you mean \"1f1b\"?)"},
      {"recompute=ful", "recompute: \"ful\" is none of none, selective, full (did you mean \"full\"?)"},
      {"recompute=full:0", "recompute: 0 is not between 1 and 1048576"},
      {"recompute=none:3", "recompute=none takes nothing after it"},
      {"recompute=", "recompute: a value is missing after \"=\""},
      {"recompute=selective:core_attn,core_attn", "recompute: module \"core_attn\" given twice"},
      {"recompte=full", "unknown word \"recompte=full\" (did you mean \"recompute\"?)"},
      {"split=evn",
       "split: \"evn\" is none of auto, even, embed-loss-as-layers, loss-as-layer (did you mean \"even\"?)"},
      {"cp2 cp-by=rng", "cp-by: \"rng\" is none of ring, all-gather, ulysses (did you mean \"ring\"?)"},
      {"reshard=yes", "reshard: \"yes\" is none of 0, 1"},
      {"order=tp-cp-dp", "order: name all of tp, cp, dp and pp, innermost first"},
      {"order=tp-tp-dp-pp", "order: \"tp\" given twice"},
      {"offload=weights", "offload: \"weights\" is none of optimizer, activations, activations:N"},
      {"cuda-graphs=modules:atn", "cuda-graphs: unknown module \"atn\" (did you mean \"attn\"?)"},
      {"ep-overlap=waves0", "ep-overlap: 0 is not between 1 and 1048576"},
      {"tp1048576 pp1048576 dp1048576 cp1048576", "more than 16777216 GPUs"},
      {"ep1048576 etp1048576", "etp*ep = 1099511627776 ranks, but there are 1 GPUs"},
  };
  for (const auto& [text, what] : table) {
    INFO(text);
    CHECK(error_of([&] { of(text); }) == "--layout: " + what);
  }
  CHECK(error_of([] { parse_layout("tp8 pp3", 512, "--layout"); }) ==
        "--layout: 512 GPUs are not a multiple of tp*cp*pp = 24");
  CHECK(error_of([] { parse_layout("tp8 dp8", 512, "--layout"); }) ==
        "--layout: tp*cp*pp*dp = 64, but there are 512 GPUs");
}

TEST_CASE("every refusal of a layout has its reason") {
  struct Row {
    std::string layout;
    Model model;
    Workload work;
    std::string reason;
  };
  const Workload w{8192, 512, DataType::bf16};
  Model latent = expert_model();
  const std::vector<Row> table = {
      {"tp8 pp4 dp16", llama_70b(), w, ""},
      {"tp8 dp64 zero3 reshard=1", llama_70b(), w, ""},
      {"tp16 dp4", llama_70b(), w, ""},
      {"tp3 dp2", llama_70b(), w, "attention heads (64) is not a multiple of tp = 3"},
      {"tp128", llama_70b(), w, "attention heads (64) is not a multiple of tp = 128"},
      {"ep2 dp2", llama_70b(), w, "ep2: the model has no experts"},
      {"ep3 dp6", expert_model(), {8192, 6, DataType::bf16}, "experts (8) is not a multiple of ep = 3"},
      {"ep4 dp6",
       expert_model(),
       {8192, 6, DataType::bf16},
       "etp*ep = 4 does not divide the tp*cp*dp = 6 ranks of a pipeline stage"},
      {"cp2 dp1", llama_70b(), {8190, 512, DataType::bf16}, "sequence length (8190) is not a multiple of 2 cp = 4"},
      {"cp8 tp16 cp-by=ulysses", llama_70b(), w,
       "attention heads of a tensor-parallel rank (4) are not a multiple of cp = 8, which cp-by=ulysses spreads them "
       "over"},
      {"dp3", llama_70b(), w, "512 sequences are not a multiple of mbs*dp = 3"},
      {"pp4 vpp2 schedule=1f1b", llama_70b(), w,
       "schedule=1f1b has one chunk a rank: vpp2 needs an interleaved schedule, such as interleaved-1f1b or "
       "looped-bfs"},
      {"pp4 schedule=interleaved-1f1b", llama_70b(), w, "schedule=interleaved-1f1b needs vpp2 or more"},
      {"vpp2", llama_70b(), w, "vpp2 without a pipeline: pp is 1"},
      {"pp5 schedule=dualpipe", llama_70b(), w, "schedule=dualpipe needs an even pp, got pp5"},
      {"pp4 vpp4 schedule=zb-v", llama_70b(), w, "schedule=zb-v always has 2 chunks a rank: vpp4"},
      {"pp4 group=8", llama_70b(), w, "group=8: schedule=1f1b is not interleaved"},
      {"pp3 split=even", llama_70b(), w, "split=even: 80 layers do not divide into 3 stages"},
      {"pp16 split=loss-as-layer", llama_70b(), w, "split=loss-as-layer: 80 + 1 layers do not divide into 16 stages"},
      {"pp128", llama_70b(), w, "more stages (128) than layers, embedding and head (82)"},
      {"recompute=selective:mla_up_proj", llama_70b(), w,
       "recompute=selective:mla_up_proj: the model has no multi-latent attention"},
      {"recompute=selective:moe_act", llama_70b(), w, "recompute=selective:moe_act: the model has no experts"},
      {"ep-overlap=shared", llama_70b(), w, "ep-overlap: the model has no experts"},
      {"ep2 dp2 ep-overlap=dualpipe", expert_model(), w,
       "ep-overlap=dualpipe needs schedule=dualpipe or dualpipe-v, got 1f1b"},
      {"dp4 shard3", llama_70b(), w, "shard3 does not divide the dp*cp = 4 data-parallel ranks"},
      {"dp4 zero0 shard2", llama_70b(), w, "shard2 without ZeRO: zero0 shards nothing"},
      {"dp4 reshard=0", llama_70b(), w, "reshard=0 needs zero3: below it weights are never gathered in pieces"},
      {"dp4 prefetch=1", llama_70b(), w, "prefetch=1 needs zero3"},
      {"dp4 wrap=2", llama_70b(), w, "wrap=2 needs zero3"},
  };
  for (const Row& row : table) {
    INFO(row.layout);
    CHECK(refuse_layout(of(row.layout), row.model, row.work, 0).value_or("") == row.reason);
  }
  CHECK(refuse_layout(of("tp8 dp4"), llama_70b(), w, 64) == "tp*cp*pp*dp = 32, but there are 64 GPUs");
}

TEST_CASE("KV heads fewer than tp are legal, and Megatron refuses them") {
  const auto notes = framework_notes(of("tp16 dp2"), llama_70b(), Workload{8192, 512, DataType::bf16});
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].framework == "megatron");
  CHECK(notes[0].note == "refuses: num_query_groups (8) must be a multiple of tp (16)");
}

TEST_CASE("stages hold every layer once, in order, the embedding first and the head last") {
  for (const char* text :
       {"pp1", "pp4", "pp8", "pp16", "pp4 vpp5", "pp7", "pp8 schedule=dualpipe", "pp4 schedule=zb-v", "pp40"}) {
    INFO(text);
    const Layout l = of(text);
    const auto slices = split_stages(l, llama_70b());
    REQUIRE(static_cast<int>(slices.size()) == l.slices());
    int next = 0;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      CHECK(slices[s].first_layer == next);
      next += slices[s].layers;
      CHECK(slices[s].embedding == (s == 0));
      CHECK(slices[s].head == (s + 1 == slices.size()));
    }
    CHECK(next == 80);
  }
}

TEST_CASE("Llama 3.1 405B on 128 stages: one layer less at each end") {
  const auto slices = split_stages(of("tp8 pp16 vpp8 dp128"), llama_405b());
  CHECK(slices.front().layers == 0);
  CHECK(slices.back().layers == 0);
  for (std::size_t s = 1; s + 1 < slices.size(); ++s) CHECK(slices[s].layers == 1);
}

TEST_CASE("a written split says every stage; embedding, MTP layers and loss stand where it puts them") {
  Model m = dense_model(61, 7168, 128, 128, 18432, 129280);
  m.mtp.push_back(m.layers.back());
  const auto slices = split_stages(of("pp16 vpp2 split=Et*3|(tt|)*29,m|L"), m);
  REQUIRE(slices.size() == 32);
  CHECK(slices[0] == StageSlice{0, 3, true, false, 0});
  CHECK(slices[1] == StageSlice{3, 2, false, false, 0});
  CHECK(slices[30] == StageSlice{61, 0, false, false, 1});
  CHECK(slices[31] == StageSlice{61, 0, false, true, 0});
  const Workload w{4096, 64, DataType::bf16};
  CHECK_FALSE(refuse_layout(of("pp16 vpp2 split=Et*3|(tt|)*29,m|L"), m, w, 0));
  CHECK(refuse_layout(of("pp8 vpp2 split=Et*3|(tt|)*29,m|L"), m, w, 0) ==
        "split: the pattern has 32 stages, pp and vpp make 16");
  CHECK(refuse_layout(of("pp16 vpp2 split=Et*3|(tt|)*28,m|L"), m, w, 0).has_value());
}

TEST_CASE("the automatic split gives the head's stage fewer layers") {
  const auto slices = split_stages(of("pp4"), llama_70b());
  CHECK(slices.back().layers < 20);
  const auto even = split_stages(of("pp4 split=even"), llama_70b());
  for (const StageSlice& s : even) CHECK(s.layers == 20);
}

TEST_CASE("every group of every kind is a partition of the ranks") {
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    Layout l;
    const auto power = [&](int most) { return 1 << random.below(most + 1); };
    l.tp = power(3), l.cp = power(1), l.pp = power(2), l.dp = power(3);
    const int stage = l.tp * l.cp * l.dp;
    l.etp = std::min(power(1), stage), l.ep = std::min(power(3), stage / l.etp);
    if (random.below(2) == 1) l.shard = std::min(power(2), l.dp * l.cp);
    if (random.below(2) == 1) l.order = {Axis::tp, Axis::pp, Axis::cp, Axis::dp};
    INFO(layout_text(l));
    for (const RankGroup kind :
         {RankGroup::tp, RankGroup::cp, RankGroup::dp, RankGroup::pp, RankGroup::ep, RankGroup::etp, RankGroup::edp,
          RankGroup::dense, RankGroup::dense_replicas, RankGroup::expert, RankGroup::expert_replicas}) {
      std::vector<int> seen(static_cast<std::size_t>(l.gpus()), 0);
      for (int r = 0; r < l.gpus(); ++r) {
        const auto members = group_members(l, kind, r);
        REQUIRE(std::count(members.begin(), members.end(), r) == 1);
        if (members.front() == r)
          for (const int other : members) ++seen[other];
      }
      REQUIRE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("groups know how many members share a node and which NICs they have") {
  const Cluster h100 = small_cluster(8, 8, 8);
  const Layout l = of("tp8 pp2 dp4");
  CHECK(group_shape(l, h100, RankGroup::tp).ranks_per_domain == 8);
  CHECK_FALSE(group_shape(l, h100, RankGroup::tp).crosses());
  const GroupShape dp = group_shape(l, h100, RankGroup::dp);
  CHECK(dp.ranks == 4);
  CHECK(dp.ranks_per_domain == 1);
  CHECK(dp.nics_per_domain == 1);
  CHECK(group_shape(of("tp16 dp2"), h100, RankGroup::tp).nics_per_domain == 8);
  CHECK(group_shape(of("tp4 dp16"), h100, RankGroup::dp).ranks_per_domain == 2);
  const GroupShape ep = group_shape(of("dp128 pp16 ep64"), h100, RankGroup::ep);
  CHECK(ep.ranks == 64);
  CHECK(ep.ranks_per_domain == 8);
  const Cluster nvl72 = small_cluster(4, 72, 4);
  CHECK(domain_gpus(nvl72, 512) == 64);
  CHECK(domain_gpus(nvl72, 72) == 72);
  CHECK(domain_gpus(nvl72, 144) == 72);
  CHECK(group_shape(of("dp64 pp8 ep64"), nvl72, RankGroup::ep).ranks_per_domain == 64);
  CHECK_FALSE(group_shape(of("dp64 pp8 ep64"), nvl72, RankGroup::ep).crosses());
}

TEST_CASE("more micro-batches than are replayed are refused, not counted modulo 2^32", "[layout]") {
  Layout l;
  l.pp = 4;
  Workload w;
  w.global_batch = (std::int64_t{1} << 32) + 16;
  CHECK_THROWS_WITH(microbatches(l, w), Catch::Contains("more than 1048576 are not replayed"));
  w.global_batch = 1 << 20;
  CHECK(microbatches(l, w) == 1 << 20);
}

TEST_CASE("a group's shape is that of the worst placed group of its kind, over every rank of random layouts") {
  Random random(3);
  const std::vector<int> degrees = {1, 2, 3, 4, 6, 8, 16};
  int checked = 0;
  for (const char* name : {"h100-sxm", "gb200"}) {
    const Cluster c = load_cluster(name);
    for (int i = 0; i < 300; ++i) {
      const auto pick = [&](std::size_t most) { return degrees[random.below(most)]; };
      Layout l;
      l.tp = pick(6), l.cp = pick(5), l.pp = pick(6), l.dp = pick(7);
      l.ep = pick(7);
      l.order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
      for (std::size_t k = 3; k > 0 && i % 2 == 0; --k) std::swap(l.order[k], l.order[random.below(k + 1)]);
      if (l.tp * l.cp * l.dp % l.ep != 0 || l.gpus() > 768) continue;
      const int domain = domain_gpus(c, l.gpus());
      for (const RankGroup kind : {RankGroup::tp, RankGroup::cp, RankGroup::dp, RankGroup::ep, RankGroup::edp,
                                   RankGroup::dense, RankGroup::expert, RankGroup::pp_neighbours}) {
        const GroupShape shape = group_shape(l, c, kind);
        int least = shape.ranks;
        for (int rank = 0; rank < l.gpus(); ++rank) {
          const std::vector<int> members = group_members(l, kind, rank);
          if (static_cast<int>(members.size()) < shape.ranks) continue;  // the last pipeline rank has no next one
          std::map<int, int> in_domain;
          int most = 0;
          for (const int m : members) most = std::max(most, ++in_domain[m / domain]);
          least = std::min(least, most);
        }
        INFO(layout_text(l) << " on " << name << ", kind " << static_cast<int>(kind));
        CHECK(shape.ranks_per_domain == least);
        ++checked;
      }
    }
  }
  CHECK(checked > 1500);
}

TEST_CASE("every schedule is a word of layouts, and its order holds the slices where the layout says", "[layouts]") {
  for (const ScheduleRow& row : schedules()) {
    const std::string vpp = row.fixed_chunks ? "" : " vpp2";
    const Layout l = parse_layout("pp4" + vpp + " schedule=" + std::string(row.name), 0, "--layout");
    ScheduleQuestion q;
    q.ranks = 4;
    q.microbatches = 8;
    q.chunks = row.default_chunks;
    INFO(row.name);
    REQUIRE_FALSE(row.refuse(q));
    const Order order = row.order(q);
    CHECK(l.slices_per_rank() == row.default_chunks);
    CHECK(l.parameter_copies() == order.parameter_copies);
    CHECK(l.slices() * l.parameter_copies() == order.stages());
    std::vector<std::vector<int>> held(4), said(4);
    for (int s = 0; s < order.stages(); ++s) held[order.rank_of_stage[s]].push_back(order.layer_slot[s]);
    for (int rank = 0; rank < 4; ++rank) {
      for (int chunk = 0; chunk < l.slices_per_rank(); ++chunk) said[rank].push_back(l.slice_of(rank, chunk));
      CHECK_THAT(held[rank], Catch::UnorderedEquals(said[rank]));
    }
  }
}
