#include "sim/steady.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/pass_index.hpp"

namespace shardplan {
namespace {

constexpr std::int64_t kWholePasses = 1 << 18;  // forward passes of all ranks that are replayed without a thought
constexpr int kPeriods = 12;                    // of the shortest step: warm-up, drain, and some in which times settle
constexpr double kSettled = 1e-12;              // of the makespan

/// Positions of a rank that stand one period before an equal pass: [first, last).
struct Run {
  int first = 0, last = 0;
};

bool repeats(const Pass& a, const Pass& b, int shift) {
  return a.kind == b.kind && a.stage == b.stage && a.stage2 == b.stage2 && b.microbatch == a.microbatch + shift &&
         (a.kind != PassKind::overlapped || b.microbatch2 == a.microbatch2 + shift);
}

/// Passes from the middle one to the one that repeats it; 0 = none does.
int block_at_middle(const std::vector<Pass>& passes, int shift) {
  const std::size_t middle = passes.size() / 2;
  for (std::size_t i = middle + 1; i < passes.size(); ++i)
    if (repeats(passes[middle], passes[i], shift)) return static_cast<int>(i - middle);
  return 0;
}

/// Forward and backward halves of the passes in [first, last).
std::pair<std::int64_t, std::int64_t> halves(const std::vector<Pass>& passes, int first, int last) {
  std::pair<std::int64_t, std::int64_t> out;
  for (int i = first; i < last; ++i) {
    const PassKind kind = passes[i].kind;
    out.first += kind == PassKind::forward || kind == PassKind::overlapped ? 1 : 0;
    out.second += kind != PassKind::forward && kind != PassKind::weight_grad ? 1 : 0;
  }
  return out;
}

Run longest_run(const std::vector<Pass>& passes, int block, int shift) {
  Run best, now;
  const int stop = static_cast<int>(passes.size()) - block;
  for (int i = 0; i < stop; ++i) {
    if (!repeats(passes[i], passes[i + block], shift)) {
      now.first = i + 1;
      continue;
    }
    now.last = i + 1;
    if (now.last - now.first > best.last - best.first) best = now;
  }
  return best;
}

class Finder {
 public:
  Finder(const Order& order, int period) : order_(order), period_(period), index_(order) {}

  std::optional<SteadyOrder> run() {
    if (!find_runs()) return std::nullopt;
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      // Late in the run, so that times have settled; with room for the cuts of other ranks to move this one.
      const int periods = (runs_[r].last - runs_[r].first) / out_.passes[r];
      out_.cut.push_back(runs_[r].first + out_.passes[r] * std::max(1, periods * 3 / 4));
    }
    close();
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      // A period before the cut, and one behind it.
      if (out_.cut[r] - out_.passes[r] < runs_[r].first || out_.cut[r] > runs_[r].last) return std::nullopt;
    }
    if (!find_ends()) return std::nullopt;
    return std::move(out_);
  }

 private:
  bool find_runs() {
    // Bidirectional schedules number the micro-batches of one direction after those of the other.
    const int shift = order_.parameter_copies == 2 ? period_ / 2 : period_;
    for (const auto& list : order_.passes) {
      const int block = block_at_middle(list, shift);
      if (block == 0) return false;
      const Run run = longest_run(list, block, shift);
      if (run.last - run.first < block) return false;
      // A period has its share of forward and of backward work; GPipe's forward phase repeats, too.
      const auto all = halves(list, 0, static_cast<int>(list.size())), one = halves(list, run.first, run.first + block);
      if (one.first * order_.microbatches != all.first * period_) return false;
      if (one.second * order_.microbatches != all.second * period_) return false;
      out_.passes.push_back(block);
      runs_.push_back(run);
    }
    return true;
  }

  /// Calls `visit(id)` for the passes of other stages that a pass waits for.
  template <class Visit>
  void sources(const Pass& pass, Visit visit) const {
    const bool forward = pass.kind == PassKind::forward || pass.kind == PassKind::overlapped;
    const bool backward = pass.kind != PassKind::forward && pass.kind != PassKind::weight_grad;
    if (forward && order_.previous[pass.stage] >= 0)
      visit(index_.forward(order_.previous[pass.stage], pass.microbatch));
    const bool pair = pass.kind == PassKind::overlapped;
    const int stage = pair ? pass.stage2 : pass.stage;
    if (backward && order_.next[stage] >= 0)
      visit(index_.backward(order_.next[stage], pair ? pass.microbatch2 : pass.microbatch));
  }

