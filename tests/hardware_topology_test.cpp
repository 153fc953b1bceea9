#include <catch2/catch.hpp>
#include <set>

#include "base/errors.hpp"
#include "hardware/topology.hpp"

using namespace shardplan;

namespace {

std::string names(const Topology& t, std::int64_t from, std::int64_t to) {
  std::string out = "gpu " + std::to_string(from);
  for (const std::int32_t l : t.route(from, to)) out += " > " + t.name_of(t.links()[l].to);
  return out;
}

Cluster with_network(Cluster c, int group, int pod, double over, double pod_over) {
  c.network.nodes_per_leaf_group = group;
  c.network.nodes_per_pod = pod;
  c.network.oversubscription.value = over;
  c.network.pod_oversubscription.value = pod_over;
  return c;
}

Cluster torus(std::vector<int> dimensions) {
  Cluster c = load_cluster("h100-sxm");
  c.node.fabric = IntraFabric::torus;
  c.node.torus = dimensions;
  c.node.nvlink_domain = 1;
  for (const int n : dimensions) c.node.nvlink_domain *= n;
  c.node.gpus = 1;
  c.node.nics.value = 1;
  return c;
}

std::vector<std::int64_t> range(std::int64_t from, std::int64_t to) {
  std::vector<std::int64_t> out;
  for (; from < to; ++from) out.push_back(from);
  return out;
}

struct Case {
  const char* name;
  Cluster cluster;
  std::int64_t gpus;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const std::string& name : cluster_names()) {
    const Cluster c = load_cluster(name);
    out.push_back({"named cluster", c, std::int64_t{3} * std::max(c.node.gpus, c.node.nvlink_domain)});
  }
  for (const std::string& name : gpu_names()) out.push_back({"gpu", load_cluster(name), 16});
  out.push_back({"pods", with_network(load_cluster("dgx-h100"), 2, 4, 2, 4), 96});
  out.push_back({"racks", with_network(load_cluster("llama3-roce"), 2, 4, 1, 7), 96});
  out.push_back({"torus 4x4x3", torus({4, 4, 3}), 48});
  out.push_back({"torus 2x5", torus({2, 5}), 10});
  Cluster pcie = load_cluster("h100-sxm");
  pcie.node.fabric = IntraFabric::pcie;
  pcie.node.nics.value = 2;
  out.push_back({"pcie", pcie, 16});
  Cluster bridges = load_cluster("h100-sxm");
  bridges.node.nvlink_domain = 2;
  bridges.node.fabric = IntraFabric::nvlink_mesh;
  out.push_back({"bridges", bridges, 16});
  return out;
}

}  // namespace

TEST_CASE("every route is a path of links from rank to rank, and passes nothing twice", "[topology]") {
  for (const Case& c : cases()) {
    INFO(c.name << " " << c.cluster.name);
    const Topology t = Topology::of(c.cluster, c.gpus);
    REQUIRE(t.gpus() == c.gpus);
    REQUIRE(parts(t).size() == 1);
    const std::int64_t stride = std::max<std::int64_t>(1, c.gpus / 23);
    for (std::int64_t a = 0; a < c.gpus; a += stride) {
      for (std::int64_t b = 0; b < c.gpus; ++b) {
        const auto route = t.route(a, b);
        if (a == b) {
          REQUIRE(route.empty());
          continue;
        }
        std::set<std::int32_t> passed = {t.vertex_of(a)};
        std::int32_t at = t.vertex_of(a);
        for (const std::int32_t l : route) {
          REQUIRE(t.links()[l].from == at);
          at = t.links()[l].to;
          REQUIRE(passed.insert(at).second);
          REQUIRE(t.links()[l].bytes_per_second > 0);
        }
        REQUIRE(at == t.vertex_of(b));
      }
    }
  }
}

