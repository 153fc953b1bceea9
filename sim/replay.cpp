#include "sim/replay.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "sim/replay_compile.hpp"

namespace shardplan {
namespace {

double longest_busy(const Replay& r) {
  double busy = 0;
  for (const RankReplay& rank : r.ranks) busy = std::max(busy, rank.busy);
  return busy;
}

void check_size(const std::vector<double>& times, int stages, bool may_be_empty, const char* name) {
  if (may_be_empty && times.empty()) return;
  if (times.size() != static_cast<std::size_t>(stages)) {
    throw InputError("schedule", std::string(name) + ": " + std::to_string(times.size()) + " times for " +
                                     std::to_string(stages) + " virtual stages");
  }
}

void check_times(const PassTimes& times, const ReplayNodes& nodes) {
  const int stages = nodes.keys.stages;
  const bool whole = !times.backward.empty() && times.input_grad.empty() && times.weight_grad.empty();
  check_size(times.forward, stages, false, "forward");
  check_size(times.backward, stages, true, "backward");
  check_size(times.input_grad, stages, whole, "input_grad");
  check_size(times.weight_grad, stages, whole, "weight_grad");
  check_size(times.overlapped, stages, true, "overlapped");
  check_size(times.overlapped_pair, stages * stages, true, "overlapped_pair");
  check_size(times.hop_forward, stages, true, "hop_forward");
  check_size(times.hop_backward, stages, true, "hop_backward");
  if (!times.per_microbatch_scale.empty() &&
      times.per_microbatch_scale.size() != static_cast<std::size_t>(nodes.microbatches)) {
    throw InputError("schedule", "per_microbatch_scale: one factor a micro-batch");
  }
}

}  // namespace

double Replay::over_ideal() const {
  const double busy = longest_busy(*this);
  return busy > 0 ? (makespan - busy) / busy : 0;
}

double Replay::over_total() const {
  double busy = 0;
  for (const RankReplay& rank : ranks) busy += rank.busy;
  const double total = makespan * static_cast<double>(ranks.size());
  return total > 0 ? 1 - busy / total : 0;
}

double Replay::window() const {
  return max_stage_window > 0 ? (max_stage_window - longest_busy(*this)) / max_stage_window : 0;
}

Replayer::Replayer(const Order& order, const ReplayOptions& options)
    : ranks_(order.ranks), keep_(options.keep_pass_times), nodes_(compile_replay(order, options)) {
  end_.resize(nodes_.rank.size());
  duration_.resize(nodes_.keys.durations());
  latency_.resize(nodes_.keys.hops());
  busy_.resize(ranks_ + 1);
  answer_.ranks = nodes_.peaks;
  if (keep_) {
    for (const auto& list : order.passes) {
      answer_.start.emplace_back(list.size());
      answer_.end.emplace_back(list.size());
    }
  }
}

void Replayer::prepare(const PassTimes& times) {
  check_times(times, nodes_);
  const ReplayKeys& keys = nodes_.keys;
  const auto at = [](const std::vector<double>& list, int s) { return list.empty() ? 0.0 : list[s]; };
  const auto backward = [&](int s) {
    return times.backward.empty() ? times.input_grad[s] + times.weight_grad[s] : times.backward[s];
  };
  for (int s = 0; s < keys.stages; ++s) {
    duration_[keys.single(s, PassKind::forward)] = times.forward[s];
    duration_[keys.single(s, PassKind::backward)] = backward(s);
    duration_[keys.single(s, PassKind::input_grad)] = at(times.input_grad, s);
    duration_[keys.single(s, PassKind::weight_grad)] = at(times.weight_grad, s);
  }
  for (int i = 0; i < keys.pairs; ++i) {
    const int f = nodes_.pair_forward[i], b = nodes_.pair_backward[i];
    duration_[keys.pair(i)] = !times.overlapped_pair.empty() ? times.overlapped_pair[f * keys.stages + b]
                              : times.overlapped.empty()     ? times.forward[f] + backward(b)
                                                             : times.overlapped[f];
  }
  prepare_hops(times.hop_forward, times.hop_backward);
  scale_ = times.per_microbatch_scale;
}

void Replayer::prepare_hops(const std::vector<double>& forward, const std::vector<double>& backward) {
  const ReplayKeys& keys = nodes_.keys;
  latency_[0] = 0;
  for (int s = 0; s < keys.stages; ++s) {
    latency_[keys.hop_forward(s)] = forward.empty() ? 0.0 : forward[s];
    latency_[keys.hop_backward(s)] = backward.empty() ? 0.0 : backward[s];
  }
  for (int h = 0; h < keys.hops(); ++h) duration_[keys.message(h)] = latency_[h];
}

double Replayer::start_of(int node) const {
  double start = 0;
  for (int e = nodes_.edge_begin[node]; e < nodes_.edge_begin[node + 1]; ++e) {
    start = std::max(start, end_[nodes_.edge_from[e]] + latency_[nodes_.edge_hop[e]]);
  }
  return start;
}

void Replayer::sweep() {
  std::fill(busy_.begin(), busy_.end(), 0.0);
  const int count = nodes();
  const std::int32_t* edge_from = nodes_.edge_from.data();
  const std::int32_t* edge_hop = nodes_.edge_hop.data();
  int e = 0;
  for (int n = 0; n < count; ++n) {
    double start = 0;
    for (const int stop = nodes_.edge_begin[n + 1]; e < stop; ++e) {
      start = std::max(start, end_[edge_from[e]] + latency_[edge_hop[e]]);
    }
    double duration = duration_[nodes_.time_key[n]];
    const int rank = nodes_.rank[n];
    if (!scale_.empty() && rank < ranks_) {
      duration *= 0.5 * (scale_[nodes_.microbatch[n]] + scale_[nodes_.microbatch2[n]]);
    }
    busy_[rank] += duration;
    end_[n] = start + duration;
  }
}

double Replayer::makespan(const PassTimes& times) {
  prepare(times);
  sweep();
  double last = 0;
  for (const int node : nodes_.last_node) last = node < 0 ? last : std::max(last, end_[node]);
  return last;
}

double Replayer::sweep_recorded(const std::vector<std::vector<double>>& seconds) {
  std::vector<std::size_t> passes(static_cast<std::size_t>(ranks_), 0);
  for (int n = 0; n < nodes(); ++n) {
    if (nodes_.position[n] >= 0) ++passes[nodes_.rank[n]];
  }
  bool same = seconds.size() == passes.size();
  for (std::size_t r = 0; same && r < passes.size(); ++r) same = seconds[r].size() == passes[r];
  if (!same) throw InputError("schedule", "recorded durations: not one a pass of this order");
  std::fill(busy_.begin(), busy_.end(), 0.0);
  double last = 0;
  for (int n = 0; n < nodes(); ++n) {
    const int position = nodes_.position[n], rank = nodes_.rank[n];
    const double duration = position < 0 ? duration_[nodes_.time_key[n]] : seconds[rank][position];
    busy_[rank] += duration;
    end_[n] = start_of(n) + duration;
    last = std::max(last, end_[n]);
  }
  return last;
}

double Replayer::recorded_makespan(const std::vector<std::vector<double>>& seconds, double hop) {
  const std::vector<double> hops(static_cast<std::size_t>(nodes_.keys.stages), hop);
  prepare_hops(hops, hops);
  return sweep_recorded(seconds);
}

const Replay& Replayer::run(const PassTimes& times) {
  answer_.makespan = makespan(times);
  return report();
}

const Replay& Replayer::run_recorded(const std::vector<std::vector<double>>& seconds,
                                     const std::vector<double>& hop_forward, const std::vector<double>& hop_backward) {
  check_size(hop_forward, nodes_.keys.stages, true, "hop_forward");
  check_size(hop_backward, nodes_.keys.stages, true, "hop_backward");
  prepare_hops(hop_forward, hop_backward);
  answer_.makespan = sweep_recorded(seconds);
  return report();
}

const Replay& Replayer::report() {
  answer_.max_stage_window = 0;
  for (int r = 0; r < ranks_; ++r) {
    RankReplay& rank = answer_.ranks[r];
    rank.first_start = nodes_.first_node[r] < 0 ? 0 : start_of(nodes_.first_node[r]);
    rank.last_end = nodes_.last_node[r] < 0 ? 0 : end_[nodes_.last_node[r]];
    rank.busy = busy_[r];
    rank.idle = answer_.makespan - rank.busy;
    answer_.max_stage_window = std::max(answer_.max_stage_window, rank.last_end - rank.first_start);
  }
  if (keep_) keep_times();
  return answer_;
}

void Replayer::keep_times() {
  answer_.messages.clear();
  for (int n = 0; n < nodes(); ++n) {
    const int rank = nodes_.rank[n], position = nodes_.position[n];
    if (position < 0) continue;
    answer_.start[rank][position] = start_of(n);
    answer_.end[rank][position] = end_[n];
    for (int e = nodes_.edge_begin[n]; e < nodes_.edge_begin[n + 1]; ++e) {
      const int from = nodes_.edge_from[e];
      if (nodes_.rank[from] == rank) continue;
      const bool message = nodes_.position[from] < 0;  // a node of its own: its first edge is its pass
      const int pass = message ? nodes_.edge_from[nodes_.edge_begin[from]] : from;
      const double start = message ? start_of(from) : end_[from];
      const double end = message ? end_[from] : end_[from] + latency_[nodes_.edge_hop[e]];
      answer_.messages.push_back({nodes_.rank[pass], nodes_.position[pass], rank, position, start, end});
    }
  }
}

std::vector<CriticalPass> Replayer::critical_path(int rank) const {
  int node = rank < 0 ? -1 : nodes_.last_node[rank];
  for (const int last : nodes_.last_node) {
    if (rank < 0 && last >= 0 && (node < 0 || end_[last] > end_[node])) node = last;
  }
  std::vector<CriticalPass> path;
  double waited = 0;  // latency between this node and the one after it in the chain
  while (node >= 0) {
    const double start = start_of(node);
    if (nodes_.position[node] >= 0) {
      if (!path.empty()) path.back().waited = waited;
      waited = 0;
      path.push_back({nodes_.rank[node], nodes_.position[node], start, end_[node], 0});
    } else {
      waited += end_[node] - start;
    }
    int from = -1;
    for (int e = nodes_.edge_begin[node]; e < nodes_.edge_begin[node + 1]; ++e) {
      const int candidate = nodes_.edge_from[e];
      if (end_[candidate] + latency_[nodes_.edge_hop[e]] != start) continue;
      if (from < 0 || nodes_.rank[candidate] < nodes_.rank[from]) from = candidate;
    }
    if (from >= 0) waited += start - end_[from];
    node = from;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

Replay replay(const Order& order, const PassTimes& times, const ReplayOptions& options) {
  Replayer replayer(order, options);
  return replayer.run(times);
}

std::vector<CriticalPass> critical_path(const Order& order, const PassTimes& times, const ReplayOptions& options) {
  Replayer replayer(order, options);
  replayer.run(times);
  return replayer.critical_path();
}

}  // namespace shardplan