  /// Moves cuts later until no pass before them waits for one behind them.
  void close() {
    std::vector<std::int32_t> seen(out_.cut.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < seen.size(); ++r) {
        for (; seen[r] < out_.cut[r]; ++seen[r]) {
          sources(order_.passes[r][seen[r]], [&](int id) {
            std::int32_t& cut = out_.cut[index_.rank(id)];
            if (index_.position(id) < cut) return;
            cut = index_.position(id) + 1;
            moved = true;
          });
        }
      }
    }
  }

  /// What the passes behind the cut wait for. False where that, or what the period before the cut waits for, stands too
  /// early in the order to repeat.
  bool find_ends() {
    bool early = false;
    for (int r = 0; r < order_.ranks; ++r) {
      out_.ends.push_back({r, out_.cut[r] - 1});
      const auto& passes = order_.passes[r];
      for (int i = out_.cut[r] - out_.passes[r]; i < static_cast<int>(passes.size()); ++i) {
        const bool behind = i >= out_.cut[r];
        sources(passes[i], [&](int id) {
          const int rank = index_.rank(id), position = index_.position(id);
          if (position >= out_.cut[rank]) return;
          if (behind) out_.ends.push_back({rank, position});
          early = early || position - (behind ? out_.passes[rank] : 0) < runs_[rank].first;
        });
      }
    }
    return !early;
  }

  const Order& order_;
  int period_;
  PassIndex index_;
  std::vector<Run> runs_;
  SteadyOrder out_;
};

}  // namespace

std::optional<SteadyOrder> steady_order(const Order& order, int period) { return Finder(order, period).run(); }

std::optional<double> steady_seconds(const SteadyOrder& steady, const Replay& replay) {
  const auto of_period = [&](const SteadyOrder::End& e) {
    return replay.end[e.rank][e.position] - replay.end[e.rank][e.position - steady.passes[e.rank]];
  };
  const double seconds = of_period(steady.ends.front());
  for (const SteadyOrder::End& e : steady.ends)
    if (!(std::abs(of_period(e) - seconds) <= kSettled * replay.makespan)) return std::nullopt;
  return seconds;
}

Replay extended(const SteadyOrder& steady, const Replay& replay, double seconds, std::int64_t periods) {
  Replay out = replay;
  out.messages.clear();
  const auto count = static_cast<double>(periods);
  const double later = count * seconds;
  out.makespan += later;
  out.max_stage_window = 0;
  for (std::size_t r = 0; r < out.ranks.size(); ++r) {
    RankReplay& rank = out.ranks[r];
    for (std::int32_t i = steady.cut[r] - steady.passes[r]; i < steady.cut[r]; ++i)
      rank.busy += count * (replay.end[r][i] - replay.start[r][i]);
    for (std::size_t i = steady.cut[r]; i < out.end[r].size(); ++i) {
      out.start[r][i] += later;
      out.end[r][i] += later;
    }
    rank.last_end += later;
    rank.idle = out.makespan - rank.busy;
    out.max_stage_window = std::max(out.max_stage_window, rank.last_end - rank.first_start);
  }
  return out;
}

ShortStep short_step(const ScheduleQuestion& q, int longer) {
  ShortStep out;
  out.question = q;
  const std::int64_t m = q.microbatches, whole = m * q.ranks * q.chunks;
  // Every schedule's own period divides this: one or two micro-batches, or a group of interleaved ones.
  const std::int64_t period = std::lcm(std::int64_t{2}, std::int64_t{q.group > 0 ? q.group : q.ranks});
  const std::int64_t least = std::max<std::int64_t>(kPeriods * period, 64) << (2 * std::min(longer, 16));
  if (whole < kWholePasses || m / 2 < least + period) return out;
  out.period = static_cast<int>(period);
  const std::int64_t microbatches = least + (m - least) % period;
  out.periods = (m - microbatches) / period;
  out.question.microbatches = static_cast<int>(microbatches);
  return out;
}

}  // namespace shardplan
