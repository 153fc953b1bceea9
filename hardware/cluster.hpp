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
inline constexpr std::array<std::string_view, 10> kDataTypeNames = {"fp32", "tf32", "fp16", "bf16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4", "int8"};
constexpr std::string_view data_type_name(DataType t) { return kDataTypeNames[static_cast<std::size_t>(t)]; }
constexpr double bytes_of(DataType t) {
  switch (t) {
    case DataType::fp32: case DataType::tf32: return 4;
    case DataType::fp16: case DataType::bf16: return 2;
    case DataType::nvfp4: return 0.5;
    default: return 1;
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
  // Dense peaks in FLOP/s by DataType, 0 = the format is not there. Index with peak().
  std::array<Sourced, kDataTypeNames.size()> peak_flops;
  Sourced hbm_bytes;              // label capacity, bytes
  Sourced hbm_bytes_per_second;   // datasheet
  Sourced hbm_mib;                // what the driver reports, MiB; 0 = unknown (then label less 0.5 %, assumed)
  Sourced l2_bytes;
  Sourced sms;
  Sourced tdp_watts;
  Sourced nvlink_bytes_per_second;  // per direction, per GPU
  Sourced usd_per_hour;             // 0 = unknown
  std::string calibration;          // name of its calibration tables, "" = datasheet only
  std::string sibling;              // GPU whose tables are transferred where its own lack a class, "" = none

  double peak(DataType t) const { return peak_flops[static_cast<std::size_t>(t)].value; }
  /// Bytes that `fits` compares with: the driver's reading, or the label where rates are `datasheet`.
  double capacity_bytes(bool datasheet) const;
};

enum class IntraFabric { nvswitch, nvlink_mesh, pcie, shared_memory };

struct Node {
  int gpus = 8;               // per board (one OS image)
  int nvlink_domain = 8;      // GPUs that reach one another over NVLink (72 on NVL72)
  IntraFabric fabric = IntraFabric::nvswitch;
  Sourced nics;               // per node
  Sourced nic_bytes_per_second;  // line rate of one NIC, per direction
  Sourced pcie_bytes_per_second; // GPU to host, per direction
};

struct Network {
  std::string kind;           // infiniband | roce | efa | tcpx | none ...
  Sourced hop_seconds;        // latency per network hop: IB 5 us, EFA v2 25, TCPXO 54, EFA v1 75
  Sourced oversubscription;   // 1 = non-blocking
  bool sharp = false;         // in-network reduction
};

struct Cluster {
  std::string name;
  Gpu gpu;
  Node node;
  Network network;
  bool has_assumed_figures() const;

  /// NIC line rate that one GPU has to itself, bytes/s per direction.
  double network_bytes_per_second_per_gpu() const {
    return node.gpus > 0 ? node.nics.value * node.nic_bytes_per_second.value / node.gpus : 0;
  }
};

/// A GPU name (its reference node and fabric), a named cluster, or a path to a cluster file. InputError otherwise.
Cluster load_cluster(const std::string& name_or_path);
std::vector<std::string> cluster_names();
std::vector<std::string> gpu_names();

}  // namespace shardplan
