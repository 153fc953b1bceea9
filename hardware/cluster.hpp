#pragma once
// What a model runs on: a GPU, the node around it, the network between nodes. Every figure keeps its source.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

/// Number formats of matrix operands. fp8: one scale per tensor; fp8_row per row; fp8_block per 128x128 block.
enum class DataType { fp32, tf32, fp16, bf16, fp8, fp8_row, fp8_block, mxfp8, nvfp4, int8 };
inline constexpr std::array<std::string_view, 10> kDataTypeNames = {"fp32",    "tf32",      "fp16",  "bf16",  "fp8",
                                                                    "fp8-row", "fp8-block", "mxfp8", "nvfp4", "int8"};
constexpr std::string_view data_type_name(DataType t) { return kDataTypeNames[static_cast<std::size_t>(t)]; }
constexpr double bytes_of(DataType t) {
  switch (t) {
    case DataType::fp32:
    case DataType::tf32:
      return 4;
    case DataType::fp16:
    case DataType::bf16:
      return 2;
    case DataType::nvfp4:
      return 0.5;
    default:
      return 1;
  }
}

/// A figure and where it comes from; `assumed` = marked FROM MEMORY by its source.
struct Sourced {
  double value = 0;
  std::string source;
  bool assumed = false;
};

struct Gpu {
  std::string name;
  std::string description;
  std::string architecture;  // volta | ampere | hopper | blackwell | cdna3 | cdna4 | cpu
  // Dense peaks in FLOP/s by DataType, 0 = the format is not there. Index with peak().
  std::array<Sourced, kDataTypeNames.size()> peak_flops;
  Sourced hbm_bytes;             // label capacity, bytes
  Sourced hbm_bytes_per_second;  // datasheet
  Sourced hbm_mib;               // what the driver reports, MiB; 0 = unknown (then label less 0.5 %, assumed)
  Sourced l2_bytes;
  Sourced sms;
  Sourced tdp_watts;
  Sourced nvlink_bytes_per_second;  // per direction, per GPU, all links together
  Sourced pair_bytes_per_second;    // per direction between one pair: all of it behind a switch, 1/7 on a mesh of eight
  Sourced usd_per_hour;             // 0 = unknown
  std::string calibration;          // name of its calibration tables, "" = datasheet only
  std::string sibling;              // GPU whose tables are transferred where its own lack a class, "" = none

  double peak(DataType t) const { return peak_flops[static_cast<std::size_t>(t)].value; }
  /// Bytes that `fits` compares with: the driver's reading (unknown: the label's number in GiB less 0.5 %, assumed), or
  /// the label in decimal bytes where rates are `datasheet`.
  double capacity_bytes(bool datasheet) const;
};

/// How the GPUs of one domain reach one another. nvlink_mesh: a link between every pair (NVLink or xGMI); torus: links
/// to the neighbours along each dimension, with wrap-around.
enum class IntraFabric { nvswitch, nvlink_mesh, pcie, shared_memory, torus };
inline constexpr std::array<std::string_view, 5> kIntraFabricNames = {"nvswitch", "nvlink_mesh", "pcie",
                                                                      "shared_memory", "torus"};
constexpr std::string_view fabric_name(IntraFabric f) { return kIntraFabricNames[static_cast<std::size_t>(f)]; }

struct Node {
  int gpus = 8;           // per board (one OS image)
  int nvlink_domain = 8;  // GPUs that reach one another over NVLink (72 on NVL72)
  IntraFabric fabric = IntraFabric::nvswitch;
  std::vector<int> torus;         // torus only: GPUs along each dimension; their product is nvlink_domain
  Sourced nvswitches;             // NVSwitch planes of one domain, 0 = none or unknown
  Sourced pair_bytes_per_second;  // between one pair in this node, where it differs from the GPU's own figure; 0 = the
                                  // GPU's
  Sourced nics;                   // per node
  Sourced nic_bytes_per_second;   // line rate of one NIC, per direction
  Sourced pcie_bytes_per_second;  // GPU to host, per direction
  Sourced host_memory_bytes_per_second;  // of all CPUs of a node together, read and written; 0 = unknown
  std::string source;                    // of gpus, nvlink_domain, fabric and torus
};

/// rails: NIC i of every node of a group goes to the group's leaf switch i. leaf: all NICs of a group's nodes go to one
/// switch (top of rack). flat: one non-blocking core, its inside unknown (clouds).
enum class Wiring { rails, leaf, flat };
inline constexpr std::array<std::string_view, 3> kWiringNames = {"rails", "leaf", "flat"};
constexpr std::string_view wiring_name(Wiring w) { return kWiringNames[static_cast<std::size_t>(w)]; }

struct Network {
  std::string kind;          // infiniband | roce | efa | tcpx | none ...
  Sourced hop_seconds;       // latency per network hop: IB 5 us, EFA v2 25, TCPXO 54, EFA v1 75
  Sourced oversubscription;  // leaf to spine: NIC capacity below a leaf over its capacity upwards; 1 = non-blocking
  Wiring wiring = Wiring::rails;
  int nodes_per_leaf_group = 0;  // nodes whose NICs share a set of leaves; 0 = all of them
  int nodes_per_pod = 0;         // nodes below one set of spines; 0 = all of them
  Sourced pod_oversubscription;  // spine to core
  bool sharp = false;            // in-network reduction
  std::string source;            // of kind, wiring, the groups and sharp
};

struct Cluster {
  std::string name;
  std::string description;
  Gpu gpu;
  Node node;
  Network network;
  /// The assumed figures that a time or a capacity can stand on (prices and power are not asked):
  /// "/gpu/memory_bandwidth". Empty where all have a source.
  std::vector<std::string> assumed_figures() const;

  /// Bytes/s per direction between two GPUs of one domain.
  double pair_bytes_per_second() const {
    return node.pair_bytes_per_second.value > 0 ? node.pair_bytes_per_second.value : gpu.pair_bytes_per_second.value;
  }

  /// NIC line rate that one GPU has to itself, bytes/s per direction.
  double network_bytes_per_second_per_gpu() const {
    return node.gpus > 0 ? node.nics.value * node.nic_bytes_per_second.value / node.gpus : 0;
  }
};

/// A GPU name (its reference node and fabric), a named cluster, or a path to a cluster file or to a GPU file with a
/// `reference`. A path is what holds a '/' or ends in ".json". InputError otherwise, its place `where` or the file's
/// path.
Cluster load_cluster(const std::string& name_or_path, const std::string& where = "--cluster");
/// A GPU name, the name of a cluster (its GPU) or a path to either file.
Gpu load_gpu(const std::string& name_or_path, const std::string& where = "--gpu");
/// A cluster from the text of a file; `file` names it in errors.
Cluster read_cluster(std::string_view text, const std::string& file);
/// Named clusters, sorted; without the GPU names, which are clusters too.
std::vector<std::string> cluster_names();
/// GPUs with a data file, sorted.
std::vector<std::string> gpu_names();
/// The built-in GPU that a published name stands for ("H100-SXM", "h100_sxm", "A100-80"), or nothing.
std::string gpu_of_alias(std::string_view published);

/// A node's worth of ranks starts at a multiple of Node::gpus, an NVLink domain at a multiple of Node::nvlink_domain.
/// How many of a group's global ranks sit in each domain that holds any, domains ascending. Ranks need not be sorted.
struct DomainShare {
  std::int64_t domain = 0;
  int members = 0;
};
std::vector<DomainShare> domains_of(const Cluster&, const std::vector<std::int64_t>& ranks);

}  // namespace shardplan
