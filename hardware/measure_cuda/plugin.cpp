// The plug-in's entry: checks the device, measures part by part, answers with a measuring file.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hardware/measure/samples.hpp"
#include "hardware/measure_cuda/check.hpp"
#include "hardware/measure_cuda/parts.hpp"
#include "hardware/measure_cuda/plugin_abi.hpp"

namespace shardplan::cuda {
namespace {

using nlohmann::ordered_json;

constexpr double kDefaultSeconds = 240, kQuickSeconds = 30;

struct Request {
  bool quick = false;
  double seconds = 0;
  std::vector<std::string> only;
  std::string arguments;
  std::vector<std::vector<double>> traffic;
  bool wants(const char* part) const { return only.empty() || std::find(only.begin(), only.end(), part) != only.end(); }
};

Request read_request(const char* text) {
  const auto json = nlohmann::json::parse(text);
  Request r;
  r.quick = json.value("quick", false);
  r.seconds = json.value("seconds", 0.0);
  if (!(r.seconds > 0)) r.seconds = r.quick ? kQuickSeconds : kDefaultSeconds;
  r.only = json.value("only", std::vector<std::string>{});
  r.arguments = json.value("arguments", std::string());
  r.traffic = json.value("traffic", std::vector<std::vector<double>>{});
  return r;
}

ordered_json json_of(const Point& p) {
  const SampleSummary t = summarise(p.samples);
  ordered_json params = ordered_json::object();
  for (const auto& [name, value] : p.numbers) params[name] = value;
  if (p.throttled > 0) params["throttled_samples_dropped"] = p.throttled;
  for (const auto& [name, value] : p.words) params[name] = value;
  std::vector<std::string> flags = p.flags;
  if (t.p90 > 1.5 * t.p10) flags.push_back("noisy");
  return {{"kernel", p.kernel},   {"params", params},       {"flops", p.flops}, {"bytes", p.bytes}, {"n", t.n},
          {"median_s", t.median}, {"mean_s", t.mean},       {"p10_s", t.p10},   {"p90_s", t.p90},   {"min_s", t.min},
          {"mad_s", t.mad},       {"samples_s", p.samples}, {"state", p.state}, {"flags", flags}};
}

/// The same product at the start and at the end: what drifted in between.
Point sentinel(Bench& bench, const PlannedGemm& gemm, const char* when) {
  Job job{gemm.point(), [&](cudaStream_t s) { gemm.launch(s); }};
  job.point.kernel = "sentinel";
  job.point.state = "hot";
  job.point.words["when"] = when;
  bench.sample(job, 7);
  return job.point;
}

/// A third of the device's memory at most, 1.5 GiB where there is enough: the largest product of the grid needs 0.9
/// GiB.
std::size_t arena_bytes(const DeviceFacts& facts) {
  return std::min<std::size_t>(std::size_t{3} << 29, static_cast<std::size_t>(facts.memory_bytes) / 8 / 256 * 256);
}

/// Runs one part; what it throws becomes a note, and the parts before and after it stay.
template <class Part>
void attempt(const char* name, Notes& notes, const Part& part) {
  try {
    part();
  } catch (const std::exception& e) {
    notes.push_back(std::string(name) + " failed: " + e.what());
    cudaGetLastError();
  }
}

/// What a reader of the file would refuse is not written: too few samples, or none that took time.
void drop_unusable(std::vector<Point>& points, Notes& notes) {
  std::size_t dropped = 0;
  std::erase_if(points, [&](const Point& p) {
    const bool useless = p.samples.size() < 5 || !(*std::min_element(p.samples.begin(), p.samples.end()) > 0);
    dropped += useless;
    return useless;
  });
  if (dropped > 0)
    notes.push_back(std::to_string(dropped) + " points are not written: fewer than 5 samples, or of no time");
}

std::vector<Point> measure_all(const Request& r, Bench& bench, cublasLtHandle_t handle, const DeviceFacts& facts,
                               Notes& notes) {
  const GemmArena arena(arena_bytes(facts), arena_bytes(facts));
  // A kernel that computes something else is not worth timing.
  bool products = false, memory = false;
  attempt("the check of products", notes, [&] { products = gemms_are_right(handle, arena, bench.stream(), notes); });
  attempt("the check of memory kernels", notes, [&] { memory = memory_is_right(arena, bench.stream(), notes); });
  if (!products) notes.push_back("products, contention and layer are not measured: results are wrong");
  if (!memory) notes.push_back("memory kernels and the layer are not measured: results are wrong");
  std::vector<Point> points;
  const auto append = [&](std::vector<Point> more) { std::move(more.begin(), more.end(), std::back_inserter(points)); };
  const auto watch = [&](const char* when) {
    if (!products) return;
    attempt("sentinel", notes, [&] {
      points.push_back(
          sentinel(bench, PlannedGemm(handle, arena, {8192, 8192, 8192, Format::bf16, "forward", 0}), when));
    });
  };
  watch("start");
  std::vector<Job> jobs;
  const auto add = [&](std::vector<Job> more) { std::move(more.begin(), more.end(), std::back_inserter(jobs)); };
  if (r.wants("gemm") && products) {
    attempt("gemm", notes, [&] { add(gemm_jobs(handle, arena, facts, r.quick, notes)); });
    attempt("grouped gemm", notes, [&] { add(grouped_jobs(handle, arena, r.quick, notes)); });
  }
  if (r.wants("memory") && memory) attempt("memory", notes, [&] { add(memory_jobs(arena, r.quick, notes)); });
  if (r.wants("launch")) attempt("launch", notes, [&] { add(launch_jobs(arena)); });
  run_jobs(bench, jobs, 3, 5, 0.7 * r.seconds, notes);
  for (Job& job : jobs) points.push_back(std::move(job.point));
  if (r.wants("contention") && products)
    attempt("contention", notes, [&] { append(contention_points(bench, handle, arena, facts, r.quick, notes)); });
  if (r.wants("layer") && products && memory)
    attempt("layer", notes, [&] { append(layer_points(bench, handle, arena, r.quick, notes)); });
  if (r.wants("collectives"))
    attempt("collectives", notes, [&] { append(collective_points(r.quick, r.traffic, notes)); });
  watch("end");
  drop_unusable(points, notes);
  if (points.empty())
    throw std::runtime_error("nothing could be measured: " + (notes.empty() ? "no part was asked for" : notes.front()));
  return points;
}

std::string measure(const Request& r) {
  require_device();
  const DeviceFacts facts = device_facts();
  Bench bench(facts);
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  Notes notes;
  const auto before = bench.monitor().state();
  const std::vector<Point> points = measure_all(r, bench, handle, facts, notes);
  cublasLtDestroy(handle);
  ordered_json list = ordered_json::array();
  for (const Point& p : points) list.push_back(json_of(p));
  std::string all_notes;
  for (const std::string& note : notes) all_notes += (all_notes.empty() ? "" : "; ") + note;
  const ordered_json out = {
      {"schema", "shardplan-measure/1"},
      {"tool", {{"name", "shardplan"}, {"version", "0.1.0"}, {"arguments", r.arguments}}},
      {"device", device_words()},
      {"method",
       {{"timing",
         "CUDA events; cold: L2 overwritten before every launch; hot: launches in a row; graph: inside a CUDA graph"},
        {"data", "normal random, never zeros"},
        {"rounds", "3 over all kernels, 5 samples each, 2 warm-up launches"},
        {"clocks", "never set; samples below 0.75 of the clock rate dropped and counted"},
        {"kernels", SHARDPLAN_CUDA_KERNELS ? "built with nvcc" : "built without nvcc"},
        {"notes", all_notes}}},
      {"environment", {{"before", before}, {"after", bench.monitor().state()}}},
      {"source", {{"kind", "measured"}, {"path", ""}, {"sha256", ""}}},
      {"points", list}};
  return out.dump();
}

char* copied(const std::string& text) {
  auto* out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out != nullptr) std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

}  // namespace
}  // namespace shardplan::cuda

int shardplan_measure_abi(void) { return SHARDPLAN_MEASURE_ABI; }

int shardplan_measure_run(const char* request, char** answer) {
  using namespace shardplan::cuda;
  try {
    *answer = copied(measure(read_request(request)));
    return 0;
  } catch (const DeviceMissing& e) {
    *answer = copied(e.what());
    return 3;
  } catch (const std::exception& e) {
    *answer = copied(e.what());
    return 2;
  }
}

void shardplan_measure_free(char* answer) { std::free(answer); }

const char* shardplan_measure_versions(void) {
  static const std::string text = [] {
    int runtime = 0, nccl = 0;
    cudaRuntimeGetVersion(&runtime);
    ncclGetVersion(&nccl);
    return "cudart " + std::to_string(runtime) + ", cublasLt " + std::to_string(cublasLtGetVersion()) + ", nccl " +
           std::to_string(nccl) + (SHARDPLAN_CUDA_KERNELS ? ", kernels built with nvcc" : ", built without nvcc");
  }();
  return text.c_str();
}
