#include "cli/measure_steps.hpp"

#include <nlohmann/json.hpp>

#include "base/field.hpp"
#include "hardware/cluster.hpp"
#include "layouts/step/step.hpp"
#include "models/load_model.hpp"
#include "models/model_file.hpp"

namespace shardplan {
namespace {

constexpr const char* kStack = "cpu-executor";

std::int64_t whole(const MeasuredPoint& p, const char* name, std::int64_t least) {
  return std::max(least, static_cast<std::int64_t>(p.number(name)));
}

/// The executor all-reduces gradients of whole replicas: no ZeRO.
std::string layout_of(const MeasuredPoint& p) {
  std::string text;
  const auto word = [&](const std::string& w) { text += (text.empty() ? "" : " ") + w; };
  if (whole(p, "ranks", 1) > 1) word("pp" + std::to_string(whole(p, "ranks", 1)));
  if (whole(p, "replicas", 1) > 1) word("dp" + std::to_string(whole(p, "replicas", 1)));
  if (whole(p, "chunks", 1) > 1) word("vpp" + std::to_string(whole(p, "chunks", 1)));
  word("zero0");
  word("schedule=" + p.word("schedule"));
  return text;
}

SimulatedStep simulate(const MeasuredPoint& p, const Pricer& pricer, const std::string& cluster_path) {
  const std::int64_t blocks = whole(p, "blocks", 1), hidden = whole(p, "hidden", 1), inner = whole(p, "inner", 1);
  const std::string model_path =
      path_beside(cluster_path, "blocks-" + std::to_string(blocks) + "x" + std::to_string(hidden) + "x" +
                                    std::to_string(inner) + ".json");
  write_text_file(model_path, executor_model_text(blocks, hidden, inner));
  const Model model = load_model(model_path);
  const std::int64_t gpus = whole(p, "ranks", 1) * whole(p, "replicas", 1);
  StepQuestion q;
  q.model = &model;
  q.pricer = &pricer;
  q.layout = parse_layout(layout_of(p), gpus, "points");
  q.workload.seq_len = whole(p, "tokens", 1);
  q.workload.global_batch = whole(p, "microbatches", 1) * whole(p, "replicas", 1);
  q.workload.precision = DataType::fp32;
  q.stack = load_stack(kStack, "--stack");
  SimulatedStep out;
  out.seconds = simulate_step(q).step_time_s;
  out.command = "shardplan simulate --model " + model_path + " --cluster " + cluster_path + " --gpus " +
                std::to_string(gpus) + " --layout \"" + layout_of(p) + "\" --seq-len " +
                std::to_string(q.workload.seq_len) + " --global-batch " + std::to_string(q.workload.global_batch) +
                " --precision fp32 --stack " + kStack;
  return out;
}

}  // namespace

std::string executor_model_text(std::int64_t blocks, std::int64_t hidden, std::int64_t inner) {
  const nlohmann::ordered_json model = {
      {"schema", kModelSchema},
      {"name", "blocks-" + std::to_string(blocks) + "x" + std::to_string(hidden) + "x" + std::to_string(inner)},
      {"source", "the residual feed-forward blocks of `measure --backend cpu`: Y = X + max(0, X W1) W2"},
      {"hidden", hidden},
      {"vocab", 0},
      {"norms_per_layer", 0},
      {"attentions", {{"none", {{"kind", "none"}}}}},
      {"ffns", {{"block", {{"width", inner}, {"gated", false}}}}},
      {"layers", {{{"repeat", blocks}, {"attention", "none"}, {"ffn", "block"}}}}};
  return model.dump(2) + "\n";
}

std::string path_beside(const std::string& path, const std::string& ending) {
  const std::string end = ".json";
  return (path.ends_with(end) ? path.substr(0, path.size() - end.size()) : path) + "." + ending;
}

std::vector<SimulatedStep> simulate_measured_steps(const std::vector<MeasuringFile>& files,
                                                   const std::string& cluster_path) {
  const Pricer pricer(load_cluster(cluster_path), Rates::calibrated, Fidelity::table);
  std::vector<SimulatedStep> out;
  for (const MeasuringFile& file : files) {
    const auto name = file.device.find("name");
    if (name == file.device.end() || name->second != "host-cpu") continue;
    for (const MeasuredPoint& p : file.points) {
      if (p.kernel != "step") continue;
      out.push_back(p.word("schedule") == "experts" ? SimulatedStep{} : simulate(p, pricer, cluster_path));
    }
  }
  return out;
}

}  // namespace shardplan
