#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/errors.hpp"
#include "hardware/import_topo.hpp"

using namespace shardplan;

namespace {

std::string error_of(const std::string& text) {
  try {
    parse_topo(text, "t.txt");
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

bool has_note(const TopoMatrix& m, const std::string& part) {
  for (const std::string& note : m.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

// Four GPUs behind a switch, three NICs: one beside GPU0 and GPU1, one beside GPU2, one for storage.
const std::string kFour =
    "$ nvidia-smi topo -m\n"
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tPIX\tSYS\tNODE\t0-15\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tPIX\tSYS\tNODE\t0-15\t0\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\tSYS\t16-31\t1\t\tN/A\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tSYS\tSYS\tSYS\t16-31\t1\t\tN/A\n"
    "NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\tNODE\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC2\tNODE\tNODE\tSYS\tSYS\tNODE\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n  NV#  = NVLinks\n\nNIC Legend:\n\n  NIC0: "
    "mlx5_0\n";

struct Expected {
  const char* file;
  int gpus, nics, nvlinks, domain, rails, far;
  IntraFabric fabric;
  const char* note;
};

}  // namespace

TEST_CASE("a matrix with a prompt, escape codes and a legend", "[topo]") {
  const TopoMatrix m = parse_topo(kFour, "t.txt");
  CHECK(m.gpus == 4);
  CHECK(m.nics() == 3);
  CHECK(m.at(2, 5) == PathCell{PathKind::pxb, 0});
  CHECK(m.at(0, 1) == PathCell{PathKind::nvlink, 12});
  CHECK(m.cpu_affinity[3] == "16-31");
  CHECK(m.numa_affinity[2] == "1");
  CHECK(has_note(m, "escape codes"));
  const TopoSummary s = summary_of(m);
  CHECK(s.fabric == IntraFabric::nvswitch);
  CHECK(s.nvlinks_per_gpu == 12);
  CHECK(s.rails == 2);
  CHECK(s.other_nics == std::vector<int>{6});
  CHECK(s.far_gpus == std::vector<int>{3});
  CHECK(s.nearest_nics[1] == std::vector<int>{4});
}

TEST_CASE("the imported graph routes over the switch and to the near NIC", "[topo]") {
  const TopoMatrix m = parse_topo(kFour, "t.txt");
  const Topology t = topology_of(m, {25e9, 31e9, 25e9});
  CHECK(t.gpus() == 4);
  CHECK(parts(t).size() == 1);
  REQUIRE(t.route(0, 3).size() == 2);
  CHECK(t.links()[t.route(0, 3)[0]].bytes_per_second == 12 * 25e9);
  CHECK(t.links()[t.route(0, 3)[0]].kind == LinkKind::nvlink);
}

TEST_CASE("old drivers, pairs without a switch, no NUMA column", "[topo]") {
  const TopoMatrix m = parse_topo(
      "        GPU0    GPU1    GPU2    GPU3    mlx5_0  mlx5_1  CPU Affinity\n"
      "GPU0     X      NV3     SYS     SYS     NODE    SYS     0-63\n"
      "GPU1    NV3      X      SYS     SYS     NODE    SYS     0-63\n"
      "GPU2    SYS     SYS      X      NV3     SYS     NODE    64-127\n"
      "GPU3    SYS     SYS     NV3      X      SYS     NODE    64-127\n"
      "mlx5_0  NODE    NODE    SYS     SYS      X      SYS\n"
      "mlx5_1  SYS     SYS     NODE    NODE    SYS      X \n",
      "t.txt");
  const TopoSummary s = summary_of(m);
  CHECK(s.fabric == IntraFabric::nvlink_mesh);
  CHECK(s.nvlink_domain == 2);
  CHECK(s.nvlinks_per_pair == 3);
  CHECK(s.rails == 2);
  CHECK(has_note(m, "driver's names"));
  CHECK(has_note(m, "no NUMA affinity"));
  const Topology t = topology_of(m);
  CHECK(t.route(0, 1).size() == 1);
  CHECK(t.route(0, 2).size() == 5);  // switch, host, host, switch, GPU: two sockets
  const Node node = node_of(m, load_gpu("v100-sxm-32gb"), 12.5e9);
  CHECK(node.gpus == 4);
  CHECK(node.nvlink_domain == 2);
  CHECK(node.nics.value == 2);
  CHECK(node.pair_bytes_per_second.value == 75e9);
}

TEST_CASE("without a header the columns are named by their order, missing NIC rows filled by symmetry", "[topo]") {
  const TopoMatrix m = parse_topo(
      "GPU0 X NV18 PXB SYS 0-31 0 N/A\n"
      "GPU1 NV18 X SYS PXB 32-63 1 N/A\n",
      "t.txt");
  CHECK(m.devices == std::vector<std::string>{"GPU0", "GPU1", "NIC0", "NIC1"});
  CHECK(m.at(2, 0).kind == PathKind::pxb);
  CHECK(m.at(3, 0).kind == PathKind::sys);
  CHECK(has_note(m, "no header row"));
  CHECK(has_note(m, "filled by symmetry"));
}

TEST_CASE("cells that have grown together are taken apart", "[topo]") {
  const TopoMatrix m = parse_topo(
      "GPU0 GPU1 NIC0 NIC1 CPU Affinity\n"
      "GPU0 X PHB PIXNODE 0-7\n"
      "GPU1 PHB X NODEPIX 0-7\n"
      "NIC0 PIX NODE X NODE\n"
      "NIC1 NODE PIX NODE X\n",
      "t.txt");
  CHECK(m.at(0, 2).kind == PathKind::pix);
  CHECK(m.at(0, 3).kind == PathKind::node);
  CHECK(has_note(m, "without a blank"));
  CHECK(summary_of(m).fabric == IntraFabric::pcie);
}

TEST_CASE("what is no matrix, or contradicts itself, is refused", "[topo]") {
  CHECK(error_of("") == "t.txt: no matrix of nvidia-smi topo -m: no row begins with a GPU and its cells");
  CHECK(error_of("hello\nGPU0 is hot\n").find("no matrix") != std::string::npos);
  CHECK(error_of("GPU0 GPU1\nGPU0 X NV2\n") == "t.txt: no row for GPU1");
  CHECK(error_of("GPU0 GPU1\nGPU0 X NV2\nGPU1 NV2\n") == "t.txt: line 3: row GPU1 has 1 cells, expected 2");
  CHECK(error_of("GPU0 GPU1\nGPU0 X NV2\nGPU1 NV3 X\n") == "t.txt: row GPU1 says NV3 to GPU0, row GPU0 says NV2 back");
  CHECK(error_of("GPU0 GPU1\nGPU0 X NV2\nGPU0 X NV2\n") == "t.txt: line 3: row GPU0 stands twice");
  CHECK(error_of("GPU0 GPU1\nGPU0 X NV2\nGPU2 NV2 X\n") == "t.txt: line 3: row GPU2 has no column");
  CHECK(error_of("GPU0 GPU1\nGPU0 SYS NV2\nGPU1 NV2 X\n") == "t.txt: the cell of GPU0 with itself is SYS, not X");
  CHECK(error_of("GPU0 GPU1\nGPU0 X X\nGPU1 X X\n") == "t.txt: GPU1 and GPU0 are marked as one device");
  CHECK(error_of("NIC0 NIC1\nNIC0 X PIX\nNIC1 PIX X\n") == "t.txt: the first column is no GPU: NIC0");
  CHECK_THROWS_AS(read_topo("/no/such/file"), InputError);
  const TopoMatrix four = parse_topo(kFour, "t.txt");
  CHECK(node_of(four, load_gpu("a100-sxm-80gb"), 25e9).nvlink_domain == 4);
  CHECK_THROWS_WITH(node_of(four, load_gpu("h100-sxm"), 25e9),
                    "the matrix shows 12 NVLinks a GPU (300 GB/s), h100-sxm has 450 GB/s");
  CHECK_THROWS_WITH(node_of(four, load_gpu("mi300x"), 25e9), "the matrix shows 12 NVLinks a GPU, mi300x has none");
}

TEST_CASE("published matrices are read as their machines are", "[topo]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    WARN("skipped: SHARDPLAN_FACTS is unset");
    return;
  }
  const auto sw = IntraFabric::nvswitch;
  const std::vector<Expected> machines = {
      {"01_2gpu_nvlink_nv2.txt", 2, 0, 2, 2, 0, 0, IntraFabric::nvlink_mesh, "no NUMA affinity"},
      {"03_8xA100_nv12_spaces.txt", 8, 0, 12, 8, 0, 0, sw, "no NIC columns"},
      {"04_8xH100_nv18_spaces.txt", 8, 0, 18, 8, 0, 0, sw, "no NIC columns"},
      {"05_8xA800_nv8_4nic.txt", 8, 4, 8, 8, 4, 0, sw, ""},
      {"07_dgx_a100_12mlx5.txt", 8, 12, 12, 8, 8, 0, sw, "driver's names"},
      {"08_8xA100_10nic_nps4.txt", 8, 10, 12, 8, 8, 0, sw, ""},
      {"10_8xH100_6nic_4rails_pix_sys.txt", 8, 6, 18, 8, 4, 4, sw, ""},
      {"11_8xB300_9nic_ansi.txt", 8, 9, 18, 8, 8, 0, sw, "escape codes"},
      {"13_8xH100_12nic_2socket_pxb.txt", 8, 12, 18, 8, 8, 0, sw, ""},
      {"14_8xH100_12nic_pairs_pxb_noheader.txt", 8, 12, 18, 8, 8, 0, sw, "no header row"},
      {"15_8xH100_vm_no_nic.txt", 8, 0, 18, 8, 0, 0, sw, "no NIC columns"},
      {"17_4xV100_power_nv3_pairs.txt", 4, 4, 3, 2, 4, 0, IntraFabric::nvlink_mesh, "no NUMA affinity"},
  };
  for (const Expected& e : machines) {
    INFO(e.file);
    const TopoMatrix m = read_topo(std::string(facts) + "/logs/nvidia-smi-topo/" + e.file);
    const TopoSummary s = summary_of(m);
    CHECK(m.gpus == e.gpus);
    CHECK(m.nics() == e.nics);
    CHECK(s.fabric == e.fabric);
    CHECK(s.nvlinks_per_gpu == e.nvlinks);
    CHECK(s.nvlink_domain == e.domain);
    CHECK(s.rails == e.rails);
    CHECK(static_cast<int>(s.far_gpus.size()) == e.far);
    CHECK(has_note(m, e.note) == (*e.note != 0 || !m.notes.empty()));
    CHECK_FALSE(topo_text(m).empty());
    const Topology t = topology_of(m);
    CHECK(t.gpus() == e.gpus);
    CHECK(parts(t).size() == 1);
  }
}