TEST_CASE("a built route is as short as the graph's shortest one", "[topology]") {
  for (const Case& c : cases()) {
    if (c.gpus > 100) continue;
    INFO(c.name << " " << c.cluster.name);
    const Topology t = Topology::of(c.cluster, c.gpus);
    const bool relays = c.cluster.node.fabric == IntraFabric::torus || c.cluster.network.wiring == Wiring::rails;
    // Without NVLink through the node, other rails are reached over the spine, not over the host bridge.
    if (c.cluster.node.fabric == IntraFabric::pcie || c.cluster.node.nvlink_domain < c.cluster.node.gpus) continue;
    const bool several_leaf_groups =
        c.cluster.network.wiring == Wiring::rails && c.cluster.network.nodes_per_leaf_group > 0;
    const auto length = [&](const std::vector<std::int32_t>& route) {
      int sum = 0;
      for (const std::int32_t l : route)
        sum += t.links()[l].kind == LinkKind::nvlink ? 1 : t.links()[l].kind == LinkKind::pcie ? 2 : 4;
      return sum;
    };
    for (std::int64_t a = 0; a < c.gpus; a += 5) {
      for (std::int64_t b = 0; b < c.gpus; b += 3) {
        INFO(a << " to " << b << ": " << names(t, a, b));
        // PXN keeps to the receiver's rail even where the way leads over the spine: one more NVLink hop, up and down.
        const int longer = length(t.route(a, b)) - length(shortest_route(t, a, b, relays));
        REQUIRE((longer == 0 || (longer == 2 && several_leaf_groups)));
      }
    }
  }
}

TEST_CASE("rails are reached over NVLink, leaves directly", "[topology]") {
  const Topology rails = Topology::of(load_cluster("dgx-h100"), 64);
  CHECK(names(rails, 0, 5) == "gpu 0 > nvswitch 0 > gpu 5");
  CHECK(names(rails, 1, 9) == "gpu 1 > node 0 pcie 1 > node 0 nic 1 > leaf 0.1 > node 1 nic 1 > node 1 pcie 1 > gpu 9");
  CHECK(names(rails, 1, 10) ==
        "gpu 1 > nvswitch 0 > gpu 2 > node 0 pcie 2 > node 0 nic 2 > leaf 0.2 > node 1 nic 2 > node 1 pcie 2 > gpu 10");
  const Topology racks = Topology::of(with_network(load_cluster("llama3-roce"), 2, 4, 1, 7), 96);
  CHECK(names(racks, 1, 10) ==
        "gpu 1 > node 0 pcie 1 > node 0 nic 1 > leaf 0.0 > node 1 nic 2 > node 1 pcie 2 > gpu 10");
  CHECK(names(racks, 0, 64) ==
        "gpu 0 > node 0 pcie 0 > node 0 nic 0 > leaf 0.0 > spine 0 > core > spine 2 > leaf 4.0 > node 8 nic 0 > "
        "node 8 pcie 0 > gpu 64");
  const Topology cloud = Topology::of(load_cluster("p5-efa"), 16);
  CHECK(names(cloud, 1, 10) == "gpu 1 > node 0 pcie 1 > node 0 nic 1 > core > node 1 nic 2 > node 1 pcie 2 > gpu 10");
}

TEST_CASE("72 GPUs of a rack share one NVLink domain across trays", "[topology]") {
  const Topology t = Topology::of(load_cluster("gb200"), 144);
  CHECK(names(t, 0, 71) == "gpu 0 > nvswitch 0 > gpu 71");
  CHECK(t.route(0, 72).size() > 2);
}

