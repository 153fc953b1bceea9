#pragma once
// Kineto / Chrome traces (PyTorch's profiler): what ran on which stream, for how long, what overlapped and what did
// not.
//
// A GPU operation is an event of category kernel, gpu_memcpy or gpu_memset. Its phase is the annotation (category
// user_annotation) whose interval holds its launch: the cuda_runtime event of the same correlation id, matched by time
// and not by thread, because autograd launches backward kernels from a thread of its own. Times in seconds.
// Compressed traces (.json.gz) and reports of Nsight Systems (import_nsys.hpp) are read too.
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

struct TraceOp {
  std::string name;
  std::string kernel_class;  // kernel_class_of(name)
  int phase = -1;            // into ProfilerTrace::phases, -1 = launched outside every annotation
  int stream = 0;
  double start = 0, end = 0;
  bool communication = false;
};

struct TracePhase {
  std::string name;  // "dispatch(F)"
  double launched_from = 0, launched_to = 0;
};

struct ProfilerTrace {
  std::string device, name;
  int world_size = 0;
  std::vector<TraceOp> ops;        // by start
  std::vector<TracePhase> phases;  // annotations, by begin
};

/// InputError: not a trace, negative or non-finite times, no GPU operation, above 1 GiB (unpacked).
ProfilerTrace read_trace(const std::string& path);
ProfilerTrace parse_trace(std::string_view text, const std::string& name);

/// Class by name: a2a_notify (waiting for others, never bandwidth), a2a_dispatch, a2a_combine, nccl classes, attention,
/// products, casts, norms, ... or other.
std::string_view kernel_class_of(std::string_view name);
bool is_communication(std::string_view kernel_class);

/// The annotation of a launch, -1 = none: the shortest that holds it, those that name a direction before all others.
/// phases: by launched_from.
int phase_at(const std::vector<TracePhase>& phases, double launch);

struct TraceClass {
  std::string name;
  bool communication = false;
  int count = 0;
  double sum = 0, median = 0, min = 0, max = 0;
};
struct TraceStream {
  int stream = 0;
  int count = 0;
  double busy = 0;
};
/// All operations of one annotation.
struct TracePhaseTime {
  std::string name;
  bool communication = false;                         // most of its time
  double start = 0, span = 0, busy = 0, waiting = 0;  // waiting: notify kernels
  int ops = 0;
};

struct TraceSummary {
  double total = 0;                                               // first start to last end
  double compute_busy = 0, communication_busy = 0, any_busy = 0;  // unions of intervals
  double overlapped = 0, exposed = 0, idle = 0;  // compute + communication - any; any - compute; total - any
  std::vector<TraceClass> classes;               // longest sum first
  std::vector<TraceStream> streams;
  std::vector<TracePhaseTime> phases;  // in order of start
  // A pair of a forward and a backward chunk, told by "(F)", "(B)" and "(W)" in the phases' names; 0 where there are
  // none.
  double forward_parts = 0, backward_parts = 0;  // sums of busy times; (W) counts as backward
  double serial_parts() const { return forward_parts + backward_parts; }
};

TraceSummary summarise_trace(const ProfilerTrace&);

/// What a simulator makes of the phases' own durations: one stream of compute and one of communication, each in the
/// order seen, a forward phase after the forward phase before it, a backward one likewise, a (W) phase after the (B)
/// phase of its name. Nothing where the trace has no such phases.
std::optional<double> replay_phases(const TraceSummary&);

}  // namespace shardplan
