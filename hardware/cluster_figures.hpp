#pragma once
// The figures of a GPU, a node and a network as tables: one row is the file's member, its unit and where it lives in
// the struct. Reading, printing and the search for assumed figures all walk these rows.
#include <array>
#include <span>
#include <string_view>

#include "hardware/cluster.hpp"

namespace shardplan {

enum class FigureUnit { bytes, mebibytes, bytes_per_second, seconds, watts, usd_per_hour, count, ratio };

/// What a figure decides: rates and capacities enter predictions, the rest only reports (power, price) or only the
/// steps that ask for it, which say so (host memory).
enum class FigureUse { prediction, report };

template <class Owner>
struct FigureRow {
  std::string_view key;       // member of the file
  std::string_view json_key;  // key of `cluster show --format json`, SI units
  Sourced Owner::* member;
  FigureUnit unit;
  FigureUse use;
  bool required;
};

inline constexpr std::array<FigureRow<Gpu>, 9> kGpuFigures{{
    {"memory", "memory_bytes", &Gpu::hbm_bytes, FigureUnit::bytes, FigureUse::prediction, true},
    {"reported_memory", "reported_memory_mib", &Gpu::hbm_mib, FigureUnit::mebibytes, FigureUse::prediction, false},
    {"memory_bandwidth", "memory_bytes_per_s", &Gpu::hbm_bytes_per_second, FigureUnit::bytes_per_second,
     FigureUse::prediction, true},
    {"l2", "l2_bytes", &Gpu::l2_bytes, FigureUnit::bytes, FigureUse::prediction, false},
    {"sms", "sms", &Gpu::sms, FigureUnit::count, FigureUse::prediction, false},
    {"tdp", "tdp_watts", &Gpu::tdp_watts, FigureUnit::watts, FigureUse::report, false},
    {"nvlink_bandwidth", "nvlink_bytes_per_s", &Gpu::nvlink_bytes_per_second, FigureUnit::bytes_per_second,
     FigureUse::prediction, false},
    {"pair_bandwidth", "pair_bytes_per_s", &Gpu::pair_bytes_per_second, FigureUnit::bytes_per_second,
     FigureUse::prediction, false},
    {"usd_per_hour", "usd_per_hour", &Gpu::usd_per_hour, FigureUnit::usd_per_hour, FigureUse::report, false},
}};

inline constexpr std::array<FigureRow<Node>, 6> kNodeFigures{{
    {"nvswitches", "nvswitches", &Node::nvswitches, FigureUnit::count, FigureUse::report, false},
    {"pair_bandwidth", "pair_bytes_per_s", &Node::pair_bytes_per_second, FigureUnit::bytes_per_second,
     FigureUse::prediction, false},
    {"nics", "nics", &Node::nics, FigureUnit::count, FigureUse::prediction, true},
    {"nic_bandwidth", "nic_bytes_per_s", &Node::nic_bytes_per_second, FigureUnit::bytes_per_second,
     FigureUse::prediction, true},
    {"pcie_bandwidth", "pcie_bytes_per_s", &Node::pcie_bytes_per_second, FigureUnit::bytes_per_second,
     FigureUse::prediction, false},
    {"host_memory_bandwidth", "host_memory_bytes_per_s", &Node::host_memory_bytes_per_second,
     FigureUnit::bytes_per_second, FigureUse::report, false},
}};

inline constexpr std::array<FigureRow<Network>, 3> kNetworkFigures{{
    {"hop_latency", "hop_s", &Network::hop_seconds, FigureUnit::seconds, FigureUse::prediction, true},
    {"oversubscription", "oversubscription", &Network::oversubscription, FigureUnit::ratio, FigureUse::prediction,
     false},
    {"pod_oversubscription", "pod_oversubscription", &Network::pod_oversubscription, FigureUnit::ratio,
     FigureUse::prediction, false},
}};

}  // namespace shardplan
