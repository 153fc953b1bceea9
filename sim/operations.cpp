#include "sim/operations.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "sim/replay_compile.hpp"

namespace shardplan {
namespace {

[[noreturn]] void fail(const std::string& what) { throw InputError("schedule", what); }

/// The common case: everything on one stream, nothing left running.
double run_chain(double t, std::span<const StreamOp> ops, double* ends) {
  for (const StreamOp& op : ops) *ends++ = t += op.seconds;
  return t;
}

}  // namespace

OperationReplayer::OperationReplayer(const Order& order) : nodes_(compile_replay(order, {})) {
  end_.resize(nodes_.rank.size());
  latency_.resize(nodes_.keys.hops());
  answer_.pass_end.resize(order.ranks);
  answer_.drained.resize(order.ranks);
  for (const auto& list : order.passes) {
    answer_.start.emplace_back(list.size());
    answer_.end.emplace_back(list.size());
    operation_begin_.emplace_back(list.size());
  }
}

void OperationReplayer::check(const OperationTable& table) const {
  if (table.streams < 1 || table.streams > 64) fail("a rank has 1 to 64 streams");
  if (table.begin.empty() || table.begin.front() != 0 ||
      table.begin.back() != static_cast<std::int32_t>(table.operations.size()) ||
      !std::is_sorted(table.begin.begin(), table.begin.end())) {
    fail("operation lists must cover their operations");
  }
  const auto lists = static_cast<std::int32_t>(table.begin.size()) - 1;
  for (std::int32_t i = 0; i < lists; ++i) {
    std::int32_t at = 0;
    for (const StreamOp& op : table.list(i)) {
      if (op.stream < 0 || op.stream >= table.streams || op.joins >= table.streams)
        fail("an operation names a stream that is none");
      if (op.after >= at) fail("an operation waits for a later one");
      if (!(op.seconds >= 0)) fail("an operation takes a negative time");
      ++at;
    }
  }
  if (table.list_of_pass.size() != operation_begin_.size()) fail("list_of_pass needs one row a rank");
  for (std::size_t r = 0; r < operation_begin_.size(); ++r) {
    if (table.list_of_pass[r].size() != operation_begin_[r].size()) fail("list_of_pass needs one entry a pass");
    for (const std::int32_t i : table.list_of_pass[r]) {
      if (i < 0 || i >= lists) fail("list_of_pass names a list that is none");
    }
  }
}

std::size_t OperationReplayer::bytes() const {
  const std::size_t ints = nodes_.rank.size() * 3 + nodes_.edge_begin.size() + nodes_.edge_from.size() * 2;
  return ints * sizeof(std::int32_t) + (end_.size() * 3 + answer_.operation_end.size()) * sizeof(double);
}

const OperationReplay& OperationReplayer::run(const OperationTable& table, const std::vector<double>& hop_forward,
                                              const std::vector<double>& hop_backward, bool contention) {
  check(table);
  const std::size_t ranks = operation_begin_.size();
  latency_[0] = 0;
  for (int s = 0; s < nodes_.keys.stages; ++s) {
    latency_[nodes_.keys.hop_forward(s)] = hop_forward.empty() ? 0 : hop_forward[s];
    latency_[nodes_.keys.hop_backward(s)] = hop_backward.empty() ? 0 : hop_backward[s];
  }
  std::size_t total = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const std::int32_t i : table.list_of_pass[r]) total += table.list(i).size();
  }
  answer_.operation_end.resize(total);
  if (streams_.size() != ranks || streams_contend_ != contention || stream_count_ != table.streams) {
    streams_.assign(ranks, RankStreams(table.streams, contention));
    streams_contend_ = contention;
    stream_count_ = table.streams;
  } else {
    for (RankStreams& s : streams_) s.reset();
  }
  const bool chain = table.streams == 1;
  std::size_t at = 0;
  const int count = static_cast<int>(nodes_.rank.size());
  int e = 0;
  for (int n = 0; n < count; ++n) {
    double start = 0;
    for (const int stop = nodes_.edge_begin[n + 1]; e < stop; ++e) {
      start = std::max(start, end_[nodes_.edge_from[e]] + latency_[nodes_.edge_hop[e]]);
    }
    const int rank = nodes_.rank[n], position = nodes_.position[n];
    const auto ops = table.list(table.list_of_pass[rank][position]);
    double* ends = answer_.operation_end.data() + at;
    end_[n] = chain ? run_chain(start, ops, ends) : streams_[rank].run(start, ops, {ends, ops.size()});
    operation_begin_[rank][position] = static_cast<std::int32_t>(at);
    at += ops.size();
    answer_.start[rank][position] = start;
    answer_.end[rank][position] = end_[n];
  }
  answer_.makespan = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    answer_.pass_end[r] = answer_.end[r].empty() ? 0 : answer_.end[r].back();
    answer_.drained[r] = std::max(answer_.pass_end[r], chain ? 0 : streams_[r].drain());
    answer_.makespan = std::max(answer_.makespan, answer_.drained[r]);
  }
  return answer_;
}

}  // namespace shardplan
