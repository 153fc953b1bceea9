#include "hardware/measure/import_files.hpp"

#include <map>

#include "base/field.hpp"
#include "hardware/import_nsys.hpp"
#include "hardware/import_trace.hpp"
#include "hardware/measure/sha256.hpp"

namespace shardplan {
namespace {

MeasuringFile imported(const std::string& kind, const std::string& path, const std::string& text) {
  MeasuringFile file;
  file.tool = {{"name", "shardplan"}, {"version", "0.1.0"}, {"arguments", "measure import " + kind}};
  file.source_kind = kind;
  // The name without its folder: the same file gives the same bytes wherever it lies.
  file.source_path = path.substr(path.find_last_of('/') + 1);
  file.source_sha256 = sha256(text);
  return file;
}

}  // namespace

MeasuringFile measuring_of_trace(const std::string& path) {
  const std::string text = read_text_file(path, std::size_t{1} << 30);
  const ProfilerTrace trace = is_sqlite(text) ? read_nsys(path) : parse_trace(text, path);
  MeasuringFile file = imported("trace", path, text);
  file.device = {{"name", trace.device}, {"world_size", std::to_string(trace.world_size)}};
  std::map<std::string, std::vector<double>> by_class;
  for (const TraceOp& op : trace.ops) {
    if (op.end > op.start) by_class[op.kernel_class].push_back(op.end - op.start);
  }
  for (auto& [name, seconds] : by_class) {
    MeasuredPoint p;
    p.kernel = name;
    p.words = {{"group", is_communication(name) ? "communication" : "compute"}};
    p.time = summarise(seconds);
    // Kernels of one class differ in shape: their spread is no noise.
    p.flags = {"mixed-shapes"};
    file.points.push_back(std::move(p));
  }
  return file;
}

}  // namespace shardplan
