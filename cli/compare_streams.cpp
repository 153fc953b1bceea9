#include "cli/compare_streams.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace shardplan {
namespace {

enum Lane { kCompute, kMessages, kCollectives, kExchange };
constexpr std::array<const char*, 4> kLaneNames = {"compute", "pipeline messages", "collectives", "expert exchange"};

Lane lane_of(const TraceOp& op) {
  if (!op.communication) return kCompute;
  if (op.kernel_class == "send_recv") return kMessages;
  return op.kernel_class.starts_with("a2a_") || op.kernel_class == "all_to_all" ? kExchange : kCollectives;
}

/// Lane of each stream: where most of its seconds are.
std::map<int, Lane> lanes_of(const ProfilerTrace& trace) {
  std::map<int, std::array<double, 4>> seconds;
  for (const TraceOp& op : trace.ops) seconds[op.stream][lane_of(op)] += op.end - op.start;
  std::map<int, Lane> out;
  for (const auto& [stream, by_lane] : seconds)
    out[stream] = static_cast<Lane>(std::max_element(by_lane.begin(), by_lane.end()) - by_lane.begin());
  return out;
}

/// Seconds in which at least one operation of these lanes ran.
double busy(const ProfilerTrace& trace, const std::map<int, Lane>& lanes, const std::vector<Lane>& wanted) {
  double sum = 0, end = -1e300;  // operations are sorted by their start
  for (const TraceOp& op : trace.ops) {
    if (std::find(wanted.begin(), wanted.end(), lanes.at(op.stream)) == wanted.end() || op.end <= end) continue;
    sum += op.end - std::max(op.start, end);
    end = op.end;
  }
  return sum;
}

/// Of the busiest rank, by the trace's threads: messages it sends (1), gradients and parameters (2).
double lane_seconds(const StepReport& s, int thread) {
  double sum = 0;
  for (const TraceSlice& slice : s.trace->slices) {
    if (slice.process == s.busiest_rank && slice.thread == thread) sum += slice.seconds;
  }
  return sum;
}

void add_simulated(std::array<StreamDifference, 4>& out, const StepReport& s) {
  const double inside = s.busiest.part(Part::tp) + s.busiest.part(Part::cp) + s.busiest.part(Part::fsdp);
  out[kCompute].simulated_exposed = s.busiest.device() - inside - s.busiest.part(Part::ep) + s.optimizer_s;
  out[kCompute].simulated_busy = out[kCompute].simulated_exposed;
  out[kMessages].simulated_exposed = s.blocking_s;
  out[kMessages].simulated_busy = lane_seconds(s, 1);
  out[kCollectives].simulated_exposed = inside + s.reduce_exposed_s + s.gather_exposed_s;
  if (inside <= 0) out[kCollectives].simulated_busy = lane_seconds(s, 2);
  out[kExchange].simulated_exposed = s.busiest.part(Part::ep);
  if (s.busiest.part(Part::ep) <= 0 && s.busiest.part(Part::experts) <= 0) out[kExchange].simulated_busy = 0;
}

}  // namespace

std::vector<StreamDifference> compare_streams(const ProfilerTrace& trace, const StepReport& s, double steps) {
  std::array<StreamDifference, 4> rows;
  const std::map<int, Lane> lanes = lanes_of(trace);
  for (const auto& [stream, lane] : lanes) rows[lane].streams.push_back(stream);
  const double compute = busy(trace, lanes, {kCompute});
  for (const Lane lane : {kCompute, kMessages, kCollectives, kExchange}) {
    StreamDifference& row = rows[lane];
    row.lane = kLaneNames[lane];
    row.measured_busy = busy(trace, lanes, {lane}) / steps;
    row.measured_exposed =
        lane == kCompute ? row.measured_busy : (busy(trace, lanes, {kCompute, lane}) - compute) / steps;
  }
  add_simulated(rows, s);
  std::vector<StreamDifference> out;
  for (const StreamDifference& row : rows) {
    if (!row.streams.empty() || row.simulated_exposed > 0 || row.simulated_busy.value_or(0) > 0) out.push_back(row);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.gap()) > std::abs(b.gap()); });
  return out;
}

}  // namespace shardplan
