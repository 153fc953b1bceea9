#include "hardware/measure/calibrate.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/calibrate_kernels.hpp"
#include "hardware/cluster.hpp"
#include "hardware/measure/measured_rows.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

using nlohmann::ordered_json;

int whole(const MeasuredPoint& p, const char* name) { return static_cast<int>(p.number(name)); }

double predicted_pipeline(const MeasuredPoint& p, const HostModel& model, const BlockShape& shape) {
  const ScheduleRow& row = find_schedule(p.word("schedule"));
  ScheduleQuestion q;
  q.ranks = whole(p, "ranks");
  q.microbatches = whole(p, "microbatches");
  q.chunks = std::max(1, whole(p, "chunks"));
  if (const auto refusal = row.refuse(q)) throw InputError("points", *refusal);
  const Order order = row.order(q);
  const int blocks_per_slot = whole(p, "blocks") / order.stages();
  const double pipeline = replay(order, model.pass_times(order, shape, blocks_per_slot)).makespan;
  const int replicas = std::max(1, whole(p, "replicas"));
  if (replicas == 1) return pipeline;
  // The ring starts where the slowest rank ends: exact for one stage, an upper bound where stages end apart.
  return pipeline + model.all_reduce(replicas, shape.weights() * blocks_per_slot * (order.stages() / order.ranks));
}

double predicted_experts(const MeasuredPoint& p, const HostModel& model, const BlockShape& block) {
  ExpertStepShape shape;
  shape.ranks = whole(p, "ranks");
  shape.experts_per_rank = whole(p, "experts_per_rank");
  shape.top_k = whole(p, "top_k");
  shape.layers = whole(p, "layers");
  shape.block = block;
  shape.skew = p.number("skew");
  shape.seed = static_cast<std::uint64_t>(p.number("seed"));
  return exchange_makespan(model.expert_phases(shape));
}

std::string step_name(const MeasuredPoint& p) {
  std::string name = p.word("schedule") + ", " + std::to_string(whole(p, "ranks")) + " ranks";
  if (p.number("microbatches") > 0) name += ", " + std::to_string(whole(p, "microbatches")) + " micro-batches";
  if (p.number("replicas") > 1) name += ", " + std::to_string(whole(p, "replicas")) + " replicas";
  if (p.number("experts_per_rank") > 0) name += ", " + std::to_string(whole(p, "experts_per_rank")) + " experts a rank";
  return name;
}

/// The file behind a cluster's name, as it was written.
ordered_json cluster_document(const std::string& name) {
  load_cluster(name);  // its errors are the right ones
  for (const char* folder : {"data/clusters/", "data/gpus/"}) {
    for (const EmbeddedFile& file : hardware_data()) {
      if (file.name == std::string(folder) + name + ".json") return ordered_json::parse(file.text);
    }
  }
  return ordered_json::parse(read_text_file(name));
}

/// The member that holds the GPU: the document itself where it is a GPU file. A GPU given by name is written out.
ordered_json& gpu_of(ordered_json& document) {
  if (!document.contains("gpu")) return document;
  if (document["gpu"].is_string()) {
    ordered_json gpu = cluster_document(document["gpu"].get<std::string>());
    gpu.erase("reference");
    document["gpu"] = gpu;
  }
  return document["gpu"];
}

ordered_json measured_figure(double value, const std::string& source) { return {{"value", value}, {"source", source}}; }

std::string source_of(const MeasuringFile& file) {
  const auto cpu = file.device.find("cpu");
  const std::string device = cpu != file.device.end()    ? cpu->second
                             : file.device.count("name") ? file.device.at("name")
                                                         : "unknown device";
  return "measured on " + device + ", file sha256 " + file.source_sha256.substr(0, 16);
}

