// Laws over every row of the table of schedules.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "sim/closed_forms.hpp"
#include "sim/framework_notes.hpp"
#include "sim/pass_index.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

PassTimes even_times(const Order& order, const ScheduleQuestion& q) {
  PassTimes t;
  t.forward.assign(order.stages(), q.forward);
  t.input_grad.assign(order.stages(), q.input_grad);
  t.weight_grad.assign(order.stages(), q.weight_grad);
  t.hop_forward.assign(order.stages(), q.p2p);
  t.hop_backward.assign(order.stages(), q.p2p);
  return t;
}

/// Small questions that a row can run.
template <class Visit>
void each_question(const ScheduleRow& row, Visit visit) {
  for (int p = 1; p <= 7; ++p) {
    for (int m = 1; m <= 17; m += (m < 6 ? 1 : 3)) {
      ScheduleQuestion q;
      q.ranks = p;
      q.microbatches = m;
      q.chunks = row.default_chunks;
      q.memory_limit = row.name == "zb-auto" ? 2 * p : 0;
      q.search = p <= 4 && m <= 5;
      const bool ragged = row.name == "interleaved-1f1b" && m % p != 0 && m > p;  // groups that Megatron refuses
      if (!ragged && !row.refuse(q)) visit(q);
    }
  }
}

/// The chain of one micro-batch, forward and back, at zero latency: no schedule is shorter.
double chain_of_one(const Order& order, const ScheduleQuestion& q) {
  const double stages = order.stages() / order.parameter_copies;
  return stages * (q.forward + q.input_grad) + q.weight_grad;
}

/// What facts say of the peak until the input gradient, in chunks; 0 = nothing.
int published_peak(const std::string& name, const ScheduleQuestion& q, int r) {
  const int p = q.ranks, m = q.microbatches, v = q.chunks;
  if (name == "gpipe") return m;
  if (name == "1f1b" || name == "zb-h1") return std::min(m, p - r);
  if (name == "interleaved-1f1b" && m >= p) return std::min(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1);
  if (name == "looped-bfs") return m * v;
  if (name == "zb-h2") return std::min(m, 2 * (p - r) - 1);
  if (name == "zb-v" && m >= 2 * p - 1) return 2 * p;
  if (name == "dualpipe") return p + 1;
  if (name == "dualpipe-v") return 2 * p + 1;
  return 0;
}

}  // namespace

TEST_CASE("every schedule runs every pass once, on its rank, forward before backward, without deadlock", "[sim]") {
  for (const ScheduleRow& row : schedules()) {
    int cases = 0;
    each_question(row, [&](const ScheduleQuestion& q) {
      INFO(row.name << " p=" << q.ranks << " m=" << q.microbatches);
      const Order order = row.order(q);
      CHECK(order.ranks == q.ranks);
      CHECK(order.stages() == q.ranks * q.chunks);
      CHECK_NOTHROW(PassIndex(order));
      int split = 0, whole = 0;
      for (const auto& list : order.passes) {
        for (const Pass& pass : list) {
          split += pass.kind == PassKind::input_grad ? 1 : 0;
          whole += pass.kind == PassKind::backward ? 1 : 0;
        }
      }
      CHECK((row.splits_backward ? split > 0 : split == 0));
      if (row.name != "dualpipe" && row.name != "dualpipe-v") CHECK((row.splits_backward ? whole == 0 : whole > 0));
      CHECK_NOTHROW(replay(order, even_times(order, q)));
      ++cases;
    });
    INFO(row.name);
    CHECK(cases >= 3);
  }
}