TEST_CASE("a mesh has a link for every pair, a torus goes the short way round", "[topology]") {
  const Topology mesh = Topology::of(load_cluster("mi300x"), 8);
  CHECK(names(mesh, 2, 7) == "gpu 2 > gpu 7");
  CHECK(mesh.links().size() == 8 * 7);
  CHECK(mesh.links()[mesh.route(2, 7)[0]].bytes_per_second == 64e9);
  const Topology ring = Topology::of(torus({5}), 5);
  CHECK(names(ring, 0, 4) == "gpu 0 > gpu 4");
  CHECK(names(ring, 0, 2) == "gpu 0 > gpu 1 > gpu 2");
  const Topology box = Topology::of(torus({4, 4, 3}), 48);
  CHECK(names(box, 0, 2 + 4 * 3 + 16 * 2) == "gpu 0 > gpu 1 > gpu 2 > gpu 14 > gpu 46");
  CHECK(box.links().size() == 48 * 6);
  CHECK_THROWS_AS(Topology::of(torus({4, 4}), 10), InputError);
}

TEST_CASE("capacities: shared NICs, several NICs a GPU, oversubscribed leaves and pods", "[topology]") {
  // p4d: 8 GPUs on 4 NICs of 12.5 GB/s: two GPUs share one. p5: four NICs of 12.5 GB/s a GPU.
  const auto bisection = [](const Cluster& c, std::int64_t gpus) {
    return most_bytes_per_second(Topology::of(c, gpus), range(0, gpus / 2), range(gpus / 2, gpus));
  };
  CHECK(bisection(load_cluster("p4d-efa"), 16) == 4 * 12.5e9);
  CHECK(bisection(load_cluster("p5-efa"), 16) == 32 * 12.5e9);
  CHECK(bisection(load_cluster("dgx-h100"), 8) == 4 * 450e9);
  CHECK(bisection(load_cluster("mi300x"), 8) == 16 * 64e9);
  CHECK(bisection(with_network(load_cluster("h100-sxm"), 1, 0, 1, 1), 32) == 16 * 50e9);
  CHECK(bisection(with_network(load_cluster("h100-sxm"), 1, 0, 4, 1), 32) == 4 * 50e9);
  CHECK(bisection(with_network(load_cluster("llama3-roce"), 2, 4, 1, 8), 64) == 32 * 50e9 / 8);
  CHECK(bisection(torus({8}), 8) == 2 * 450e9);
}

TEST_CASE("links in series stand for one another, the slowest for all", "[topology]") {
  const Topology t = Topology::of(load_cluster("dgx-h100"), 16);
  const auto route = t.route(0, 8);  // gpu, pcie, nic, leaf and back down
  REQUIRE(route.size() == 6);
  CHECK(t.series(route[0]) == t.series(route[1]));
  CHECK(t.series(route[1]) == t.series(route[2]));
  CHECK(t.series(route[3]) == t.series(route[5]));
  CHECK(t.series(route[0]) != t.series(route[3]));
  CHECK(t.links()[t.series(route[0])].bytes_per_second == 50e9);
  const auto inside = t.route(0, 1);
  CHECK(t.series(inside[0]) == inside[0]);
}

TEST_CASE("a group's links follow from where its ranks sit", "[topology]") {
  const Topology t = Topology::of(load_cluster("dgx-h100"), 32);
  CHECK(t.links_of_group({0, 1, 2, 3}).size() == 8);        // up and down of four GPUs
  CHECK(t.links_of_group({0, 8, 16, 24}).size() == 4 * 6);  // one rail: gpu-pcie-nic-leaf, both ways
  CHECK(t.links_of_group({5}).empty());
}

TEST_CASE("what cannot be wired is refused", "[topology]") {
  Cluster c = load_cluster("h100-sxm");
  c.node.nics.value = 0;
  CHECK_THROWS_AS(Topology::of(c, 16), InputError);
  CHECK(Topology::of(c, 8).gpus() == 8);
  CHECK_THROWS_AS(Topology::of(c, 0), InputError);
  CHECK_THROWS_AS(Topology::of(c, 1LL << 40), InputError);
  CHECK_THROWS_AS(Topology::of(load_cluster("h100-sxm"), 8).route(0, 8), InputError);
  CHECK_THROWS_AS(Topology::of_graph({{Place::gpu, 0, 0, 1}, {Place::gpu, 0, 1, 1}}, {}), InputError);
}
