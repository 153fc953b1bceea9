// Seconds of collectives: facts that a hand can check, and laws that hold for every GPU's table.
#include <catch2/catch.hpp>

#include "hardware/collective_nccl.hpp"
#include "hardware/collective_tables.hpp"
#include "hardware/collectives.hpp"

using namespace shardplan;

namespace {

Cluster eight_gpus(const std::string& gpu, double nvlink) {
  Cluster c;
  c.name = c.gpu.name = gpu;
  c.gpu.nvlink_bytes_per_second.value = nvlink;
  c.node.nics.value = 8;
  c.node.nic_bytes_per_second.value = 50e9;
  c.network.kind = "infiniband";
  c.network.hop_seconds.value = 5e-6;
  c.network.oversubscription.value = 1;
  return c;
}
Cluster h100() { return eight_gpus("h100-sxm", 450e9); }

}  // namespace

TEST_CASE("datasheet rates are ring factors at line rate without latency", "[collectives]") {
  const NetworkModel m(h100(), Rates::datasheet, Fidelity::table);
  CHECK(m.collective(Collective::all_reduce, 1e9, {8, 8, 8}).price.seconds ==
        Approx(2 * 7.0 / 8 * 1e9 / 450e9).epsilon(1e-12));
  CHECK(m.collective(Collective::all_gather, 1e9, {8, 8, 8}).price.seconds ==
        Approx(7.0 / 8 * 1e9 / 450e9).epsilon(1e-12));
  // One NIC each across 16 nodes: the network decides.
  CHECK(m.collective(Collective::all_gather, 1e9, {16, 1, 1}).price.seconds ==
        Approx(15.0 / 16 * 1e9 / 50e9).epsilon(1e-12));
  // Eight NICs carry 400 GB/s, less than NVLink.
  CHECK(m.collective(Collective::reduce_scatter, 1e9, {16, 8, 8}).price.seconds ==
        Approx(15.0 / 16 * 1e9 / 400e9).epsilon(1e-12));
  CHECK(m.collective(Collective::send_recv, 705e6, {2, 1, 1}).price.seconds == Approx(14.1e-3).epsilon(1e-3));
  CHECK(m.collective(Collective::send_recv, 1.41e9, {2, 2, 2}).price.seconds == Approx(3.13e-3).epsilon(2e-3));
}

TEST_CASE("times grow with bytes and with ranks in every table", "[collectives]") {
  for (const CollectiveTable& t : collective_calibration()->tables) {
    const NetworkModel m(eight_gpus(t.gpu, t.link_bytes_per_second), Rates::calibrated, Fidelity::table);
    for (const Collective op : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                Collective::broadcast, Collective::all_to_all, Collective::send_recv}) {
      for (const GroupShape shape : {GroupShape{2, 2, 2}, {4, 4, 4}, {8, 8, 8}, {16, 8, 8}, {64, 8, 8}, {16, 1, 1}}) {
        if (op == Collective::send_recv && shape.ranks > 2) continue;
        double before = 0;
        for (double bytes = 1024; bytes < 2e10; bytes *= 4) {
          const CollectivePrice p = m.collective(op, bytes, shape);
          INFO(t.gpu << " op " << static_cast<int>(op) << " ranks " << shape.ranks << " bytes " << bytes);
          CHECK(p.price.seconds >= before * 0.98);
          CHECK(p.price.low <= p.price.seconds);
          CHECK(p.price.high >= p.price.seconds);
          before = p.price.seconds;
        }
      }
    }
  }
}

TEST_CASE("two GPUs do not get the rate of eight", "[collectives]") {
  const NetworkModel m(h100(), Rates::calibrated, Fidelity::table);
  const double two = m.collective(Collective::all_gather, 512e6, {2, 2, 2}).bus_bytes_per_second;
  const double eight = m.collective(Collective::all_gather, 512e6, {8, 8, 8}).bus_bytes_per_second;
  CHECK(two < 0.85 * eight);  // measured 258 against 335 GB/s
}

TEST_CASE("a hop of the fabric decides small messages across nodes", "[collectives]") {
  Cluster slow = h100();
  slow.network.hop_seconds.value = 25e-6;
  const NetworkModel ib(h100(), Rates::calibrated, Fidelity::table), efa(slow, Rates::calibrated, Fidelity::table);
  CHECK(efa.collective(Collective::all_reduce, 1024, {16, 8, 8}).price.seconds -
            ib.collective(Collective::all_reduce, 1024, {16, 8, 8}).price.seconds ==
        Approx(40e-6).epsilon(0.4));
}

TEST_CASE("a group that crosses without NICs is refused", "[collectives]") {
  Cluster c = h100();
  c.node.nics.value = 0;
  const NetworkModel m(c, Rates::calibrated, Fidelity::table);
  CHECK_THROWS(m.collective(Collective::all_reduce, 1e6, {16, 8, 0}));
}
