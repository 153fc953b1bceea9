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
// and the window of stage s at least idle + m (F + B + W). Memory times time bounds the window, too: each micro-batch
// holds M_B for at least F + round trip + B and then M_W for W, and no more than the limit is ever held:
//   window >= m (M_B (F + round trip + B) + M_W W) / limit.
// And the last micro-batch: its forward may start only when memory has room, that is when i input gradients and w
// weight gradients have ended with M_B (m - i) + M_W (i - w) <= limit (so i >= m - k); then it goes round and home:
//   makespan >= arrival + max(F + round trip, k F) + (m - k) F + min over i of (i B + w(i) W) + round trip + B + last
// with last at least W. Where k >= m memory never stops it: arrival + m F + round trip + B + last. Of the window: the
// same without arrival and with last = W. All other interplay of stages is left out.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/zb_strings.hpp"

namespace shardplan {
namespace {

/// How many items of `bytes` fit in `limit`, 1 .. most.
double count_within(double bytes, double limit, int most) {
  if (bytes <= 0 || limit / bytes >= most) return most;
  return std::max(1.0, std::floor(limit / bytes * (1 + 1e-9)));
}

/// Time of the input and weight gradients that must have ended before the last forward of stage s may start.
double before_last_forward(const ZbQuestion& q, const ZbTimes& t, int s, double in_flight) {
  const int m = q.microbatches;
  double least = std::numeric_limits<double>::infinity();
  for (int i = std::max(0, m - static_cast<int>(in_flight)); i < m; ++i) {
    const double room = q.limit[s] * (1 + 1e-9) - q.chunk_bytes[s] * (m - i);  // for owed weight gradients
    if (room < 0) continue;
    const double owed = q.weight_grad_bytes[s] > 0 ? std::floor(room / q.weight_grad_bytes[s]) : i;
    least = std::min(least, i * t.b[s] + std::max(0.0, i - owed) * t.w[s]);
  }
  return least;
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
    const double held =
        q.limit.empty()
            ? 0
            : m * (q.chunk_bytes[s] * (t.f[s] + round_trip + t.b[s]) + q.weight_grad_bytes[s] * t.w[s]) / q.limit[s];
    const double last = s == 0 ? 0 : home + t.w[0];
    // The last micro-batch: from the stage's first start to the end of its input gradient there.
    double last_way = round_trip + t.b[s] + m * t.f[s];
    if (in_flight < m) {
      last_way = round_trip + t.b[s] + std::max(t.f[s] + round_trip, in_flight * t.f[s]) + (m - in_flight) * t.f[s] +
                 before_last_forward(q, t, s, in_flight);
    }
    if (q.objective == ZbObjective::makespan) {
      bound = std::max({bound, arrival + work + (m - owed) * t.w[s] + std::max(owed * t.w[s], last), arrival + held,
                        arrival + last_way + std::max(t.w[s], last)});
    } else {
      bound = std::max({bound, work + m * t.w[s], held, last_way + t.w[s]});
    }
    if (s + 1 < p) {
      arrival += t.f[s] + t.hop_down[s];
      home += t.hop_up[s + 1] + t.b[s];
    }
  }
  return bound;
}

}  // namespace shardplan
