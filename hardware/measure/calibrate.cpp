#include "hardware/measure/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/calibrate_collectives.hpp"
#include "hardware/calibrate_kernels.hpp"
#include "hardware/cluster.hpp"
#include "hardware/collective_tables.hpp"
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

double predicted_experts(const MeasuredPoint& p, const HostModel& model) {
  const ExpertStepShape shape = expert_shape(p);
  const double routers = model.all_reduce(shape.ranks, shape.layers * shape.block.hidden * shape.experts());
  return exchange_makespan(model.expert_phases(shape)) + routers;
}

std::string step_name(const MeasuredPoint& p) {
  std::string name = p.word("schedule") + ", " + std::to_string(whole(p, "ranks")) + " ranks";
  if (p.number("microbatches") > 0) name += ", " + std::to_string(whole(p, "microbatches")) + " micro-batches";
  if (p.number("replicas") > 1) name += ", " + std::to_string(whole(p, "replicas")) + " replicas";
  if (p.number("experts_per_rank") > 0)
    name += std::string(", ") + (p.number("skew") > 0 ? "skewed" : "even") + " routing to " +
            std::to_string(whole(p, "ranks") * whole(p, "experts_per_rank"));
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

/// Tables that the cluster stood on until now: of a file that a calibration wrote, else the built-in ones that the fit
/// starts from.
struct OldTables {
  std::optional<KernelTables> kernels;
  std::optional<CollectiveTable> collectives;
};
OldTables tables_until_now(const Gpu& gpu) {
  OldTables out;
  if (!gpu.calibration.ends_with(".json")) return out;
  out.kernels = parse_kernel_tables(read_text_file(gpu.calibration), gpu.calibration);
  if (const auto own = Field::read(gpu.calibration).find("collectives")) out.collectives = read_collective_table(*own);
  return out;
}

/// Kernel tables of all rows, backward products by what was measured of them. Rates of the GPU are those of the file as
/// it is now, so that a host's tables stand on its measured peak.
KernelTables kernel_tables(const std::vector<MeasuringFile>& files, const std::vector<KernelRow>& rows, const Gpu& gpu,
                           const OldTables& old, Calibration& out) {
  if (rows.empty() && old.kernels) return *old.kernels;
  KernelTables tables = calibrate_kernels(rows, gpu, {5, ""});
  for (const MeasuringFile& file : files) {
    for (const auto& factor : measured_pass_factors(file, gpu, tables)) {
      std::erase_if(tables.passes, [&](const auto& known) { return known.pass == factor.pass; });
      tables.passes.push_back(factor);
    }
  }
  for (const KernelTable& table : tables.tables) {
    if (table.source.find("measured") != 0 || table.left_out.n == 0) continue;
    out.tables.push_back({std::string(kKernelClassNames[static_cast<std::size_t>(table.kernel)]) + " " +
                              (table.variant.empty() ? std::string(data_type_name(table.type)) : table.variant) +
                              " table",
                          static_cast<std::size_t>(table.left_out.n), table.left_out.mape});
  }
  return tables;
}

/// Mean error of the inner points of every curve, each left out in turn.
HostModel::TableError point_left_out(const CollectiveTable& table, const Cluster& cluster) {
  HostModel::TableError out{"collectives table", 0, 0};
  for (std::size_t c = 0; c < table.curves.size(); ++c) {
    const MeasuredCurve& curve = table.curves[c];
    const auto first = std::find_if(curve.seconds.begin(), curve.seconds.end(), [](double s) { return s > 0; });
    for (auto i = static_cast<std::size_t>(first - curve.seconds.begin()) + 1; i + 1 < curve.seconds.size(); ++i) {
      if (!(curve.seconds[i] > 0)) continue;
      CollectiveTable without = table;
      without.curves[c].seconds[i] = 0;
      const NetworkModel model(
          cluster, Rates::calibrated, Fidelity::table,
          std::make_shared<const CollectiveCalibration>(with_table(*collective_calibration(), std::move(without))));
      const double bytes = kFirstCurveBytes * std::exp2(static_cast<double>(i));
      const GroupShape shape{curve.ranks, curve.ranks, 1};
      const double seconds = model.collective(curve.op, bytes, shape, example_of(curve.type)).price.seconds;
      out.leave_one_out += std::abs(seconds / curve.seconds[i] - 1);
      ++out.points;
    }
  }
  if (out.points > 0) out.leave_one_out /= static_cast<double>(out.points);
  return out;
}

/// The table of this machine's own collectives.
CollectiveTable collective_table(const std::vector<CollectiveRow>& rows, const Cluster& now, Calibration& out) {
  const auto known = collective_calibration();
  CollectiveTable table = *table_for(*known, now).table;
  table.gpu = now.gpu.name;
  table.serves.clear();
  table.curves.clear();
  table.source = "measured";
  table.fabric = std::string(fabric_name(now.node.fabric));
  table.link_bytes_per_second = link_of(now);
  if (now.node.fabric == IntraFabric::shared_memory) {
    table.family = table.generation = "cpu";
    table.domain.nvls.reset();
  }
  const CollectiveCalibration prior = with_table(*known, table);
  table = *calibrate_collectives(rows, prior).find(now.gpu.name);
  if (const auto error = point_left_out(table, now); error.points > 0) out.tables.push_back(error);
  return table;
}

/// One file of kernel tables and collectives; the GPU names it.
void make_tables(const std::vector<MeasuringFile>& files, const std::vector<KernelRow>& rows,
                 const std::vector<CollectiveRow>& exchanged, const OldTables& old, const std::string& name,
                 ordered_json& document, Calibration& out) {
  const Cluster now = read_cluster(document.dump(), "the calibrated cluster");
  std::string text = kernel_tables_text(kernel_tables(files, rows, now.gpu, old, out));
  std::optional<CollectiveTable> collectives = old.collectives;
  if (!exchanged.empty()) collectives = collective_table(exchanged, now, out);
  if (collectives) {
    text.resize(text.find_last_of('}'));
    text.erase(text.find_last_not_of('\n') + 1);
    text += ",\n  \"collectives\":\n" + json_of(*collectives) + "}\n";
  }
  out.tables_text = std::move(text);
  gpu_of(document)["calibration"] = name;
}

}  // namespace

