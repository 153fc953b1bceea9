// Local search: threshold accepting over moves of single passes along the critical path. A move is tried where the path
// runs from one pass straight into the next on the same rank: only there can another order end it sooner.
//   W before F or I:  the weight gradient goes behind, or on to a later gap or the end;
//   W on the path:    it goes into an earlier gap;
//   F, I neighbours:  they change places.
// A move that makes the order longer by less than the threshold is kept, too; the threshold falls to zero.
#include "sim/zb_search.hpp"

#include <algorithm>
#include <limits>

#include "base/random.hpp"

namespace shardplan {
namespace {

struct Move {
  int rank, from, to;  // the pass at `from` goes to `to`, what is between moves up
};

class Search {
 public:
  Search(const ZbQuestion& q, ZbStrings& best, double lower_bound)
      : q_(q), best_(best), current_(best), lower_bound_(lower_bound), evaluator_(q), random_(1) {
    best_value_ = current_value_ = evaluator_.score(current_).of(q_.objective);
  }

  std::int64_t run() {
    const std::int64_t passes = std::int64_t{3} * q_.ranks * q_.microbatches;
    const std::int64_t budget =
        q_.most_tries > 0 ? q_.most_tries : std::clamp<std::int64_t>(kWork / passes, 100, 20'000);
    const double threshold = 0.5 * shortest_pass();
    std::int64_t tried = 0, since_best = 0;
    while (tried < budget && best_value_ > lower_bound_ * (1 + 1e-9)) {
      const double allowed = threshold * (1 - static_cast<double>(tried) / static_cast<double>(budget));
      ++tried;
      const bool better = step(allowed);
      since_best = better ? 0 : since_best + 1;
      if (since_best > budget / 8) {
        current_ = best_;
        current_value_ = best_value_;
        evaluator_.score(current_);
        since_best = 0;
      }
    }
    return tried;
  }

 private:
  static constexpr std::int64_t kWork = 60'000'000;  // passes evaluated: about half a second

  double shortest_pass() const {
    double shortest = std::numeric_limits<double>::infinity();
    for (int s = 0; s < q_.ranks; ++s) {
      for (const double t : {evaluator_.times().f[s], evaluator_.times().b[s], evaluator_.times().w[s]}) {
        if (t > 0) shortest = std::min(shortest, t);
      }
    }
    return shortest < std::numeric_limits<double>::infinity() ? shortest : 0;
  }

  /// One move; true where it led to a new best. The evaluator always holds the times of current_.
  bool step(double allowed) {
    const Move move = pick();
    if (move.rank < 0) return false;
    apply(move);
    if (!legal(move.rank)) {
      undo(move);
      return false;
    }
    const double value = evaluator_.score(current_).of(q_.objective);
    if (value > current_value_ + allowed) {
      undo(move);
      stale_ = true;
      return false;
    }
    stale_ = false;
    path_.clear();
    current_value_ = value;
    if (value >= best_value_ * (1 - 1e-12)) return false;
    best_value_ = value;
    best_ = current_;
    return true;
  }

  void apply(const Move& m) {
    auto& list = current_[m.rank];
    const auto at = [&](int i) { return list.begin() + i; };
    if (m.from < m.to) {
      std::rotate(at(m.from), at(m.from + 1), at(m.to + 1));
    } else {
      std::rotate(at(m.to), at(m.from), at(m.from + 1));
    }
  }
  void undo(const Move& m) { apply({m.rank, m.to, m.from}); }

  bool legal(int r) const {
    const double limit = q_.limit.empty() ? std::numeric_limits<double>::infinity() : q_.limit[r];
    const double chunk = q_.chunk_bytes[r], weight = q_.weight_grad_bytes[r];
    int held = 0, owed = 0;
    for (const ZbOp op : current_[r]) {
      if (op == ZbOp::forward) {
        ++held;
      } else if (op == ZbOp::input_grad) {
        --held;
        ++owed;
      } else {
        --owed;
      }
      if (held < 0 || owed < 0 || exceeds(chunk * held + weight * owed, limit)) return false;
    }
    return true;
  }

  struct Step {
    int rank, position;  // a pass on the path that began as soon as the pass before it on its rank had ended
  };

  /// The chain of passes that decides the objective, where it stays on a rank.
  void find_path() {
    if (stale_) {
      evaluator_.score(current_);
      stale_ = false;
    }
    path_.clear();
    const int last = 3 * q_.microbatches - 1;
    int rank = 0;
    double longest = -1;
    for (int r = 0; r < q_.ranks; ++r) {
      const double begin = q_.objective == ZbObjective::window ? evaluator_.start(r, 0) : 0;
      if (evaluator_.end(r, last) - begin > longest) {
        longest = evaluator_.end(r, last) - begin;
        rank = r;
      }
    }
    count(rank, last);
  }

  void count(int rank, int position) {
    std::vector<std::vector<int>> number(q_.ranks);  // by rank and position: which F, I or W it is
    const auto number_of = [&](int r, int i) {
      if (number[r].empty()) {
        int seen[3] = {0, 0, 0};
        for (const ZbOp op : current_[r]) number[r].push_back(seen[static_cast<int>(op)]++);
      }
      return number[r][i];
    };
    while (true) {
      const ZbOp op = current_[rank][position];
      const bool tight = position > 0 && evaluator_.end(rank, position - 1) >= evaluator_.start(rank, position);
      if (tight) {
        path_.push_back({rank, position});
        --position;
        continue;
      }
      const int k = number_of(rank, position);
      if (op == ZbOp::forward && rank > 0) {
        --rank;
        position = evaluator_.forward_at(rank, k);
      } else if (op == ZbOp::input_grad && rank + 1 < q_.ranks) {
        ++rank;
        position = evaluator_.input_at(rank, k);
      } else {
        return;
      }
    }
  }

  Move pick() {
    if (path_.empty()) find_path();
    if (path_.empty()) return {-1, 0, 0};
    for (int attempt = 0; attempt < 16; ++attempt) {
      const Step step = path_[random_.below(path_.size())];
      const Move move = move_at(step.rank, step.position);
      if (move.rank >= 0) return move;
    }
    return {-1, 0, 0};
  }

  Move move_at(int r, int i) {
    const ZbOp before = current_[r][i - 1], here = current_[r][i];
    if (before == ZbOp::weight_grad && here != ZbOp::weight_grad) return {r, i - 1, later_place(r, i)};
    if (here == ZbOp::weight_grad) {
      const int to = earlier_gap(r, i);
      return to < i ? Move{r, i, to} : Move{-1, 0, 0};
    }
    if (before != here) return {r, i - 1, i};
    return {-1, 0, 0};
  }

  /// Behind the pass at i, before the next gap, or at the end.
  int later_place(int r, int i) {
    const int last = 3 * q_.microbatches - 1;
    switch (random_.below(3)) {
      case 0:
        return i;
      case 1:
        return last;
      default:
        break;
    }
    for (int j = i + 1; j <= last; ++j) {
      if (evaluator_.start(r, j) > evaluator_.end(r, j - 1)) return j - 1;
    }
    return last;
  }

  /// A gap before the pass at i, chosen evenly; i where there is none.
  int earlier_gap(int r, int i) {
    int gaps = 0, chosen = i;
    for (int j = 1; j < i; ++j) {
      if (evaluator_.start(r, j) > evaluator_.end(r, j - 1) && random_.below(static_cast<std::uint64_t>(++gaps)) == 0)
        chosen = j;
    }
    return chosen;
  }

  const ZbQuestion& q_;
  ZbStrings& best_;
  ZbStrings current_;
  double lower_bound_;
  ZbEvaluator evaluator_;
  Random random_;
  double best_value_ = 0, current_value_ = 0;
  bool stale_ = false;  // the evaluator holds the times of a move that was undone
  std::vector<Step> path_;
};

}  // namespace

std::int64_t improve(const ZbQuestion& q, ZbStrings& strings, double lower_bound) {
  return Search(q, strings, lower_bound).run();
}

}  // namespace shardplan
