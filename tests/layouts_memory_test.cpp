// Memory: measured runs, published layouts, the whiteboard's figures, and laws.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/random.hpp"
#include "hardware/cluster.hpp"
#include "layouts/measured_run.hpp"
#include "layouts/memory.hpp"
#include "models/load_model.hpp"
#include "sim/in_flight.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

constexpr double kGiB = 0x1p30;

Layout of(const std::string& text) { return parse_layout(text, 0, "--layout"); }

MemoryOptions options(const std::string& stack, const std::string& recipe = "") {
  MemoryOptions o;
  o.traits = memory_traits(stack);
  o.recipe = recipe;
  return o;
}

double of_kind(const MemoryReport& m, MemoryKind kind) {
  if (kind == MemoryKind::device) return m.peak_bytes();
  return kind == MemoryKind::reserved ? m.peak_reserved() : m.peak_allocated();
}

}  // namespace

TEST_CASE("memory of measured runs", "[facts]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    WARN("skipped: SHARDPLAN_FACTS is unset");
    return;
  }
  struct Family {
    double sum = 0, worst = 0;
    int n = 0;
  };
  std::map<std::string, Family> families;
  for (const MeasuredRun& run : read_runs(std::string(facts) + "/truth/runs.json")) {
    if (!run.score_memory || !run.memory_bytes) continue;
    INFO(run.id << " " << run.skipped.value_or(""));
    REQUIRE_FALSE(run.skipped);
    const MemoryReport m = memory_of(run.model, run.cluster, run.layout, run.workload, options(run.stack));
    const double error = of_kind(m, run.memory_kind) / *run.memory_bytes - 1;
    Family& f = families[run.family];
    f.sum += std::abs(error);
    f.worst = std::min(f.worst, error);
    ++f.n;
    if (std::getenv("MEMORY_ROWS") != nullptr) {
      const RankMemory& k = m.ranks[static_cast<std::size_t>(m.peak_rank)];
      std::printf("%-60s %6.2f GiB predicted %6.2f %+5.1f %% rank %d %s", run.id.c_str(), *run.memory_bytes / kGiB,
                  of_kind(m, run.memory_kind) / kGiB, 100 * error, k.stage, std::string(k.moment).c_str());
      for (std::size_t t = 0; t < kMemoryTerms; ++t)
        std::printf(" %s %.2f", std::string(kMemoryTermNames[t]).c_str(), k.terms[t] / kGiB);
      std::printf("\n");
    }
  }
  for (const auto& [name, f] : families) {
    std::printf("memory of %-14s %2d rows, MAPE %4.1f %%, most optimistic %+5.1f %%\n", name.c_str(), f.n,
                100 * f.sum / f.n, 100 * f.worst);
  }
  CHECK(families["simumax_b200"].sum / families["simumax_b200"].n <= 0.03);
  CHECK(families["simumax_b200"].worst >= -0.10);
}

TEST_CASE("Llama 3.1 405B on 16,384 H100s fits with zero2 and not with zero1") {
  const Model m = load_model("llama-3.1-405b");
  const Cluster c = load_cluster("h100-sxm");
  const Workload w{8192, 2048, DataType::bf16};
  const MemoryReport two = memory_of(m, c, of("tp8 pp16 vpp8 dp128 zero2"), w, options("megatron-core"));
  CHECK(two.fits);
  for (int r = 1; r <= 7; ++r) {
    const RankMemory& k = two.ranks[static_cast<std::size_t>(r)];
    CHECK((k.states() + k.of(MemoryTerm::activations)) / kGiB == Approx(72.8).epsilon(0.002));
    CHECK(k.peak_microbatches == Approx(16).epsilon(1e-12));
  }
  const MemoryReport one = memory_of(m, c, of("tp8 pp16 vpp8 dp128 zero1"), w, options("megatron-core"));
  CHECK_FALSE(one.fits);
  REQUIRE(one.shortfall);
  CHECK(one.shortfall->term == MemoryTerm::activations);
  CHECK(one.capacity_bytes / kGiB == Approx(79.65).epsilon(1e-3));
  const RankMemory& k = one.ranks[1];
  CHECK((k.states() + k.of(MemoryTerm::activations)) / kGiB == Approx(81.7).epsilon(0.002));
}

TEST_CASE("moments of a rank give the same peak as replaying bytes, for every schedule and any sizes of chunks") {
  Random random(3);
  for (const ScheduleRow& row : schedules()) {
    if (row.name == "zb-auto") continue;  // searched: its order depends on times
    for (int i = 0; i < 12; ++i) {
      ScheduleQuestion q;
      q.ranks = 2 << random.below(3);
      q.microbatches = static_cast<int>(q.ranks * (2 + random.below(3)));
      q.chunks =
          row.fixed_chunks ? row.default_chunks : (row.default_chunks == 1 ? 1 : 2 + static_cast<int>(random.below(2)));
      if (row.refuse(q)) continue;
      Layout l;
      l.pp = q.ranks, l.schedule = std::string(row.name), l.vpp = q.chunks;
      INFO(row.name << " p " << q.ranks << " m " << q.microbatches << " v " << q.chunks);
      REQUIRE(l.slices_per_rank() == q.chunks);
      const Order order = row.order(q);
      std::vector<double> slice_bytes, slice_waiting, bytes, waiting;
      for (int s = 0; s < l.slices(); ++s)
        slice_bytes.push_back(1 + 3 * random.uniform()), slice_waiting.push_back(random.uniform());
      for (int s = 0; s < order.stages(); ++s) {
        bytes.push_back(slice_bytes[static_cast<std::size_t>(order.layer_slot[s])]);
        waiting.push_back(slice_waiting[static_cast<std::size_t>(order.layer_slot[s])]);
      }
      const auto expected = in_flight_bytes(order, bytes, waiting);
      const InFlight flight = in_flight(l, q.microbatches);
      for (int r = 0; r < q.ranks; ++r) {
        double most = 0;
        for (const Moment& m : flight.ranks[static_cast<std::size_t>(r)]) {
          double sum = 0;
          for (int c = 0; c < q.chunks; ++c) {
            const auto slice = static_cast<std::size_t>(l.slice_of(r, c));
            sum += m.alive[static_cast<std::size_t>(c)] * slice_bytes[slice] +
                   m.waiting[static_cast<std::size_t>(c)] * slice_waiting[slice];
          }
          most = std::max(most, sum);
        }
        REQUIRE(most == Approx(expected[static_cast<std::size_t>(r)].split).epsilon(1e-12));
      }
    }
  }
}