/// One-way bytes/s of the largest message.
double message_rate(const MeasuringFile& file) {
  double bytes = 0, rate = 0;
  for (const MeasuredPoint& p : file.points) {
    if (p.kernel != "send-recv" || p.bytes <= bytes) continue;
    bytes = p.bytes;
    rate = p.bytes / p.time.median;
  }
  return rate;
}

void use_host_file(const MeasuringFile& file, ordered_json& document, Calibration& out) {
  const HostModel model(file);
  ordered_json& gpu = gpu_of(document);
  const std::string source = source_of(file);
  for (const char* type : {"fp32", "bf16", "fp16", "tf32"})
    gpu["peak"][type] = measured_figure(model.best_gemm_rate(), source + ": the fastest product, FP32 on one core");
  gpu["memory_bandwidth"] = measured_figure(model.copy_rate(), source + ": the largest copy, read + written");
  if (const double rate = message_rate(file); rate > 0) {
    for (const char* key : {"nvlink_bandwidth", "pair_bandwidth"})
      gpu[key] = measured_figure(rate, source + ": the largest message between two ranks, copied in and out");
  }
  for (const auto& table : model.errors()) out.tables.push_back(table);
  for (const StepComparison& step : compare_steps(file, model)) out.steps.push_back(step);
}

/// Kernel tables of all rows; the GPU file names them. Rates of the GPU are those of the file as it is now, so that a
/// host's tables stand on its measured peak.
void make_tables(const std::vector<KernelRow>& rows, const std::string& path, ordered_json& document,
                 Calibration& out) {
  const Cluster now = read_cluster(document.dump(), "the calibrated cluster");
  const KernelTables tables = calibrate_kernels(rows, now.gpu, {5, ""});
  out.kernels_text = kernel_tables_text(tables);
  gpu_of(document)["calibration"] = path;
  for (const KernelTable& table : tables.tables) {
    if (table.source.find("measured") != 0 || table.left_out.n == 0) continue;
    out.tables.push_back({std::string(kKernelClassNames[static_cast<std::size_t>(table.kernel)]) + " " +
                              (table.variant.empty() ? std::string(data_type_name(table.type)) : table.variant) +
                              " table",
                          static_cast<std::size_t>(table.left_out.n), table.left_out.mape});
  }
}

}  // namespace

std::vector<StepComparison> compare_steps(const MeasuringFile& file, const HostModel& model) {
  std::vector<StepComparison> out;
  for (const MeasuredPoint& p : file.points) {
    if (p.kernel != "step") continue;
    const BlockShape shape{static_cast<std::int64_t>(p.number("tokens")), static_cast<std::int64_t>(p.number("hidden")),
                           static_cast<std::int64_t>(p.number("inner"))};
    const double predicted =
        p.word("schedule") == "experts" ? predicted_experts(p, model, shape) : predicted_pipeline(p, model, shape);
    out.push_back({step_name(p), p.time.median, predicted});
  }
  return out;
}

Calibration calibrate_cluster(const std::vector<MeasuringFile>& files, const std::string& cluster,
                              const std::string& kernels_path) {
  Calibration out;
  ordered_json document = cluster_document(cluster);
  const Cluster before = load_cluster(cluster);
  std::vector<KernelRow> rows;
  for (const MeasuringFile& file : files) {
    const auto more = measured_kernel_rows(file, before.gpu);
    rows.insert(rows.end(), more.begin(), more.end());
    const auto name = file.device.find("name");
    if (name != file.device.end() && name->second == "host-cpu") {
      use_host_file(file, document, out);
      continue;
    }
    const auto compared = compare_kernels(file, before);
    out.kernels.insert(out.kernels.end(), compared.begin(), compared.end());
    if (compared.empty())
      out.notes.push_back("nothing is calibrated by points of a " + file.source_kind + " file without shapes");
  }
  if (!rows.empty() && !kernels_path.empty()) make_tables(rows, kernels_path, document, out);
  out.cluster = document.dump(2) + "\n";
  return out;
}

}  // namespace shardplan