TEST_CASE("no replay is shorter than one micro-batch's way or than a rank's work, and peaks are the published ones",
          "[sim]") {
  for (const ScheduleRow& row : schedules()) {
    each_question(row, [&](ScheduleQuestion q) {
      q.forward = 3;
      q.input_grad = 4;
      q.weight_grad = 2;
      INFO(row.name << " p=" << q.ranks << " m=" << q.microbatches);
      const Order order = row.order(q);
      const Replay r = replay(order, even_times(order, q));
      CHECK(r.makespan >= chain_of_one(order, q) - 1e-9);
      for (int rank = 0; rank < q.ranks; ++rank) {
        CHECK(r.makespan >= r.ranks[rank].busy - 1e-9);
        CHECK(r.ranks[rank].peak_chunks_until_weight_grad >= r.ranks[rank].peak_chunks_until_input_grad);
        const int published = published_peak(std::string(row.name), q, rank);
        if (published > 0) CHECK(r.ranks[rank].peak_chunks_until_input_grad == published);
      }
    });
  }
}

TEST_CASE("messages take time: a hop never makes a schedule shorter, blocking never shorter than asynchronous",
          "[sim]") {
  for (const ScheduleRow& row : schedules()) {
    each_question(row, [&](ScheduleQuestion q) {
      INFO(row.name << " p=" << q.ranks << " m=" << q.microbatches);
      const Order order = row.order(q);
      const double free = replay(order, even_times(order, q)).makespan;
      q.p2p = 0.25;
      const double slow = replay(order, even_times(order, q)).makespan;
      CHECK(slow >= free);
      ReplayOptions blocking;
      blocking.p2p = P2pMode::rendezvous;
      CHECK(replay(order, even_times(order, q), blocking).makespan >= slow - 1e-9);
      blocking.stream_per_peer = false;
      CHECK(replay(order, even_times(order, q), blocking).makespan >= slow - 1e-9);
    });
  }
}

TEST_CASE("the replay equals the closed form wherever one is said to hold", "[sim]") {
  Random random(2026);
  std::map<std::string, int> cases;
  for (const ScheduleRow& row : schedules()) {
    for (int i = 0; i < 600 && cases[std::string(row.name)] < 60; ++i) {
      ScheduleQuestion q;
      const auto draw = [&](int most) { return 1 + static_cast<int>(random.below(most)); };
      q.ranks = draw(10);
      q.microbatches = random.below(2) == 0 ? draw(30) : q.ranks * draw(4);
      q.chunks = row.fixed_chunks ? row.default_chunks : draw(4);
      q.group = random.below(3) == 0 ? draw(12) : 0;
      q.forward = draw(20);
      q.input_grad = random.below(3) == 0 ? q.forward : draw(20);
      q.weight_grad = random.below(3) == 0 ? q.forward : draw(20) - 1;
      if (row.name == "chimera") {
        q.weight_grad = q.forward / 4;
        q.input_grad = q.forward - q.weight_grad;
      }
      q.p2p = random.below(2) == 0 ? 0 : 0.25 * static_cast<double>(random.below(20));
      const double sum = q.forward + q.input_grad + q.weight_grad;
      const double pair = random.below(2) == 0 ? -1 : sum * (0.4 + 0.6 * random.uniform());
      if (row.refuse(q)) continue;
      const auto form = closed_form(row.name, q, pair);
      if (!form) continue;
      const Order order = row.order(q);
      PassTimes times = even_times(order, q);
      if (pair >= 0) times.overlapped.assign(order.stages(), pair);
      INFO(row.name << " p=" << q.ranks << " m=" << q.microbatches << " v=" << q.chunks << " g=" << q.group
                    << " F=" << q.forward << " B=" << q.input_grad << " W=" << q.weight_grad << " c=" << q.p2p
                    << " FB=" << pair);
      CHECK(form->of(replay(order, times)) == Approx(form->value).epsilon(1e-12));
      ++cases[std::string(row.name)];
    }
  }
  int total = 0;
  for (const char* name : {"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2", "interleaved-zb",
                           "zb-v", "dualpipe", "dualpipe-v", "chimera"}) {
    INFO(name);
    CHECK(cases[name] >= 10);
    total += cases[name];
  }
  CHECK(total >= 300);
}

