#include <catch2/catch.hpp>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "hardware/cluster.hpp"
#include "hardware/cluster_figures.hpp"

using namespace shardplan;

namespace {

std::vector<std::string> all_names() {
  std::vector<std::string> names = gpu_names();
  for (const std::string& name : cluster_names()) names.push_back(name);
  return names;
}

std::string error_of(const std::string& text) {
  try {
    read_cluster(text, "c.json");
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

std::string load_error(const std::string& name) {
  try {
    load_cluster(name);
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

const std::string kGpu =
    R"("gpu": {"name": "x", "peak": {"bf16": "100 TFLOP/s"}, "memory": "32 GB", "memory_bandwidth": "1 TB/s",
  "nvlink_bandwidth": "100 GB/s"})";
const std::string kNode = R"("node": {"gpus": 4, "fabric": "nvswitch", "nics": 4, "nic_bandwidth": "100 Gbit/s"})";
const std::string kNetwork = R"("network": {"kind": "roce", "hop_latency": "5 us"})";

std::string cluster_text(const std::string& gpu = kGpu, const std::string& node = kNode,
                         const std::string& network = kNetwork) {
  return R"({"name": "mine", )" + gpu + ", " + node + ", " + network + "}";
}

}  // namespace

TEST_CASE("every GPU of the manual is a cluster", "[cluster]") {
  for (const char* name : {"a100-sxm-80gb", "a100-sxm-40gb", "h100-sxm",      "h200-sxm",
                           "h800-sxm",      "h20-sxm",       "b200-sxm",      "b300-sxm",
                           "gb200",         "gb300",         "mi300x",        "mi325x",
                           "mi355x",        "v100-sxm-32gb", "a800-sxm-80gb", "h100-hbm2e-96gb-500w",
                           "host-cpu",      "dgx-h100",      "p5-efa",        "llama3-roce",
                           "deepseek-h800"}) {
    INFO(name);
    CHECK(load_cluster(name).name == name);
  }
}

TEST_CASE("every built-in file keeps its name and gives every figure a source", "[cluster]") {
  for (const std::string& name : all_names()) {
    INFO(name);
    const Cluster c = load_cluster(name);
    CHECK(c.name == name);
    CHECK_FALSE(c.description.empty());
    CHECK_FALSE(c.node.source.empty());
    CHECK_FALSE(c.network.source.empty());
    const auto check = [&](const auto& rows, const auto& owner) {
      for (const auto& row : rows) {
        INFO(row.key);
        const Sourced& figure = owner.*row.member;
        if (figure.value == 0 && figure.source.empty()) continue;
        CHECK(figure.source.size() > 5);
        CHECK(figure.source.find("without a source") == std::string::npos);
        if (figure.source.find("FROM MEMORY") != std::string::npos) CHECK(figure.assumed);
      }
    };
    check(kGpuFigures, c.gpu);
    check(kNodeFigures, c.node);
    check(kNetworkFigures, c.network);
    for (const Sourced& peak : c.gpu.peak_flops) CHECK((peak.value == 0) == peak.source.empty());
  }
}

TEST_CASE("peaks are dense", "[cluster]") {
  CHECK(load_gpu("h100-sxm").peak(DataType::bf16) == 989e12);
  CHECK(load_gpu("h100-sxm").peak(DataType::fp8) == 1979e12);
  CHECK(load_gpu("a100-sxm-80gb").peak(DataType::bf16) == 312e12);
  CHECK(load_gpu("a100-sxm-80gb").peak(DataType::fp8) == 0);
  CHECK(load_gpu("b200-sxm").peak(DataType::nvfp4) == 9000e12);
  CHECK(error_of(cluster_text(
            R"("gpu": {"name": "x", "peak": {"bf16": "989 TFLOP/s", "fp8": "3958 TFLOP/s"}, "memory": "80 GB",
    "memory_bandwidth": "3.35 TB/s", "nvlink_bandwidth": "450 GB/s"})")) ==
        "c.json: /gpu/peak/fp8: more than 2.1 times the 16-bit peak: a peak with sparsity? Give the dense one");
}

TEST_CASE("capacity is the driver's reading, or the label less half a percent", "[cluster]") {
  constexpr double kMiB = 1048576.0, kGiB = 1073741824.0;
  CHECK(load_gpu("a100-sxm-80gb").capacity_bytes(false) == 81920 * kMiB);
  CHECK(load_gpu("h100-sxm").capacity_bytes(false) == 81559 * kMiB);
  CHECK(load_gpu("h200-sxm").capacity_bytes(false) == 143771 * kMiB);
  CHECK(load_gpu("b200-sxm").capacity_bytes(false) == Approx(180 * kGiB * 0.995).epsilon(1e-12));
  CHECK(load_gpu("h100-sxm").capacity_bytes(true) == 80e9);
}

TEST_CASE("the cut parts have the cut NVLink", "[cluster]") {
  CHECK(load_gpu("h100-sxm").nvlink_bytes_per_second.value == 450e9);
  CHECK(load_gpu("h800-sxm").nvlink_bytes_per_second.value == 200e9);
  CHECK(load_gpu("a800-sxm-80gb").nvlink_bytes_per_second.value == 200e9);
  CHECK(load_cluster("mi300x").pair_bytes_per_second() == 64e9);
  CHECK(load_cluster("jean-zay-v100").pair_bytes_per_second() == 50e9);
}

TEST_CASE("calibration tables and siblings are named", "[cluster]") {
  const auto pair = [](const char* name) { return load_gpu(name).calibration + "|" + load_gpu(name).sibling; };
  CHECK(pair("a100-sxm-80gb") == "a100|");
  CHECK(pair("h100-sxm") == "h100|");
  CHECK(pair("h200-sxm") == "h200|h100");
  CHECK(pair("b200-sxm") == "b200|");
  CHECK(pair("h800-sxm") == "|h100");
  CHECK(pair("h20-sxm") == "|h100");
  CHECK(pair("h100-hbm2e-96gb-500w") == "|h100");
  CHECK(pair("a800-sxm-80gb") == "|a100");
  CHECK(pair("gb200") == "|b200");
  CHECK(pair("gb300") == "|b200");
  CHECK(pair("b300-sxm") == "|b200");
}

TEST_CASE("network rate per GPU divides the node's NICs", "[cluster]") {
  CHECK(load_cluster("h100-sxm").network_bytes_per_second_per_gpu() == 50e9);
  CHECK(load_cluster("p4d-efa").network_bytes_per_second_per_gpu() == 6.25e9);
  CHECK(load_cluster("p5-efa").network_bytes_per_second_per_gpu() == 50e9);
  CHECK(load_cluster("gb200-nvl72").network_bytes_per_second_per_gpu() == 50e9);
  CHECK(load_cluster("llama3-roce").network.pod_oversubscription.value == 7);
}

TEST_CASE("assumed figures are named", "[cluster]") {
  CHECK(load_cluster("h100-sxm").assumed_figures().empty());
  CHECK(load_cluster("mi300x").assumed_figures().front() == "/node/nic_bandwidth");
  CHECK_FALSE(load_cluster("h800-sxm").assumed_figures().empty());
  CHECK_FALSE(load_cluster("host-cpu").assumed_figures().empty());
}

TEST_CASE("published names of GPUs are found", "[cluster]") {
  CHECK(gpu_of_alias("h100_sxm") == "h100-sxm");
  CHECK(gpu_of_alias("NVIDIA H100 80GB HBM3") == "h100-sxm");
  CHECK(gpu_of_alias("A100-SXM-80GB") == "a100-sxm-80gb");
  CHECK(gpu_of_alias("a100_sxm") == "a100-sxm-80gb");
  CHECK(gpu_of_alias("l40s").empty());
  CHECK(load_gpu("b200_sxm").name == "b200-sxm");
}

TEST_CASE("an unknown cluster or GPU suggests the nearest name", "[cluster]") {
  CHECK(load_error("h100-sxmm") == "--cluster: unknown cluster \"h100-sxmm\" (did you mean \"h100-sxm\"?)");
  CHECK(load_error("dgx-h10") == "--cluster: unknown cluster \"dgx-h10\" (did you mean \"dgx-h100\"?)");
  CHECK(load_error("no/such.json").find("no/such.json") == 0);
  CHECK_THROWS_AS(load_gpu("banana"), InputError);
  CHECK(load_gpu("dgx-h100").name == "h100-sxm");
}

TEST_CASE("a cluster file may name a GPU or describe one", "[cluster]") {
  const Cluster named = read_cluster(cluster_text(R"("gpu": "h100_sxm")"), "c.json");
  CHECK(named.gpu.peak(DataType::bf16) == 989e12);
  const Cluster own = read_cluster(cluster_text(), "c.json");
  CHECK(own.gpu.peak(DataType::bf16) == 100e12);
  CHECK(own.gpu.pair_bytes_per_second.value == 100e9);
  CHECK(own.node.nvlink_domain == 4);
  CHECK(own.network.hop_seconds.source == "given without a source in c.json");
}

TEST_CASE("malformed cluster files are refused with their place", "[cluster]") {
  CHECK(error_of("[]") == "c.json: /: expected an object, got a list");
  CHECK(error_of("{}") ==
        "c.json: /: missing member \"gpu\": a cluster file has gpu, node and network, a GPU file peak and reference");
  CHECK(error_of(cluster_text(R"("gpu": "h100-sxn")")) ==
        "c.json: /gpu: unknown GPU \"h100-sxn\" (did you mean \"h100-sxm\"?)");
  CHECK(error_of(cluster_text(kGpu, R"("node": {"gpu": 4, "fabric": "nvswitch", "nics": 4, "nic_bandwidth": 1})")) ==
        "c.json: /node/gpu: unknown member (did you mean \"gpus\"?)");
  CHECK(error_of(cluster_text(kGpu, R"("node": {"gpus": 0, "fabric": "nvswitch", "nics": 4, "nic_bandwidth": 1})")) ==
        "c.json: /node/gpus: out of range: 0 is below 1");
  CHECK(error_of(cluster_text(kGpu, R"("node": {"gpus": 4, "fabric": "nvswich", "nics": 4, "nic_bandwidth": 1})"))
            .find("did you mean \"nvswitch\"?") != std::string::npos);
  CHECK(error_of(cluster_text(kGpu, R"("node": {"gpus": 4, "fabric": "nvswitch", "nics": -4, "nic_bandwidth": 1})")) ==
        "c.json: /node/nics: out of range: -4 is below 0");
  CHECK(error_of(cluster_text(kGpu, R"("node": {"gpus": 4, "fabric": "nvswitch", "nics": 4, "nic_bandwidth": "5 GB"})"))
            .find("c.json: /node/nic_bandwidth: expected") == 0);
  CHECK(error_of(cluster_text(
                     kGpu,
                     R"("node": {"gpus": 4, "nvlink_domain": 6, "fabric": "nvswitch", "nics": 4, "nic_bandwidth": 1})"))
            .find("c.json: /node/nvlink_domain: a domain larger than a node") == 0);
  CHECK(error_of(cluster_text(
            kGpu, R"("node": {"gpus": 4, "fabric": "torus", "torus": [2, 3], "nics": 4, "nic_bandwidth": 1})")) ==
        "c.json: /node/torus: the dimensions do not multiply to nvlink_domain");
  CHECK(error_of(cluster_text(kGpu, kNode, R"("network": {"kind": "roce"})")) ==
        "c.json: /network: missing member \"hop_latency\"");
  CHECK(error_of(
            cluster_text(kGpu, kNode, R"("network": {"kind": "roce", "hop_latency": "5 us", "oversubscription": 0})"))
            .find("c.json: /network/oversubscription: ") == 0);
  CHECK(error_of(cluster_text(R"("gpu": {"name": "x", "peak": {"bf17": 1}, "memory": 1, "memory_bandwidth": 1})"))
            .find("c.json: /gpu/peak/bf17: unknown member") == 0);
  CHECK(error_of(cluster_text(R"("gpu": {"name": "x", "peak": {"bf16": 1}, "memory": 1, "memory_bandwidth": 1})")) ==
        "c.json: /: the fabric is nvswitch but the GPU has no nvlink_bandwidth");
  CHECK(
      error_of(cluster_text(
          R"("gpu": {"name": "x", "peak": {"bf16": {"value": 1, "source": ""}}, "memory": 1, "memory_bandwidth": 1})")) ==
      "c.json: /gpu/peak/bf16/source: the source is empty");
}

TEST_CASE("ranks are counted by NVLink domain", "[cluster]") {
  const auto text = [](const char* name, const std::vector<std::int64_t>& ranks) {
    std::string out;
    for (const DomainShare& s : domains_of(load_cluster(name), ranks))
      out += std::to_string(s.domain) + ":" + std::to_string(s.members) + " ";
    return out;
  };
  CHECK(text("h100-sxm", {0, 1, 2, 3, 4, 5, 6, 7}) == "0:8 ");
  CHECK(text("h100-sxm", {0, 8, 16, 24}) == "0:1 1:1 2:1 3:1 ");
  CHECK(text("h100-sxm", {23, 5, 6, 7, 8}) == "0:3 1:1 2:1 ");
  CHECK(text("gb200", {0, 8, 16, 24, 71, 72}) == "0:5 1:1 ");
}