ExpertStepShape expert_shape(const MeasuredPoint& p) {
  ExpertStepShape shape;
  shape.ranks = whole(p, "ranks");
  shape.experts_per_rank = whole(p, "experts_per_rank");
  shape.top_k = whole(p, "top_k");
  shape.layers = whole(p, "layers");
  shape.block = {static_cast<std::int64_t>(p.number("tokens")), static_cast<std::int64_t>(p.number("hidden")),
                 static_cast<std::int64_t>(p.number("inner"))};
  shape.skew = p.number("skew");
  shape.seed = static_cast<std::uint64_t>(p.number("seed"));
  return shape;
}

std::vector<StepComparison> compare_steps(const MeasuringFile& file, const HostModel& model) {
  std::vector<StepComparison> out;
  for (const MeasuredPoint& p : file.points) {
    if (p.kernel != "step") continue;
    const BlockShape shape{static_cast<std::int64_t>(p.number("tokens")), static_cast<std::int64_t>(p.number("hidden")),
                           static_cast<std::int64_t>(p.number("inner"))};
    const double predicted =
        p.word("schedule") == "experts" ? predicted_experts(p, model) : predicted_pipeline(p, model, shape);
    out.push_back({step_name(p), p.time.median, predicted});
  }
  return out;
}

Calibration calibrate_cluster(const std::vector<MeasuringFile>& files, const std::string& cluster,
                              const std::string& tables_name) {
  Calibration out;
  ordered_json document = cluster_document(cluster);
  const Cluster before = load_cluster(cluster);
  // A file that the cluster named until now is seen from its own folder; the new cluster may lie in another.
  if (before.gpu.calibration.ends_with(".json"))
    gpu_of(document)["calibration"] = std::filesystem::absolute(before.gpu.calibration).string();
  std::vector<KernelRow> rows;
  std::vector<CollectiveRow> collectives;
  for (const MeasuringFile& file : files) {
    const auto more = measured_kernel_rows(file, before.gpu);
    rows.insert(rows.end(), more.begin(), more.end());
    const auto exchanged = measured_collective_rows(file, before.gpu);
    collectives.insert(collectives.end(), exchanged.begin(), exchanged.end());
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
  if (!collectives.empty() && gpu_of_alias(before.gpu.name).empty()) {
    out.notes.push_back(std::to_string(collectives.size()) + " collective points are not used: " + before.gpu.name +
                        " is no GPU that this program has a file for");
    collectives.clear();
  }
  if (!(rows.empty() && collectives.empty()) && !tables_name.empty())
    make_tables(files, rows, collectives, tables_until_now(before.gpu), tables_name, document, out);
  out.cluster = document.dump(2) + "\n";
  return out;
}

}  // namespace shardplan
