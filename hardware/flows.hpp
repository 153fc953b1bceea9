#pragma once
// Traffic among the ranks of a group, and its seconds on the wires: by the busiest link (bound) or by max-min fair
// flows on the topology (flows). Bandwidth only: no latency, no kernel; the caller adds them.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/collectives.hpp"
#include "hardware/topology.hpp"
#include "sim/max_min.hpp"

namespace shardplan {

/// bytes[i * ranks + j] = bytes from the group's rank i to its rank j. What a rank keeps (i = j) crosses no wire.
struct TrafficMatrix {
  std::int64_t ranks = 0;
  std::vector<double> bytes;

  explicit TrafficMatrix(std::int64_t n = 0) : ranks(n), bytes(static_cast<std::size_t>(n * n), 0.0) {}
  double& at(std::int64_t from, std::int64_t to) { return bytes[static_cast<std::size_t>(from * ranks + to)]; }
  double at(std::int64_t from, std::int64_t to) const { return bytes[static_cast<std::size_t>(from * ranks + to)]; }
};

/// The text that nccl-tests' alltoallv_perf reads (NCCL_TESTS_ALLTOALLV_MATRIX_FILE): one row a sender, bytes separated
/// by blanks, as many columns as rows. InputError with the line where it is not so; at most 8,192 ranks.
TrafficMatrix parse_traffic_matrix(std::string_view text, const std::string& file);
TrafficMatrix read_traffic_matrix(const std::string& path);
/// Whole bytes, rounded.
std::string traffic_matrix_text(const TrafficMatrix&);

/// What the wires reach of their line rate; 1 = all of it.
struct WireRates {
  double nvlink = 1, pcie = 1, network = 1;
};

struct TrafficTime {
  double seconds = 0;
  double bound_seconds = 0;   // bytes over capacity of the busiest link: no schedule is faster
  std::int32_t busiest = -1;  // that link, -1 = nothing is sent
  bool crosses = false;       // whether any byte uses the network
  std::int64_t flows = 0, steps = 0;
};

/// The group's rank i is rank placement[i] of the topology.
TrafficTime bound_time(const Topology&, const TrafficMatrix&, const std::vector<std::int64_t>& placement,
                       const WireRates& = {});
TrafficTime flows_time(const Topology&, const TrafficMatrix&, const std::vector<std::int64_t>& placement,
                       const WireRates& = {}, double tolerance = 1e-3);

/// The traffic as flows over the links of the topology that can be bottlenecks (links in series once, links whose
/// feeders together have no more than their capacity not at all), in the topology's numbering.
FlowSet flow_set(const Topology&, const TrafficMatrix&, const std::vector<std::int64_t>& placement,
                 const WireRates& = {});

/// Every rank sends bytes / ranks to every rank, as nccl-tests counts an all-to-all (own part included).
TrafficMatrix all_to_all_traffic(std::int64_t ranks, double bytes);

/// The shape of a group that sits on these global ranks: the fullest domain's members, each with its share of its
/// node's NICs.
GroupShape shape_of_ranks(const Cluster&, const std::vector<std::int64_t>& ranks);

/// What a collective's ring sends from neighbour to neighbour, bytes as nccl-tests counts them: all-reduce 2(n-1)/n S
/// over every edge of the ring, all-gather and reduce-scatter (n-1)/n S, broadcast S (but not back to the root). The
/// ring visits domain after domain. There are as many rings as the smallest domain has members, each entering a domain
/// at another member and leaving at the one before it, so that every member's NIC carries its share (NCCL's channels).
/// all_to_all and send_recv (rank 0 to the last rank) as they are.
TrafficMatrix collective_traffic(const Cluster&, Collective, double bytes, const std::vector<std::int64_t>& placement);

/// Seconds of a collective at `bound` or `flows`: the group and its siblings, which the same domains hold, all at once.
/// In a domain of g GPUs groups with k members a domain have g / k siblings; a group takes every (g / k)-th GPU, or,
/// with `neighbours`, k GPUs in a row.
TrafficTime collective_time(const Cluster&, Fidelity, Collective, double bytes, const GroupShape&,
                            const WireRates& = {}, bool neighbours = true);

}  // namespace shardplan
