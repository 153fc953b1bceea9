#include "hardware/import_trace.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/import_nsys.hpp"
#include "hardware/measure/samples.hpp"
#include "hardware/unpack.hpp"

namespace shardplan {
namespace {

using nlohmann::json;

constexpr std::size_t kLargestTrace = std::size_t{1} << 30;

/// One trace event with the members that matter.
struct Event {
  std::string phase_type, category, name;
  double start = 0, duration = 0;
  long correlation = -1;
  int stream = -1;
};

/// Streams through the document and keeps one Event per element of traceEvents: traces are too large for a document
/// tree.
class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(std::string name) : name_(std::move(name)) {}
  std::vector<Event> events;
  std::string device, trace_name;
  int world_size = 0;
  bool saw_events = false;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override { return number(static_cast<double>(v)); }
  bool number_unsigned(number_unsigned_t v) override { return number(static_cast<double>(v)); }
  bool number_float(number_float_t v, const string_t&) override { return number(v); }
  bool string(string_t& v) override {
    if (in_event()) {
      if (event_depth() == 0 && key_ == "ph") event_.phase_type = v;
      if (event_depth() == 0 && key_ == "cat") event_.category = v;
      if (event_depth() == 0 && key_ == "name") event_.name = v;
    } else {
      if (key_ == "traceName") trace_name = v;
      if (key_ == "name" && device.empty() && !path_.empty() && inside("deviceProperties")) device = v;
    }
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    path_.push_back(key_);
    if (path_.size() == events_depth_ + 1 && events_depth_ > 0) event_ = Event{};
    key_.clear();
    return deep();
  }
  bool end_object() override {
    if (path_.size() == events_depth_ + 1 && events_depth_ > 0) keep();
    path_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    path_.push_back(key_);
    const bool whole = path_.size() == 1;  // a bare list of events
    if (events_depth_ == 0 && (whole || (path_.size() == 2 && key_ == "traceEvents"))) {
      events_depth_ = path_.size();
      saw_events = true;
    }
    key_.clear();
    return deep();
  }
  bool end_array() override {
    if (path_.size() == events_depth_) events_depth_ = 0;
    path_.pop_back();
    return true;
  }
  bool key(string_t& k) override {
    key_ = k;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw InputError(name_, "not JSON (near byte " + std::to_string(position) + ")");
  }

 private:
  bool deep() const {
    if (path_.size() > 64) throw InputError(name_, "nested deeper than 64 levels");
    return true;
  }
  bool in_event() const { return events_depth_ > 0 && path_.size() > events_depth_; }
  std::size_t event_depth() const { return path_.size() - events_depth_ - 1; }
  bool inside(const char* member) const { return std::find(path_.begin(), path_.end(), member) != path_.end(); }
  bool number(double v) {
    if (!in_event()) {
      if (key_ == "world_size") world_size = static_cast<int>(std::clamp(v, 0.0, 1e9));
      return true;
    }
    if (event_depth() == 0 && key_ == "ts") event_.start = v * 1e-6;
    if (event_depth() == 0 && key_ == "dur") event_.duration = v * 1e-6;
    if (event_depth() == 1 && path_.back() == "args") {
      if (key_ == "correlation") event_.correlation = static_cast<long>(std::clamp(v, -1.0, 1e15));
      if (key_ == "stream") event_.stream = static_cast<int>(std::clamp(v, -1.0, 1e9));
    }
    return true;
  }
  void keep() {
    if (event_.phase_type != "X") return;
    if (!std::isfinite(event_.start) || !std::isfinite(event_.duration) || event_.duration < 0)
      throw InputError(name_, "event \"" + event_.name.substr(0, 60) + "\": its duration is negative or not a number");
    events.push_back(std::move(event_));
  }

