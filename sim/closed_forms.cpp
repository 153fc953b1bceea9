// Sources: GPipe and 1F1B as in Narayanan et al. 2021 (arXiv 2104.04473, section 2.2), with the makespan instead of the
// bubble; ZB-H1, ZB-H2, ZB-V: Qi et al. 2023 (arXiv 2401.10241, Table 2); DualPipe: its README's
// (p/2-1)(F&B + B_full - 3W), which is exact only at F = B: the middle rank idles (p/2-1)(FB + F - 2W); Chimera:
// arXiv 2107.06925. Latency terms are ours: a round trip is paid every p micro-batches by 1F1B (only p - r are in
// flight), once by GPipe and by interleaved schedules of at least two groups. Each row is tested against the replay.
// Letters in the texts: p ranks, m micro-batches, v chunks a rank, F forward, I input gradient (the Zero Bubble papers'
// B), W weight gradient, FB an overlapped pair, c a message.
#include "sim/closed_forms.hpp"

#include <algorithm>
#include <array>

namespace shardplan {
namespace {

struct Terms {
  double p, m, v, f, b, w, fb, c;
  double whole() const { return f + b + w; }
};

using Form = std::optional<ClosedForm>;
using Metric = ClosedFormMetric;

Form gpipe(const ScheduleQuestion&, const Terms& t) {
  return ClosedForm{"(m+p-1)(F+I+W) + 2(p-1)c", "always", Metric::makespan,
                    (t.m + t.p - 1) * t.whole() + 2 * (t.p - 1) * t.c};
}

Form one_f_one_b(const ScheduleQuestion& q, const Terms& t) {
  const double even = (t.m + t.p - 1) * t.whole();
  if (t.c == 0 || q.ranks == 1) return ClosedForm{"(m+p-1)(F+I+W)", "c = 0", Metric::makespan, even};
  if (q.microbatches % q.ranks != 0) return std::nullopt;
  return ClosedForm{"(m+p-1)(F+I+W) + (2(p-1)(m/p+1) - 2)c", "p divides m", Metric::makespan,
                    even + t.c * (2 * (t.p - 1) * (t.m / t.p + 1) - 2)};
}

Form interleaved(const ScheduleQuestion& q, const Terms& t) {
  const int p = q.ranks, m = q.microbatches, group = q.group > 0 ? q.group : p;
  const int rest = m % group;
  const double even = (t.m * t.v + t.p - 1) * t.whole();
  if (t.c == 0 && group >= p && m >= p && (rest == 0 || rest >= p)) {
    return ClosedForm{"(mv+p-1)(F+I+W)", "c = 0; groups of at least p micro-batches, the last too", Metric::makespan,
                      even};
  }
  if (t.c > 0 && !q.short_warmup && p > 1 && q.chunks > 1 && group == p && rest == 0 && m >= 2 * p &&
      t.c <= std::min(t.f, t.b + t.w)) {
    return ClosedForm{"(mv+p-1)(F+I+W) + 2(pv-1)c", "p divides m, m >= 2p, v >= 2, groups of p, c <= min(F, I+W)",
                      Metric::makespan, even + 2 * t.c * (t.p * t.v - 1)};
  }
  return std::nullopt;
}

Form looped_bfs(const ScheduleQuestion& q, const Terms& t) {
  if (t.c > 0 || (q.microbatches < q.ranks && q.chunks > 1)) return std::nullopt;
  return ClosedForm{"(mv+p-1)(F+I+W)", "c = 0; m >= p or v = 1", Metric::makespan, (t.m * t.v + t.p - 1) * t.whole()};
}

Form zb_h1(const ScheduleQuestion& q, const Terms& t) {
  if (t.c > 0) return std::nullopt;
  if (q.microbatches <= q.ranks && t.w <= std::min(t.f, t.b)) {
    return ClosedForm{"(m+p-1)(F+I) + W", "c = 0; W <= min(F, I), m <= p", Metric::makespan,
                      (t.m + t.p - 1) * (t.f + t.b) + t.w};
  }
  if (t.w > std::min(t.f, t.b)) return std::nullopt;
  return ClosedForm{"m(F+I+W) + (p-1)(F+I-W)", "c = 0; W <= min(F, I), m >= p", Metric::makespan,
                    t.m * t.whole() + (t.p - 1) * (t.f + t.b - t.w)};
}

Form zb_h2(const ScheduleQuestion& q, const Terms& t) {
  if (t.c > 0 || t.w > std::min(t.f, t.b) || q.microbatches < 2 * q.ranks - 1) return std::nullopt;
  return ClosedForm{"m(F+I+W) + (p-1)(F+I-2W)",
                    "c = 0; W <= min(F, I), m >= 2p-1; of a rank's window, not of the makespan",
                    Metric::max_stage_window, t.m * t.whole() + (t.p - 1) * (t.f + t.b - 2 * t.w)};
}

Form interleaved_zb(const ScheduleQuestion& q, const Terms& t) {
  if (t.c > 0 || t.f != t.b || t.b != t.w || q.microbatches % q.ranks != 0 || q.group > 0) return std::nullopt;
  return ClosedForm{"mv(F+I+W) + (p-1)(F+I-W)", "c = 0; F = I = W, p divides m", Metric::makespan,
                    t.m * t.v * t.whole() + (t.p - 1) * t.f};
}

Form zb_v(const ScheduleQuestion& q, const Terms& t) {
  if (t.c > 0 || t.f != t.b || t.b != t.w || q.microbatches < 2 * q.ranks - 1) return std::nullopt;
  return ClosedForm{"2m(F+I+W)", "c = 0; F = I = W, m >= 2p-1; of a rank's window, not of the makespan",
                    Metric::max_stage_window, 2 * t.m * t.whole()};
}

bool dual_holds(const Terms& t) {
  const bool regime = (t.w <= t.b && t.b <= t.f) || (t.f == t.b && t.b >= t.w);
  return t.c == 0 && regime && t.fb >= std::max(t.f, 2 * t.b) && t.fb <= t.whole();
}

Form dualpipe(const ScheduleQuestion&, const Terms& t) {
  if (!dual_holds(t)) return std::nullopt;
  return ClosedForm{"m(F+I+W) - (m-p-1)(F+I+W-FB) + (p/2-1)(FB+F-2W)", "c = 0; W <= I <= F, max(F, 2I) <= FB <= F+I+W",
                    Metric::makespan,
                    t.m * t.whole() - (t.m - t.p - 1) * (t.whole() - t.fb) + (t.p / 2 - 1) * (t.fb + t.f - 2 * t.w)};
}

Form dualpipe_v(const ScheduleQuestion&, const Terms& t) {
  if (!dual_holds(t)) return std::nullopt;
  return ClosedForm{
      "2m(F+I+W) - (2m-2p-1)(F+I+W-FB) + (p-1)(FB+F-2W)", "c = 0; W <= I <= F, max(F, 2I) <= FB <= F+I+W",
      Metric::makespan,
      2 * t.m * t.whole() - (2 * t.m - 2 * t.p - 1) * (t.whole() - t.fb) + (t.p - 1) * (t.fb + t.f - 2 * t.w)};
}

Form chimera(const ScheduleQuestion& q, const Terms& t) {
  if (t.c > 0 || t.f != t.b + t.w || q.microbatches % q.ranks != 0) return std::nullopt;
  return ClosedForm{"(2m+p-2)F", "c = 0; F = I+W, p divides m", Metric::makespan, (2 * t.m + t.p - 2) * t.f};
}

struct Row {
  std::string_view schedule;
  Form (*form)(const ScheduleQuestion&, const Terms&);
};

constexpr std::array kRows = {
    Row{"gpipe", gpipe},
    Row{"1f1b", one_f_one_b},
    Row{"interleaved-1f1b", interleaved},
    Row{"zb-h1", zb_h1},
    Row{"looped-bfs", looped_bfs},
    Row{"interleaved-zb", interleaved_zb},
    Row{"zb-h2", zb_h2},
    Row{"zb-v", zb_v},
    Row{"dualpipe", dualpipe},
    Row{"dualpipe-v", dualpipe_v},
    Row{"chimera", chimera},
};

}  // namespace

std::optional<ClosedForm> closed_form(std::string_view schedule, const ScheduleQuestion& q, double overlapped) {
  if (q.overlap_pairs) return std::nullopt;
  Terms t{};
  t.p = q.ranks;
  t.m = q.microbatches;
  t.v = q.chunks;
  t.f = q.forward;
  t.b = q.input_grad;
  t.w = q.weight_grad;
  t.fb = overlapped < 0 ? t.whole() : overlapped;
  t.c = q.ranks > 1 ? q.p2p : 0;
  for (const Row& row : kRows) {
    if (row.schedule == schedule) return row.form(q, t);
  }
  return std::nullopt;
}

}  // namespace shardplan