TEST_CASE("interleaving costs activations of 1 + (p-1)/(pv)", "[sim]") {
  ScheduleQuestion q;
  q.ranks = 4;
  q.microbatches = 16;
  q.chunks = 2;
  const Order order = find_schedule("interleaved-1f1b").order(q);
  const Replay r = replay(order, even_times(order, q));
  CHECK(r.ranks[0].peak_chunks_until_input_grad / (2.0 * 4) == Approx(1.375).epsilon(1e-12));
}

TEST_CASE("DualPipe idles by rank where a pair is faster than its halves", "[sim]") {
  ScheduleQuestion q;
  q.ranks = 8;
  q.microbatches = 20;
  q.chunks = 2;
  q.forward = q.input_grad = q.weight_grad = 10;
  const Order order = find_schedule("dualpipe").order(q);
  PassTimes times = even_times(order, q);
  times.overlapped.assign(order.stages(), 24);
  const Replay r = replay(order, times);
  const double idle[] = {30, 36, 42, 42, 42, 42, 36, 30};
  for (int rank = 0; rank < 8; ++rank) CHECK(r.ranks[rank].idle == Approx(idle[rank]).epsilon(1e-12));
}

TEST_CASE("DeepSeek's published pair through DualPipe", "[sim]") {
  // Times in ms: deepseek-ai/profile-data, 4 MoE layers a chunk on H800, EP64.
  ScheduleQuestion q;
  q.ranks = 16;
  q.microbatches = 120;
  q.chunks = 2;
  q.forward = 35.866;
  q.input_grad = 58.587;
  q.weight_grad = 23.712;
  const Order order = find_schedule("dualpipe").order(q);
  PassTimes times = even_times(order, q);
  times.overlapped.assign(order.stages(), 129.012);
  const Replay overlapped = replay(order, times);
  CHECK(overlapped.makespan == Approx(16240).epsilon(5e-4));
  for (const RankReplay& rank : overlapped.ranks) CHECK(rank.peak_chunks_until_input_grad == 17);
  q.forward = 97.363;  // with its all-to-alls exposed
  q.input_grad = 111.611;
  times = even_times(order, q);
  times.overlapped.assign(order.stages(), 129.012);
  CHECK(replay(order, times).makespan == Approx(18590).epsilon(5e-4));
  ScheduleQuestion plain = q;
  plain.chunks = 1;
  const Order one = find_schedule("1f1b").order(plain);
  CHECK(replay(one, even_times(one, plain)).makespan == Approx(31410).epsilon(5e-4));
}

TEST_CASE("V-Half and V-Min idle as published at equal times", "[sim]") {
  const int ranks[] = {4, 6, 8, 12, 16};
  const double half[] = {5, 11, 17, 29, 41}, least[] = {11, 17, 27, 41, 59};
  for (int i = 0; i < 5; ++i) {
    ScheduleQuestion q;
    q.ranks = ranks[i];
    q.microbatches = 3 * q.ranks;
    q.chunks = 2;
    const Order h = find_schedule("v-half").order(q), l = find_schedule("v-min").order(q);
    const Replay rh = replay(h, even_times(h, q)), rl = replay(l, even_times(l, q));
    CHECK(rh.max_stage_window - 6 * q.microbatches == half[i]);
    CHECK(rl.max_stage_window - 6 * q.microbatches == least[i]);
    for (const RankReplay& rank : rh.ranks) CHECK(rank.peak_chunks_until_input_grad <= q.ranks + 2);
    for (const RankReplay& rank : rl.ranks) CHECK(rank.peak_chunks_until_input_grad <= 2 * ((q.ranks + 4) / 3));
  }
}