  std::string name_, key_;
  std::vector<std::string> path_;
  std::size_t events_depth_ = 0;  // length of path_ inside the list of events, 0 = outside
  Event event_;
};

struct ClassRule {
  std::string_view part;  // of the name, lower case
  std::string_view kernel_class;
};

// First match decides. Names of DeepEP, NCCL, DeepGEMM, cuBLAS, CUTLASS, FlashAttention, cuDNN, Transformer Engine,
// PyTorch.
constexpr ClassRule kRules[] = {
    {"notify", "a2a_notify"},
    {"dispatch_layout", "a2a_layout"},
    {"get_layout", "a2a_layout"},
    {"deep_ep", "a2a_dispatch"},
    {"ep_dispatch", "a2a_dispatch"},
    {"intranode::dispatch", "a2a_dispatch"},
    {"internode::dispatch", "a2a_dispatch"},
    {"dispatch", "a2a_dispatch"},
    {"combine", "a2a_combine"},
    {"allreduce", "all_reduce"},
    {"all_reduce", "all_reduce"},
    {"allgather", "all_gather"},
    {"all_gather", "all_gather"},
    {"reducescatter", "reduce_scatter"},
    {"reduce_scatter", "reduce_scatter"},
    {"alltoall", "all_to_all"},
    {"all_to_all", "all_to_all"},
    {"sendrecv", "send_recv"},
    {"nccl", "nccl_other"},
    {"nvshmem", "nccl_other"},
    {"flash_bwd", "attention_backward"},
    {"fmha_bwd", "attention_backward"},
    {"mha_bwd", "attention_backward"},
    {"attn_bwd", "attention_backward"},
    {"attention_backward", "attention_backward"},
    {"flash", "attention"},
    {"fmha", "attention"},
    {"attention", "attention"},
    {"attn_fwd", "attention"},
    {"wgrad", "wgrad_gemm"},
    {"grouped", "grouped_gemm"},
    {"group_gemm", "grouped_gemm"},
    {"gemm", "gemm"},
    {"cutlass", "gemm"},
    {"nvjet", "gemm"},
    {"cublas", "gemm"},
    {"quant", "cast"},
    {"cast", "cast"},
    {"to_fp8", "cast"},
    {"norm", "norm"},
    {"rope", "rotary"},
    {"rotary", "rotary"},
    {"swiglu", "activation"},
    {"silu", "activation"},
    {"gelu", "activation"},
    {"softmax", "softmax"},
    {"cross_entropy", "loss"},
    {"topk", "router"},
    {"permute", "permute"},
    {"transpose", "transpose"},
    {"adam", "optimizer"},
    {"multi_tensor", "optimizer"},
    {"memcpy", "copy"},
    {"memset", "memset"},
    {"reduce", "reduce"},
    {"elementwise", "elementwise"},
};

constexpr std::string_view kCommunication[] = {"a2a_notify", "a2a_layout", "a2a_dispatch",   "a2a_combine",
                                               "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                               "send_recv",  "nccl_other"};

using Intervals = std::vector<std::pair<double, double>>;

double union_of(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  double sum = 0, end = -1e300;
  for (const auto& [from, to] : intervals) {
    if (to <= end) continue;
    sum += to - std::max(from, end);
    end = to;
  }
  return sum;
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_direction(const std::string& name) {
  return ends_with(name, "(F)") || ends_with(name, "(B)") || ends_with(name, "(W)");
}

bool is_gpu(const std::string& category) {
  return category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset";
}

void read_phases(const std::vector<Event>& events, ProfilerTrace& trace) {
  for (const Event& e : events) {
    if (e.category == "user_annotation") trace.phases.push_back({e.name, e.start, e.start + e.duration});
  }
  std::stable_sort(trace.phases.begin(), trace.phases.end(),
                   [](const auto& a, const auto& b) { return a.launched_from < b.launched_from; });
}

void read_ops(const std::vector<Event>& events, ProfilerTrace& trace) {
  std::unordered_map<long, double> launches;
  for (const Event& e : events) {
    if ((e.category == "cuda_runtime" || e.category == "cuda_driver") && e.correlation >= 0)
      launches[e.correlation] = e.start;
  }
  for (const Event& e : events) {
    if (!is_gpu(e.category)) continue;
    TraceOp op;
    op.name = e.name;
    op.kernel_class = e.category == "gpu_memset"   ? "memset"
                      : e.category == "gpu_memcpy" ? "copy"
                                                   : std::string(kernel_class_of(e.name));
    op.communication = is_communication(op.kernel_class);
    op.stream = e.stream;
    op.start = e.start;
    op.end = e.start + e.duration;
    if (const auto launch = launches.find(e.correlation); launch != launches.end())
      op.phase = phase_at(trace.phases, launch->second);
    trace.ops.push_back(std::move(op));
  }
  std::stable_sort(trace.ops.begin(), trace.ops.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
}

std::vector<TraceClass> classes_of(const ProfilerTrace& trace) {
  std::map<std::string, std::vector<double>> by_class;
  for (const TraceOp& op : trace.ops) by_class[op.kernel_class].push_back(op.end - op.start);
  std::vector<TraceClass> out;
  for (const auto& [name, seconds] : by_class) {
    TraceClass c{name, is_communication(name), static_cast<int>(seconds.size()), 0, median(seconds), 0, 0};
    for (const double s : seconds) c.sum += s;
    c.min = *std::min_element(seconds.begin(), seconds.end());
    c.max = *std::max_element(seconds.begin(), seconds.end());
    out.push_back(c);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.sum > b.sum; });
  return out;
}

std::vector<TraceStream> streams_of(const ProfilerTrace& trace) {
  std::map<int, Intervals> by_stream;
  for (const TraceOp& op : trace.ops) by_stream[op.stream].push_back({op.start, op.end});
  std::vector<TraceStream> out;
  for (const auto& [stream, intervals] : by_stream)
    out.push_back({stream, static_cast<int>(intervals.size()), union_of(intervals)});
  return out;
}

std::vector<TracePhaseTime> phases_of(const ProfilerTrace& trace) {
  std::map<int, std::vector<const TraceOp*>> by_phase;
  for (const TraceOp& op : trace.ops) {
    if (op.phase >= 0) by_phase[op.phase].push_back(&op);
  }
  const double origin = trace.ops.front().start;
  std::vector<TracePhaseTime> out;
  for (const auto& [phase, ops] : by_phase) {
    TracePhaseTime t;
    t.name = trace.phases[static_cast<std::size_t>(phase)].name;
    t.ops = static_cast<int>(ops.size());
    Intervals all, communication;
    double end = 0;
    t.start = ops.front()->start - origin;
    for (const TraceOp* op : ops) {
      all.push_back({op->start, op->end});
      if (op->communication) communication.push_back({op->start, op->end});
      if (op->kernel_class == "a2a_notify") t.waiting += op->end - op->start;
      end = std::max(end, op->end - origin);
    }
    t.span = end - t.start;
    t.busy = union_of(all);
    t.communication = union_of(communication) > 0.5 * t.busy;
    out.push_back(t);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return out;
}

}  // namespace

int phase_at(const std::vector<TracePhase>& phases, double launch) {
  int best = -1;
  const auto better = [&](const TracePhase& a, const TracePhase& b) {
    if (is_direction(a.name) != is_direction(b.name)) return is_direction(a.name);
    return a.launched_to - a.launched_from < b.launched_to - b.launched_from;
  };
  const auto after = std::upper_bound(phases.begin(), phases.end(), launch,
                                      [](double t, const TracePhase& p) { return t < p.launched_from; });
  for (auto p = phases.begin(); p != after; ++p) {
    if (p->launched_to < launch) continue;
    if (best < 0 || better(*p, phases[static_cast<std::size_t>(best)])) best = static_cast<int>(p - phases.begin());
  }
  return best;
}

std::string_view kernel_class_of(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (const ClassRule& rule : kRules) {
    if (lower.find(rule.part) != std::string::npos) return rule.kernel_class;
  }
  return "other";
}

bool is_communication(std::string_view kernel_class) {
  return std::find(std::begin(kCommunication), std::end(kCommunication), kernel_class) != std::end(kCommunication);
}

ProfilerTrace parse_trace(std::string_view text, const std::string& name) {
  if (is_gzip(text)) return parse_trace(gunzip(text, name, kLargestTrace), name);
  Reader reader(name);
  json::sax_parse(text, &reader);
  if (!reader.saw_events) throw InputError(name, "is not a Chrome trace: it has no list \"traceEvents\"");
  ProfilerTrace trace;
  trace.device = reader.device;
  trace.name = reader.trace_name;
  trace.world_size = reader.world_size;
  read_phases(reader.events, trace);
  read_ops(reader.events, trace);
  if (trace.ops.empty())
    throw InputError(name, "holds no GPU operation (events of category kernel, gpu_memcpy or gpu_memset)");
  return trace;
}

ProfilerTrace read_trace(const std::string& path) {
  const std::string text = read_text_file(path, kLargestTrace);
  return is_sqlite(text) ? read_nsys(path) : parse_trace(text, path);
}

TraceSummary summarise_trace(const ProfilerTrace& trace) {
  TraceSummary s;
  Intervals all, compute, communication;
  double end = trace.ops.front().end;
  for (const TraceOp& op : trace.ops) {
    all.push_back({op.start, op.end});
    (op.communication ? communication : compute).push_back({op.start, op.end});
    end = std::max(end, op.end);
  }
  s.total = end - trace.ops.front().start;
  s.compute_busy = union_of(compute);
  s.communication_busy = union_of(communication);
  s.any_busy = union_of(all);
  s.overlapped = s.compute_busy + s.communication_busy - s.any_busy;
  s.exposed = s.any_busy - s.compute_busy;
  s.idle = s.total - s.any_busy;
  s.classes = classes_of(trace);
  s.streams = streams_of(trace);
  s.phases = phases_of(trace);
  for (const TracePhaseTime& phase : s.phases) {
    if (ends_with(phase.name, "(F)")) s.forward_parts += phase.busy;
    if (ends_with(phase.name, "(B)") || ends_with(phase.name, "(W)")) s.backward_parts += phase.busy;
  }
  return s;
}

std::optional<double> replay_phases(const TraceSummary& s) {
  if (!(s.forward_parts > 0 && s.backward_parts > 0)) return std::nullopt;
  double free_compute = 0, free_communication = 0, forward = 0, backward = 0, last = 0;
  std::map<std::string, double> ended;  // of the latest (B) phase by its name
  for (const TracePhaseTime& phase : s.phases) {
    if (!is_direction(phase.name)) continue;
    const bool weight = ends_with(phase.name, "(W)");
    double& chain = ends_with(phase.name, "(F)") ? forward : backward;
    const std::string base = phase.name.substr(0, phase.name.size() - 3);
    double& stream = phase.communication ? free_communication : free_compute;
    const double start = std::max(stream, weight ? ended[base] : chain);
    stream = start + phase.busy;
    if (!weight) chain = stream;
    if (ends_with(phase.name, "(B)")) ended[base] = stream;
    last = std::max(last, stream);
  }
  return last;
}

}  // namespace shardplan
