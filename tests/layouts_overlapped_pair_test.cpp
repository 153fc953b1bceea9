// Forward and backward passes as pairs (ep-overlap=1f1b): what two streams hide, and what a step makes of it.
#include <catch2/catch.hpp>

#include "layouts/in_flight.hpp"
#include "layouts/step/overlapped_pair.hpp"
#include "layouts/step/step.hpp"
#include "models/load_model.hpp"

using namespace shardplan;

namespace {

/// Compute 10 + 20 forward and 20 + 40 backward around transfers of `t` each.
LayerLanes lanes(double t, double contention = 0) {
  LayerLanes l;
  l.attention = 10, l.experts = 20;
  l.attention_back = 12, l.attention_weights = 8, l.experts_back = 25, l.experts_weights = 15;
  l.dispatch = l.combine = l.combine_back = l.dispatch_back = t;
  l.contention = contention;
  return l;
}

struct Asked {
  Model model;
  Pricer pricer;
  StepQuestion q;
  Asked(const std::string& name, const std::string& cluster, const std::string& layout, std::int64_t gpus,
        std::int64_t batch)
      : model(load_model(name)), pricer(load_cluster(cluster), Rates::calibrated, Fidelity::table) {
    q.model = &model;
    q.pricer = &pricer;
    q.layout = parse_layout(layout, gpus, "layout");
    q.workload.seq_len = 4096;
    q.workload.global_batch = batch;
    q.stack = load_stack("megatron-core", "stack");
  }
};

}  // namespace

TEST_CASE("a pair takes at least its compute and its transfers, and at most both one after the other") {
  for (const double t : {0.0, 3.0, 12.0, 40.0, 200.0}) {
    for (const double contention : {0.0, 0.15}) {
      for (const bool delayed : {false, true}) {
        const std::vector<LayerLanes> layers(5, lanes(t, contention));
        const double pair = overlapped_seconds(layers, layers, delayed);
        CHECK(pair >= 5 * std::max(90.0, 4 * t) - 1e-9);
        CHECK(pair <= 5 * (90 + 4 * t) / (1 - contention) + 1e-9);
        CHECK(overlapped_seconds(layers, layers, true) <= overlapped_seconds(layers, layers, false) + 1e-9);
      }
    }
  }
}

TEST_CASE("short transfers hide wholly but for the SMs that they hold; long ones hide the compute") {
  const std::vector<LayerLanes> free(20, lanes(5)), held(20, lanes(5, 0.2));
  CHECK(overlapped_seconds(free, free, true) == Approx(20 * 90).epsilon(0.01));
  // 20 seconds of transfers a layer run beside compute at 0.8 of its speed: 4 seconds of compute later.
  CHECK(overlapped_seconds(held, held, true) == Approx(20 * 94).epsilon(0.01));
  // By hand, one layer, transfers of 60: combine' 0-60 beside the attention; experts' 60-85, dispatch 60-120,
  // dispatch' 120-180; weights' 85-100, experts 120-140; combine 180-240 beside attention' 180-192.
  const std::vector<LayerLanes> one{lanes(60)};
  CHECK(overlapped_seconds(one, one, true) == Approx(240).epsilon(1e-9));
}

TEST_CASE("layers without a partner run alone") {
  const std::vector<LayerLanes> two(2, lanes(5)), none;
  CHECK(overlapped_seconds(two, none, true) == Approx(2 * two[0].forward()).epsilon(1e-12));
  CHECK(overlapped_seconds(none, two, true) == Approx(2 * two[0].backward()).epsilon(1e-12));
}

TEST_CASE("ep-overlap=1f1b shortens a step with a steady state, and by less where there is little of one") {
  const std::string words = "tp2 pp4 vpp4 ep16 dp16 transport=deepep zero1 ep-overlap=";
  const auto gain = [&](std::int64_t batch) {
    const Asked none("qwen3-235b-a22b", "h100-sxm", words + "none", 128, batch);
    const Asked pairs("qwen3-235b-a22b", "h100-sxm", words + "1f1b", 128, batch);
    return 1 - simulate_step(pairs.q).step_time_s / simulate_step(none.q).step_time_s;
  };
  const double many = gain(16 * 64), few = gain(16 * 4);
  CHECK(many > 0.03);
  CHECK(few < many);
}

TEST_CASE("a pair's time adds up, is no less than the search's bound, and all ranks agree with one") {
  for (const char* wgrad : {"", " delay-wgrad=0"}) {
    Asked a("qwen3-30b-a3b", "h100-sxm", std::string("pp4 vpp4 ep8 dp8 transport=deepep ep-overlap=1f1b") + wgrad, 32,
            256);
    const StepReport s = simulate_step(a.q);
    CHECK(s.busy_s == Approx(s.busiest.device() + s.launch_s + s.blocking_s).epsilon(1e-9));
    CHECK(step_lower_bound(a.q) <= s.step_time_s);
    a.q.options.all_ranks = true;
    CHECK(simulate_step(a.q).step_time_s == Approx(s.step_time_s).epsilon(1e-12));
  }
}

TEST_CASE("a pair holds two micro-batches: one more chunk is in flight") {
  const Layout plain = parse_layout("pp4 vpp2 ep2 dp2", 8, "layout"),
               paired = parse_layout("pp4 vpp2 ep2 dp2 ep-overlap=1f1b", 8, "layout");
  for (int r = 0; r < 4; ++r) CHECK(in_flight(paired, 16).peak_alive(r) == in_flight(plain, 16).peak_alive(r) + 1);
  CHECK(in_flight_key(plain, 16) != in_flight_key(paired, 16));
}