TEST_CASE("schedules refuse what they cannot run, and frameworks what they do not run", "[sim]") {
  const auto question = [](int p, int m, int v, int g = 0) {
    ScheduleQuestion q;
    q.ranks = p;
    q.microbatches = m;
    q.chunks = v;
    q.group = g;
    return q;
  };
  CHECK(find_schedule("zb-v").refuse(question(4, 8, 3)));
  CHECK(find_schedule("dualpipe").refuse(question(3, 8, 2)));
  CHECK(find_schedule("dualpipe").refuse(question(4, 9, 2)));
  CHECK(find_schedule("dualpipe-v").refuse(question(4, 7, 2)));
  CHECK(find_schedule("1f1b").refuse(question(4, 8, 2)));
  CHECK_THROWS_AS(find_schedule("zbh1"), InputError);
  const auto note = [&](const char* schedule, const char* framework, const ScheduleQuestion& q) {
    for (const ScheduleNote& n : schedule_notes(schedule, q)) {
      if (n.framework == framework) return n.note;
    }
    return std::string();
  };
  CHECK(note("interleaved-1f1b", "megatron", question(6, 3, 2, 6)) == "refuses: the group of 6 is not in [PP=6, M=3]");
  CHECK(note("interleaved-1f1b", "megatron", question(4, 10, 2, 4))
            .find("refuses: 10 micro-batches leave a last group of 2") == 0);
  CHECK(note("interleaved-1f1b", "megatron", question(4, 8, 2)).empty());
  CHECK(note("interleaved-1f1b", "pytorch", question(4, 9, 2)) ==
        "refuses: 9 micro-batches are no multiple of its 2 rounds");
  CHECK(note("interleaved-1f1b", "pytorch", question(4, 10, 2)).empty());
  CHECK(note("1f1b", "pytorch", question(4, 3, 1)).find("refuses: ") == 0);
  CHECK(note("zb-v", "megatron", question(4, 8, 2)).find("refuses: ") == 0);
}

TEST_CASE("overlapped pairs hold one more in flight; they pay with interleaving or one stage, not in plain 1F1B",
          "[sim]") {
  for (const char* name : {"1f1b", "interleaved-1f1b"}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = p; m <= 4 * p; m += p) {
        ScheduleQuestion q;
        q.ranks = p;
        q.microbatches = m;
        q.chunks = find_schedule(name).default_chunks;
        q.forward = q.input_grad = q.weight_grad = 10;
        const Order plain = find_schedule(name).order(q);
        q.overlap_pairs = true;
        const Order paired = find_schedule(name).order(q);
        INFO(name << " p=" << p << " m=" << m);
        PassTimes times = even_times(paired, q);
        const Replay before = replay(plain, times);
        CHECK_NOTHROW(replay(paired, times));
        times.overlapped.assign(paired.stages(), 18);
        const Replay after = replay(paired, times);
        const int held = before.ranks[0].peak_chunks_until_input_grad;
        CHECK(after.ranks[0].peak_chunks_until_input_grad == std::min(m * q.chunks, held + 1));
        // A pair is one step of a chain: plain 1F1B has too few in flight to hide that its forward ends with its
        // backward.
        const bool pays = q.chunks > 1 || p == 1;
        if (m >= 3 * p) CHECK((after.makespan < before.makespan) == pays);
      }
    }
  }
}

TEST_CASE("every schedule puts the slices of the model where its row says", "[sim]") {
  for (const ScheduleRow& row : schedules()) {
    ScheduleQuestion q;
    q.ranks = 4;
    q.microbatches = 8;
    q.chunks = row.default_chunks;
    INFO(row.name);
    REQUIRE_FALSE(row.refuse(q));
    const Order order = row.order(q);
    CHECK(order.parameter_copies == (row.placement == Placement::bidirectional ? 2 : 1));
    std::vector<int> copies(order.stages(), 0);
    for (int s = 0; s < order.stages(); ++s) {
      const int rank = order.rank_of_stage[s], slice = order.layer_slot[s];
      ++copies.at(slice);
      if (row.placement == Placement::loop) CHECK(rank == slice % 4);
      if (row.placement == Placement::v_shape) CHECK(rank == (slice < 4 ? slice : 7 - slice));
      if (row.placement == Placement::bidirectional) CHECK((rank == slice || rank == 3 - slice));
    }
    const int slices = order.stages() / order.parameter_copies;
    for (int s = 0; s < slices; ++s) CHECK(copies[s] == order.parameter_copies);
  }
}
