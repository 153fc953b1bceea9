#pragma once
// Max-min fair sharing of links by flows, and the time until every flow has sent its bytes. Plain arrays: this file
// knows neither GPU nor network.
//
// The simple story. Rates are max-min fair: no flow can get more without taking from one that has no more than it. They
// are found by progressive filling: the link with the smallest fair share (capacity left / flows left) fixes the rate
// of its flows, which is taken off their other links; repeat. Rates hold until a flow ends; then they are found anew.
//   dS_f/dt = x_f,  sum over flows f on link l of x_f <= c_l,  f ends when S_f = s_f
//   S bytes sent, s bytes to send, x bytes/s, c capacity in bytes/s.
//
// What the simple story omits. With a tolerance e > 0 rates are not found anew at every end: a step that begins at t
// lasts until (1 + e) times the first end after t; flows that end within it end at their own time, and what they leave
// free on a link goes to that link's capacity in the next step, which lasts e t.
//   Proved, for any e: every flow sends exactly its bytes; in [0, t] no link carries more than c t, so nothing ends
//   before the bottleneck bound (bytes over capacity of its links) and an answer at x times the bound is at most x
//   times late; capacity that an ended flow leaves waits for at most e t and is not lost while the next step can use
//   it; traffic whose flows all end together (equal all-to-all) is exact; at most 2 + ln(end / first end) / ln(1 + e)
//   steps. At e = 0 the answer is exact but for rounding (a flow has ended when 1e-12 of its bytes are left). Not
//   proved: a bound of the error by e for any traffic (max-min sharing is not monotone in its input). Measured, skewed
//   all-to-all of hosts with 1.0-1.5 MB a flow and 50 GB/s up and down (sim_max_min_bench.cpp):
//     256 hosts, e = 1e-3: 243 steps, end 0.04 % late of exact (65,280 steps);
//     1,024 hosts, e = 1e-2: 25 steps, end 0.4 % late of the bound, which an exact end cannot go below.
//   On random small networks the end stays within 3 e of exact (sim_max_min_test.cpp).
// Flows over the same links always have the same rate and are one class, which costs as much as one flow.
// Memory: a flow over two links takes 24 bytes in the caller's FlowSet and 76 while it is solved (32 of state, 16 in
// the lists of its links, 20 to name its class, 8 of result); each link beyond the second takes 4 + 4 bytes more.
#include <cstdint>
#include <vector>

namespace shardplan {

/// Flow f uses link[first[f]] .. link[first[f + 1] - 1], each once. A flow without links ends at once.
struct FlowSet {
  std::vector<double> capacity;        // by link, bytes/s, > 0
  std::vector<std::int64_t> first{0};  // flows + 1
  std::vector<std::int32_t> link;
  std::vector<double> bytes;  // by flow, >= 0

  std::int64_t flows() const { return static_cast<std::int64_t>(bytes.size()); }
  void add(const std::vector<std::int32_t>& links, double flow_bytes);
};

/// Rates in bytes/s while all flows are there; infinite for flows without links. InputError("flows", ...) where a link
/// that is used has no capacity, or a link's index is out of range.
std::vector<double> max_min_rates(const FlowSet&);

struct FlowOptions {
  double tolerance = 0;      // e above; 0 <= e < 1
  bool find_classes = true;  // look for flows over the same links; without it every flow is a class of its own
};

struct FlowTimes {
  double end = 0;              // seconds, the last flow's finish
  std::vector<double> finish;  // by flow, seconds
  std::int64_t steps = 0;      // times that rates were found
  std::int64_t classes = 0;    // different sets of links among flows with bytes
};

/// All flows start at 0.
FlowTimes complete_flows(const FlowSet&, const FlowOptions& = {});

/// Bytes over capacity of the busiest link: no sharing ends earlier. `link` = that link, -1 where nothing is sent.
struct BusiestLink {
  double seconds = 0;
  std::int32_t link = -1;
};
BusiestLink busiest_link(const FlowSet&);

}  // namespace shardplan
