#include "sim/timeline.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <vector>

#include "sim/pass_text.hpp"

namespace shardplan {
namespace {

constexpr int kLabel = 6;           // "  12 |"
constexpr double kMostColumns = 4;  // of the shortest pass: short schedules are not drawn wider than readable

const char* colour_of(int kind) {
  switch (static_cast<PassKind>(kind)) {
    case PassKind::forward:
      return "\x1b[37;44m";
    case PassKind::backward:
      return "\x1b[30;42m";
    case PassKind::input_grad:
      return "\x1b[30;46m";
    case PassKind::weight_grad:
      return "\x1b[30;43m";
    case PassKind::overlapped:
      return "\x1b[37;45m";
  }
  return "";
}

/// How often each rank's stages come before this one on the same rank: its chunk.
std::vector<int> chunk_of_stage(const Order& order) {
  std::vector<int> seen(order.ranks, 0), chunk;
  for (const auto rank : order.rank_of_stage) chunk.push_back(seen[rank]++);
  return chunk;
}

double shortest_pass(const Replay& r) {
  double shortest = r.makespan;
  for (std::size_t rank = 0; rank < r.start.size(); ++rank) {
    for (std::size_t i = 0; i < r.start[rank].size(); ++i) {
      const double length = r.end[rank][i] - r.start[rank][i];
      if (length > 0) shortest = std::min(shortest, length);
    }
  }
  return shortest;
}

/// Label of a pass: letter and micro-batch, of which the last digits stay where columns are few; a pair shows both
/// micro-batches.
std::string label_of(const Pass& pass, int chunk, long columns) {
  std::string text(1, pass_letter(pass.kind));
  if (chunk > 0) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  const std::string number = std::to_string(pass.microbatch);
  const auto room = static_cast<std::size_t>(std::max(1L, columns - 1));
  text += pass.kind == PassKind::overlapped || number.size() <= room ? number : number.substr(number.size() - room);
  if (pass.kind == PassKind::overlapped) text += "&" + std::to_string(pass.microbatch2);
  return text;
}

class Line {
 public:
  Line(int columns, double scale) : cells_(columns), scale_(scale) {}

  /// A column shows the pass that covers most of it.
  void draw(const Pass& pass, int chunk, double start, double end) {
    const double from = start * scale_, to = end * scale_;
    const int last = std::min(static_cast<int>(cells_.size()), static_cast<int>(std::ceil(to - kRounding)));
    const std::string label = label_of(pass, chunk, std::lround(to - from));
    const bool labelled = to - from >= 2 - kRounding;
    std::size_t shown = 0;
    for (int c = static_cast<int>(from + kRounding); c < last; ++c) {
      const double share = std::min(to, c + 1.0) - std::max(from, static_cast<double>(c));
      Cell& cell = cells_[c];
      cell.covered += share;
      if (share <= cell.share || (labelled && share < 0.5)) continue;
      cell.share = share;
      cell.kind = static_cast<int>(pass.kind);
      cell.text = !labelled ? label[0] : shown < label.size() ? label[shown] : '-';
      ++shown;
    }
  }

  std::string text(bool colour) const {
    std::string out;
    int kind = -1;
    for (const Cell& cell : cells_) {
      const bool idle = cell.covered < 0.5;
      const int now = idle ? -1 : cell.kind;
      if (colour && now != kind) out += now < 0 ? "\x1b[0m" : colour_of(now);
      kind = now;
      out += idle ? '.' : cell.text;
    }
    if (colour && kind >= 0) out += "\x1b[0m";
    return out;
  }

 private:
  static constexpr double kRounding = 1e-9;
  struct Cell {
    char text = '.';
    int kind = -1;
    double share = 0, covered = 0;  // of the column: by the pass shown, by all passes
  };
  std::vector<Cell> cells_;
  double scale_;  // columns a unit of time
};

/// Columns a unit of time: as wide as there is room, in whole columns a pass where the passes are not narrower than
/// that.
double scale_of(double makespan, double shortest, int room) {
  const double columns = std::min(room / makespan * shortest, kMostColumns);
  return (columns >= 1 ? std::floor(columns) : columns) / shortest;
}

}  // namespace

std::string timeline_text(const Order& order, const Replay& r, const TimelineOptions& options) {
  if (r.makespan <= 0) return "";
  const int room = std::max(10, options.columns - kLabel - 1);
  const double shortest = shortest_pass(r);
  const double scale = scale_of(r.makespan, shortest, room);
  const int columns = std::min(room, static_cast<int>(std::ceil(r.makespan * scale - 1e-9)));
  const std::vector<int> chunk = chunk_of_stage(order);
  std::string out;
  for (int rank = 0; rank < order.ranks; ++rank) {
    Line line(columns, scale);
    for (std::size_t i = 0; i < order.passes[rank].size(); ++i) {
      const Pass& pass = order.passes[rank][i];
      line.draw(pass, chunk[pass.stage], r.start[rank][i], r.end[rank][i]);
    }
    const std::string number = std::to_string(rank);
    out +=
        std::string(number.size() < 4 ? 4 - number.size() : 0, ' ') + number + " |" + line.text(options.colour) + "|\n";
  }
  return out;
}

}  // namespace shardplan
