#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "hardware/collective_datasheet.hpp"
#include "hardware/flows.hpp"

using namespace shardplan;

namespace {

std::vector<std::int64_t> range(std::int64_t n) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

std::string error_of(const std::string& text) {
  try {
    parse_traffic_matrix(text, "m.txt");
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

/// The same flows over every link of their routes, none left out.
FlowSet all_links(const Topology& t, const TrafficMatrix& traffic, const std::vector<std::int64_t>& placement) {
  FlowSet set;
  for (const TopologyLink& link : t.links()) set.capacity.push_back(link.bytes_per_second);
  for (std::int64_t i = 0; i < traffic.ranks; ++i) {
    for (std::int64_t j = 0; j < traffic.ranks; ++j) {
      if (i != j && traffic.at(i, j) > 0) set.add(t.route(placement[i], placement[j]), traffic.at(i, j));
    }
  }
  return set;
}

Cluster blocking(int group, double over) {
  Cluster c = load_cluster("h100-sxm");
  c.network.nodes_per_leaf_group = group;
  c.network.oversubscription.value = over;
  return c;
}

}  // namespace

TEST_CASE("flows over the links that matter end as flows over all links", "[traffic]") {
  Random random(3);
  for (const char* name :
       {"dgx-h100", "llama3-roce", "p4d-efa", "p5-efa", "mi300x", "gb200", "host-cpu", "jean-zay-v100"}) {
    for (const int group : {0, 1, 2}) {
      Cluster c = load_cluster(name);
      c.network.nodes_per_leaf_group = group;
      c.network.nodes_per_pod = group == 1 ? 2 : 0;
      const std::int64_t gpus = 4 * c.node.gpus + (c.node.nvlink_domain > c.node.gpus ? c.node.nvlink_domain : 0);
      const Topology t = Topology::of(c, gpus);
      TrafficMatrix traffic(gpus);
      for (double& b : traffic.bytes) b = random.uniform() < 0.3 ? 0 : (1 + random.uniform()) * 1e6;
      INFO(name << " " << group);
      const FlowTimes full = complete_flows(all_links(t, traffic, range(gpus)), {1e-2, true});
      const TrafficTime few = flows_time(t, traffic, range(gpus), {}, 1e-2);
      CHECK(few.seconds == Approx(full.end).epsilon(1e-6));
      CHECK(few.bound_seconds == Approx(busiest_link(all_links(t, traffic, range(gpus))).seconds).epsilon(1e-9));
      CHECK(few.seconds >= few.bound_seconds * (1 - 1e-9));
    }
  }
}

TEST_CASE("rings and equal all-to-alls take what the whiteboard says", "[traffic]") {
  const auto check = [](const char* name, Collective op, int ranks, int per_domain) {
    const Cluster c = load_cluster(name);
    const double nics = per_domain * c.node.nics.value / c.node.gpus;
    const GroupShape shape{ranks, per_domain, nics};
    INFO(name << " op " << static_cast<int>(op) << " ranks " << ranks << " of " << per_domain << " a domain");
    const double whiteboard = datasheet_seconds(c, op, 1e9, shape);
    CHECK(collective_time(c, Fidelity::bound, op, 1e9, shape).seconds == Approx(whiteboard).epsilon(1e-9));
    CHECK(collective_time(c, Fidelity::flows, op, 1e9, shape).seconds == Approx(whiteboard).epsilon(1e-9));
  };
  for (const auto op :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all}) {
    check("h100-sxm", op, 2, 2);
    check("h100-sxm", op, 8, 8);
    check("h100-sxm", op, 32, 8);
    check("h100-sxm", op, 64, 1);
    check("h100-sxm", op, 16, 4);
    check("p4d-efa", op, 4, 1);
    check("p4d-efa", op, 16, 8);
    check("p5-efa", op, 32, 8);
    check("gb200", op, 72, 72);
    check("gb200", op, 144, 72);
  }
  check("h100-sxm", Collective::send_recv, 2, 1);
  check("h100-sxm", Collective::broadcast, 8, 8);
}

TEST_CASE("DeepSeek-V3's dispatch crosses 704.6 MB in 14.1 ms and 1.41 GB in 3.1 ms", "[traffic]") {
  // 8,192 tokens x 3 copies to other nodes x 7,168 wide x (1 byte out + 2 back + none) on a 50 GB/s NIC; eight copies
  // over NVLink.
  const Cluster c = load_cluster("h100-sxm");
  const Topology t = Topology::of(c, 16);
  TrafficMatrix out(16);
  for (int i = 0; i < 8; ++i) out.at(i, 8 + i) = 8192.0 * 4 * 7168 * 3;
  CHECK(bound_time(t, out, range(16)).seconds == Approx(14.1e-3).epsilon(2e-3));
  CHECK(flows_time(t, out, range(16)).crosses);
  TrafficMatrix inside(8);
  for (int i = 0; i < 8; ++i) inside.at(i, (i + 1) % 8) = 8192.0 * 8 * 7168 * 3;
  CHECK(flows_time(t, inside, range(8)).seconds == Approx(3.13e-3).epsilon(2e-3));
  CHECK_FALSE(flows_time(t, inside, range(8)).crosses);
}

TEST_CASE("oversubscription and shared NICs slow what crosses them, and nothing else", "[traffic]") {
  const auto seconds = [](const Cluster& c, std::int64_t gpus) {
    return flows_time(Topology::of(c, gpus), all_to_all_traffic(gpus, 1e9), range(gpus)).seconds;
  };
  const double open = seconds(blocking(0, 1), 32);
  CHECK(seconds(blocking(1, 1), 32) == Approx(open).epsilon(1e-9));
  CHECK(seconds(blocking(1, 4), 32) == Approx(4 * open).epsilon(1e-9));
  // Leaves of two nodes: of the 24 remote ranks' shares, the 16 of the other group pass the 4:1 leaf. Sharing the
  // spine, each node's rail has 2 x 50 / 4 = 25 GB/s for two nodes.
  CHECK(seconds(blocking(2, 4), 32) == Approx(16.0 / 24 * 4 * open).epsilon(1e-9));
  const Topology one = Topology::of(blocking(1, 4), 8);
  CHECK(flows_time(one, all_to_all_traffic(8, 1e9), range(8)).seconds == Approx(7.0 / 8 * 1e9 / 450e9).epsilon(1e-9));
}

TEST_CASE("skew: the hot receiver sets the time, flows never beat the bound", "[traffic]") {
  const Cluster c = load_cluster("h100-sxm");
  const Topology t = Topology::of(c, 32);
  TrafficMatrix hot = all_to_all_traffic(32, 32e6);
  for (int i = 0; i < 32; ++i) hot.at(i, 5) *= 10;
  const TrafficTime bound = bound_time(t, hot, range(32)), flows = flows_time(t, hot, range(32), {}, 0);
  // Into rank 5's NIC: 24 remote ranks with 10 MB each over 50 GB/s.
  CHECK(bound.seconds == Approx(24 * 10e6 / 50e9).epsilon(1e-9));
  CHECK(t.link_name(bound.busiest).find("nic 5") != std::string::npos);
  CHECK(flows.seconds >= bound.seconds * (1 - 1e-12));
  CHECK(flows.seconds == Approx(bound.seconds).epsilon(1e-6));
}

TEST_CASE("a group's shape follows from its ranks", "[traffic]") {
  const auto shape = [](const char* cluster, const std::vector<std::int64_t>& ranks) {
    return shape_of_ranks(load_cluster(cluster), ranks);
  };
  CHECK(shape("h100-sxm", range(8)).ranks_per_domain == 8);
  CHECK_FALSE(shape("h100-sxm", range(8)).crosses());
  CHECK(shape("h100-sxm", {0, 8, 16, 24}).ranks_per_domain == 1);
  CHECK(shape("h100-sxm", {0, 8, 16, 24}).nics_per_domain == 1);
  CHECK(shape("p4d-efa", {0, 8}).nics_per_domain == 0.5);
  CHECK(shape("p5-efa", {0, 1, 8, 9}).nics_per_domain == 8);
  CHECK(shape("gb200", range(64)).ranks_per_domain == 64);
}

TEST_CASE("the flows fidelity equals the table where nothing blocks, and adds what blocks", "[traffic]") {
  const auto seconds = [](const Cluster& c, Rates rates, Fidelity fidelity, Collective op, const GroupShape& shape) {
    return NetworkModel(c, rates, fidelity).collective(op, 1e9, shape).price.seconds;
  };
  const Cluster open = load_cluster("dgx-h100");
  for (const auto op : {Collective::all_reduce, Collective::all_gather, Collective::all_to_all}) {
    for (const GroupShape& shape : {GroupShape{8, 8, 8}, GroupShape{32, 8, 8}, GroupShape{16, 1, 1}}) {
      for (const Rates rates : {Rates::datasheet, Rates::calibrated}) {
        CHECK(seconds(open, rates, Fidelity::flows, op, shape) == seconds(open, rates, Fidelity::table, op, shape));
      }
    }
  }
  // Pods of two nodes, 8:1 above them: half of a 4-node all-to-all of one GPU a node crosses pods.
  Cluster pods = load_cluster("llama3-roce");
  pods.network.nodes_per_pod = 2;
  pods.network.pod_oversubscription.value = 8;
  const GroupShape rail{4, 1, 1};
  const double line = 3.0 / 4 * 1e9 / 50e9, blocked = 2.0 / 4 * 1e9 / (50e9 / 8);
  CHECK(seconds(pods, Rates::datasheet, Fidelity::table, Collective::all_to_all, rail) == Approx(line).epsilon(1e-9));
  CHECK(seconds(pods, Rates::datasheet, Fidelity::flows, Collective::all_to_all, rail) ==
        Approx(blocked).epsilon(1e-9));
  const double table = seconds(pods, Rates::calibrated, Fidelity::table, Collective::all_to_all, rail);
  CHECK(seconds(pods, Rates::calibrated, Fidelity::flows, Collective::all_to_all, rail) ==
        Approx(table + blocked - line).epsilon(1e-9));
  CHECK(seconds(pods, Rates::calibrated, Fidelity::bound, Collective::all_to_all, rail) ==
        Approx(blocked).epsilon(1e-9));
  // A ring visits pod after pod: only its edge between pods is slow.
  CHECK(seconds(pods, Rates::datasheet, Fidelity::flows, Collective::all_gather, rail) ==
        Approx(3.0 / 4 * 1e9 / (2 * 50e9 / 8)).epsilon(1e-9));
}

TEST_CASE("measured rates scale the wires", "[traffic]") {
  const Cluster c = load_cluster("h100-sxm");
  const Topology t = Topology::of(c, 16);
  const TrafficMatrix traffic = all_to_all_traffic(16, 1e9);
  const double line = flows_time(t, traffic, range(16)).seconds;
  // NICs at 88 %: the wire of a NIC is as slow as its slowest part.
  CHECK(flows_time(t, traffic, range(16), {1, 1, 0.88}).seconds == Approx(line / 0.88).epsilon(1e-9));
}

TEST_CASE("traffic matrices are read and written as nccl-tests reads them", "[traffic]") {
  const TrafficMatrix m = parse_traffic_matrix("0 16 32\n\n 48\t0 64 \r\n1e2 2.5 0", "m.txt");
  CHECK(m.ranks == 3);
  CHECK(m.at(1, 0) == 48);
  CHECK(m.at(2, 0) == 100);
  CHECK(traffic_matrix_text(m) == "0 16 32\n48 0 64\n100 3 0\n");
  const TrafficMatrix again = parse_traffic_matrix(traffic_matrix_text(m), "m.txt");
  CHECK(again.at(1, 2) == 64);
}

TEST_CASE("malformed traffic matrices are refused with their line", "[traffic]") {
  CHECK(error_of("") == "m.txt: no traffic matrix: the file is empty");
  CHECK(error_of("1 2\n3\n") == "m.txt: line 2: 1 columns, the first row has 2");
  CHECK(error_of("1 2\n3 4\n5 6\n") == "m.txt: line 3: more rows than the 2 columns");
  CHECK(error_of("1 2\n") == "m.txt: a traffic matrix is square: 1 rows, 2 columns");
  CHECK(error_of("1 x\n3 4\n") == "m.txt: line 1: expected bytes, got \"x\"");
  CHECK(error_of("1 -2\n3 4\n") == "m.txt: line 1: bytes must not be negative");
  CHECK(error_of("1 nan\n3 4\n").find("expected bytes") != std::string::npos);
  CHECK(error_of("1 1e999\n3 4\n").find("expected bytes") != std::string::npos);
  CHECK(error_of("1 16B\n3 4\n") == "m.txt: line 1: expected bytes, got \"16B\"");
}

TEST_CASE("a matrix of another size than the group is refused", "[traffic]") {
  const Topology t = Topology::of(load_cluster("h100-sxm"), 8);
  CHECK_THROWS_AS(flows_time(t, TrafficMatrix(4), range(8)), InputError);
  TrafficMatrix m(2);
  m.at(0, 1) = 1;
  CHECK_THROWS_AS(flows_time(t, m, {0, 9}), InputError);
}

TEST_CASE("A collective of too many flows is refused, not begun", "[flows]") {
  Cluster cluster = load_cluster("h100-sxm");
  cluster.node.nvlink_domain = 8192;
  const NetworkModel network(cluster, Rates::calibrated, Fidelity::flows);
  CHECK_THROWS_AS(network.collective(Collective::all_reduce, 1e9, group_shape(cluster, 16384)), InputError);
}
