#include "sim/trace.hpp"

#include <charconv>
#include <stdexcept>

#include "sim/pass_text.hpp"

namespace shardplan {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (code < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out += std::string("\\u00") + kHex[code >> 4] + kHex[code & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// Seconds as microseconds, shortest text that reads back the same.
std::string micros(double seconds) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, seconds * 1e6, std::chars_format::fixed);
  return end.ec == std::errc() ? std::string(text, end.ptr) : "0";
}

std::string place(int process, int thread) {
  return ",\"pid\":" + std::to_string(process) + ",\"tid\":" + std::to_string(thread);
}

void add_metadata(std::string& out, const TraceThread& t) {
  out += "{\"ph\":\"M\",\"name\":\"process_name\"" + place(t.process, t.thread) +
         ",\"args\":{\"name\":" + quoted(t.process_name) + "}},\n";
  out += "{\"ph\":\"M\",\"name\":\"process_sort_index\"" + place(t.process, t.thread) +
         ",\"args\":{\"sort_index\":" + std::to_string(t.process) + "}},\n";
  out += "{\"ph\":\"M\",\"name\":\"thread_name\"" + place(t.process, t.thread) +
         ",\"args\":{\"name\":" + quoted(t.thread_name) + "}},\n";
}

void add_slice(std::string& out, const TraceSlice& s) {
  out += "{\"ph\":\"X\",\"name\":" + quoted(s.name) + ",\"cat\":" + quoted(s.category) + place(s.process, s.thread) +
         ",\"ts\":" + micros(s.start) + ",\"dur\":" + micros(s.seconds) + "},\n";
}

void add_flow(std::string& out, const TraceFlow& f, std::size_t id) {
  const std::string head = ",\"name\":" + quoted(f.name) + ",\"cat\":\"message\",\"id\":" + std::to_string(id);
  out += "{\"ph\":\"s\"" + head + place(f.from_process, f.from_thread) + ",\"ts\":" + micros(f.from_time) + "},\n";
  out +=
      "{\"ph\":\"f\",\"bp\":\"e\"" + head + place(f.to_process, f.to_thread) + ",\"ts\":" + micros(f.to_time) + "},\n";
}

}  // namespace

std::string chrome_trace(const Trace& trace) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const TraceThread& t : trace.threads) add_metadata(out, t);
  for (const TraceSlice& s : trace.slices) add_slice(out, s);
  for (std::size_t i = 0; i < trace.flows.size(); ++i) add_flow(out, trace.flows[i], i);
  if (out[out.size() - 2] == ',') out.erase(out.size() - 2, 1);
  return out + "]}\n";
}

Trace trace_of(const Order& order, const Replay& replayed) {
  constexpr int kCompute = 0, kMessages = 1;
  if (replayed.start.size() != order.passes.size()) throw std::logic_error("trace_of needs a replay with pass times");
  Trace trace;
  for (int r = 0; r < order.ranks; ++r) {
    const std::string rank = "rank " + std::to_string(r);
    trace.threads.push_back({r, kCompute, rank, "compute"});
    trace.threads.push_back({r, kMessages, rank, "messages"});
    for (std::size_t i = 0; i < order.passes[r].size(); ++i) {
      const Pass& pass = order.passes[r][i];
      const double start = replayed.start[r][i];
      trace.slices.push_back(
          {r, kCompute, start, replayed.end[r][i] - start, pass_text(pass), pass_kind_name(pass.kind)});
    }
  }
  for (const ReplayMessage& m : replayed.messages) {
    const std::string name =
        pass_text(order.passes[m.from_rank][m.from_position]) + " to rank " + std::to_string(m.to_rank);
    trace.slices.push_back({m.from_rank, kMessages, m.start, m.end - m.start, name, "message"});
    trace.flows.push_back(
        {m.from_rank, kMessages, m.start, m.to_rank, kCompute, replayed.start[m.to_rank][m.to_position], name});
  }
  return trace;
}

}  // namespace shardplan
