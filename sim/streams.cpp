#include "sim/streams.hpp"

#include <algorithm>
#include <limits>

namespace shardplan {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kTogether = 1e-12;  // ends this close, relative to the step, are one event

}  // namespace

RankStreams::RankStreams(int streams, bool contention) : contention_(contention), streams_(streams), joined_(streams) {}

void RankStreams::reset() {
  now_ = 0;
  blocking_ = 0;
  ended_.clear();
  for (Stream& stream : streams_) {
    stream.queue.clear();
    stream.head = 0;
    stream.issued = stream.ended = 0;
    stream.last_end = 0;
  }
}

double RankStreams::run(double from, std::span<const StreamOp> ops, std::span<double> ends) {
  if (!contention_) return run_freely(from, ops, ends);
  advance(from, false);
  issue(ops, ends);
  advance(kForever, true);
  return now_;
}

/// Without contention every end is known at once: a stream's turn, what it waits for, plus its own time.
double RankStreams::run_freely(double from, std::span<const StreamOp> ops, std::span<double> ends) {
  if (ends.empty()) {
    buffer_.resize(std::max(buffer_.size(), ops.size()));
    ends = std::span(buffer_).first(ops.size());
  }
  for (std::size_t s = 0; s < streams_.size(); ++s) joined_[s] = streams_[s].last_end;
  double end = from;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const StreamOp& op = ops[i];
    double start = std::max(from, streams_[op.stream].last_end);
    if (op.after >= 0) start = std::max(start, ends[op.after]);
    if (op.joins >= 0) start = std::max(start, joined_[op.joins]);
    ends[i] = streams_[op.stream].last_end = start + op.seconds;
    if (!op.background) end = std::max(end, ends[i]);
  }
  return end;
}

double RankStreams::drain() {
  if (contention_) advance(kForever, false);
  double last = 0;
  for (const Stream& stream : streams_) last = std::max(last, stream.last_end);
  return last;
}

void RankStreams::issue(std::span<const StreamOp> ops, std::span<double> ends) {
  const auto first = static_cast<std::int32_t>(ended_.size());
  ended_.resize(ended_.size() + ops.size(), 0);
  for (std::size_t s = 0; s < streams_.size(); ++s) joined_[s] = streams_[s].issued;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const StreamOp& op = ops[i];
    Item item;
    item.op = op;
    item.left = op.seconds;
    item.id = first + static_cast<std::int32_t>(i);
    item.after = op.after >= 0 ? first + op.after : -1;
    item.join_count = op.joins >= 0 ? static_cast<std::int32_t>(joined_[op.joins]) : 0;
    item.end = ends.empty() ? nullptr : &ends[i];
    Stream& stream = streams_[op.stream];
    stream.queue.push_back(item);
    ++stream.issued;
    if (!op.background) ++blocking_;
  }
}

bool RankStreams::ready(const Item& item) const {
  if (item.after >= 0 && !ended_[item.after]) return false;
  return item.op.joins < 0 || streams_[item.op.joins].ended >= item.join_count;
}

void RankStreams::collect_running() {
  running_.clear();
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const Stream& stream = streams_[s];
    if (stream.head < stream.queue.size() && ready(stream.queue[stream.head])) running_.push_back(static_cast<int>(s));
  }
}

/// Sets the speeds of what runs; returns how long until the first of it ends.
double RankStreams::next_end() {
  std::array<double, kShared> held{};
  for (const int s : running_) {
    const StreamOp& op = streams_[s].queue[streams_[s].head].op;
    for (std::size_t x = 0; x < kShared; ++x) held[x] += op.holds[x];
  }
  const double least = 1.0 / static_cast<double>(std::max<std::size_t>(1, running_.size()));
  speed_.clear();
  double step = kForever;
  for (const int s : running_) {
    const Item& item = streams_[s].queue[streams_[s].head];
    double speed = 1;
    for (std::size_t x = 0; x < kShared; ++x) {
      const double others = held[x] - item.op.holds[x];
      if (item.op.needs[x] > 0 && others > 0) speed = std::min(speed, (1 - others) / item.op.needs[x]);
    }
    speed = std::max(speed, least);
    speed_.push_back(speed);
    step = std::min(step, item.left / speed);
  }
  return step;
}

/// Lets what runs proceed; what would end within `ends_within` has ended.
void RankStreams::progress(double seconds, double ends_within) {
  now_ += seconds;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Stream& stream = streams_[running_[i]];
    Item& item = stream.queue[stream.head];
    if (item.left > ends_within * speed_[i]) {
      item.left -= seconds * speed_[i];
      continue;
    }
    ended_[item.id] = 1;
    if (item.end != nullptr) *item.end = now_;
    stream.last_end = now_;
    ++stream.ended;
    if (!item.op.background) --blocking_;
    if (++stream.head == stream.queue.size()) {
      stream.queue.clear();
      stream.head = 0;
    }
  }
}

void RankStreams::advance(double until, bool until_pass_ended) {
  while (!until_pass_ended || blocking_ > 0) {
    collect_running();
    if (running_.empty()) break;
    const double step = next_end();
    if (now_ + step > until) {
      progress(until - now_, -1);
      return;
    }
    progress(step, step * (1 + kTogether));
  }
  if (until < kForever) now_ = std::max(now_, until);
}

}  // namespace shardplan
