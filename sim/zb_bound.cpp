// A lower bound on every order of one chunk a rank within the memory limit. For each stage s, with
//   arrival  = sum over stages before of (F + hop):           its first pass starts no earlier;
//   idle     = what it must wait before its first input gradient: that needs a round trip of
//              sum over stages after of (hop + F + B + hop), in which it can only run forwards, at most k = limit / M_B
//              in flight, so the wait is at least round trip - (k - 1) F;
//   last     = after its last input gradient the micro-batch goes home: sum over stages before of (hop + B), then W of
//   the
//              first stage. At that moment at most q = limit / M_W weight gradients are owed; the others ran before.
// the makespan is at least
//   arrival + idle + m (F + B) + (m - q) W + max(q W, last)        (q at most m, at least 1)
// and the window of stage s at least idle + m (F + B + W). Waits later on, and all interplay of stages, are left out.
#include <algorithm>
#include <cmath>

#include "sim/zb_strings.hpp"

namespace shardplan {
namespace {

/// How many items of `bytes` fit in `limit`, 1 .. most.
double count_within(double bytes, double limit, int most) {
  if (bytes <= 0 || limit / bytes >= most) return most;
  return std::max(1.0, std::floor(limit / bytes * (1 + 1e-9)));
}

}  // namespace

double zb_lower_bound(const ZbQuestion& q) {
  const ZbTimes t(q);
  const int p = q.ranks, m = q.microbatches;
  double bound = 0, arrival = 0, home = 0;
  for (int s = 0; s < p; ++s) {
    double round_trip = 0;
    for (int i = s + 1; i < p; ++i) round_trip += t.hop_down[i - 1] + t.f[i] + t.b[i] + t.hop_up[i];
    const double in_flight = q.limit.empty() ? m : count_within(q.chunk_bytes[s], q.limit[s], m);
    const double owed = q.limit.empty() ? m : count_within(q.weight_grad_bytes[s], q.limit[s], m);
    const double idle = std::max(0.0, round_trip - (in_flight - 1) * t.f[s]);
    const double work = idle + m * (t.f[s] + t.b[s]);
    const double last = s == 0 ? 0 : home + t.w[0];
    if (q.objective == ZbObjective::makespan) {
      bound = std::max(bound, arrival + work + (m - owed) * t.w[s] + std::max(owed * t.w[s], last));
    } else {
      bound = std::max(bound, work + m * t.w[s]);
    }
    if (s + 1 < p) {
      arrival += t.f[s] + t.hop_down[s];
      home += t.hop_up[s + 1] + t.b[s];
    }
  }
  return bound;
}

}  // namespace shardplan
