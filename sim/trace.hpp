#pragma once
// Traces for chrome://tracing and Perfetto: plain arrays in, text out. Times are seconds.
#include <cstdint>
#include <string>
#include <vector>

#include "sim/order.hpp"
#include "sim/replay.hpp"

namespace shardplan {

struct TraceThread {
  int process = 0, thread = 0;
  std::string process_name, thread_name;
};

struct TraceSlice {
  int process = 0, thread = 0;
  double start = 0, seconds = 0;
  std::string name;
  std::string category;  // colours: slices of one category are alike
};

/// An arrow from inside one slice to inside another.
struct TraceFlow {
  int from_process = 0, from_thread = 0;
  double from_time = 0;
  int to_process = 0, to_thread = 0;
  double to_time = 0;
  std::string name;
};

struct Trace {
  std::vector<TraceThread> threads;
  std::vector<TraceSlice> slices;
  std::vector<TraceFlow> flows;
};

/// The JSON of the trace event format (object form, "traceEvents"); microseconds, in the order of the arrays.
std::string chrome_trace(const Trace&);

/// Ranks as processes, compute as thread 0, messages as thread 1 of the sender, an arrow to the pass that waits for
/// each. `replayed` must hold pass times (ReplayOptions::keep_pass_times).
Trace trace_of(const Order&, const Replay& replayed);

}  // namespace shardplan
