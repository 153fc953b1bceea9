#pragma once
// Seconds of one collective among a group of ranks, with algorithm, protocol, basis and interval.
#include <cstdint>
#include <memory>
#include <string>

#include "base/basis.hpp"
#include "hardware/cluster.hpp"
#include "hardware/kernels.hpp"

namespace shardplan {

struct CollectiveCalibration;
struct NcclSettings;

enum class Collective { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv };
enum class Fidelity { table, bound, flows };

/// Where a group's members sit. ranks = ranks_per_domain * domains (the last domain may be partly filled).
/// ranks_per_domain = members in one NVLink domain; sharing = number of groups of this kind that use the same NICs at
/// once (tp8 with one NIC a GPU: each of the 8 data-parallel groups of a node has one NIC, sharing = 1 per NIC).
struct GroupShape {
  int ranks = 1;
  int ranks_per_domain = 1;
  double nics_per_domain = 1;  // NICs that this group's members in one domain may use at the same time

  bool crosses() const { return ranks > ranks_per_domain; }
};

struct CollectivePrice {
  Price price;
  const char* algorithm = "";  // ring | tree | nvls | nvls-tree | pat | pairwise
  const char* protocol = "";   // ll | ll128 | simple
  double bus_bytes_per_second = 0;
};

/// Prices collectives on one cluster; bytes as nccl-tests counts them (all-reduce: the buffer; all-gather and
/// reduce-scatter: the whole gathered buffer; all-to-all: what one rank sends, its own part included; send-recv: the
/// message). Thread-safe for concurrent const use; memoised.
class NetworkModel {
 public:
  NetworkModel(const Cluster&, Rates, Fidelity);
  /// With a calibration of one's own (see collective_tables.hpp).
  NetworkModel(const Cluster&, Rates, Fidelity, std::shared_ptr<const CollectiveCalibration>);
  ~NetworkModel();
  NetworkModel(NetworkModel&&) noexcept;
  NetworkModel& operator=(NetworkModel&&) noexcept;

  CollectivePrice collective(Collective, double bytes, const GroupShape&, DataType = DataType::bf16) const;
  /// With NCCL told what to use (NCCL_ALGO, NCCL_NVLS_ENABLE).
  CollectivePrice collective(Collective, double bytes, const GroupShape&, DataType, const NcclSettings&) const;
  /// SMs that such a collective holds while it runs (0 = copy engines or none).
  double sms_held(Collective, const GroupShape&) const;
  const Cluster& cluster() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The shape of a group of `ranks` with `ranks_per_node` members on each board (0 = all GPUs of the board): members of
/// one NVLink domain together, each with its share of the node's NICs.
GroupShape group_shape(const Cluster&, int ranks, int ranks_per_node = 0);

}  // namespace shardplan
