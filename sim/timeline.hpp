#pragma once
// A replay as a picture for the terminal: a line a rank, time to the right.
#include <string>

#include "sim/order.hpp"
#include "sim/replay.hpp"

namespace shardplan {

struct TimelineOptions {
  int columns = 120;    // of the whole line
  bool colour = false;  // ANSI colours by kind of pass; without, letters alone tell them apart
};

/// Each pass as its letter, its micro-batch (its last digits where there is no room) and dashes: "F3--"; chunks after
/// the first in lower case; . is idle. Where
/// a pass has less than two columns, letters alone; where it has less than one, a column shows what fills most of it.
/// `replayed` must hold pass times.
std::string timeline_text(const Order&, const Replay& replayed, const TimelineOptions& = {});

}  // namespace shardplan
