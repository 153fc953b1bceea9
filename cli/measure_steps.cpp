#include "cli/measure_steps.hpp"

#include <nlohmann/json.hpp>

#include "base/field.hpp"
#include "cli/step_options.hpp"
#include "hardware/cluster.hpp"
#include "hardware/measure/calibrate.hpp"
#include "layouts/step/step.hpp"
#include "models/load_model.hpp"
#include "models/model_file.hpp"

namespace shardplan {
namespace {

constexpr const char* kStack = "cpu-executor";

std::int64_t whole(const MeasuredPoint& p, const char* name, std::int64_t least) {
  return std::max(least, static_cast<std::int64_t>(p.number(name)));
}

std::string sizes_text(std::initializer_list<std::int64_t> sizes) {
  std::string out;
  for (const std::int64_t n : sizes) out += (out.empty() ? "" : "x") + std::to_string(n);
  return out;
}

/// A model file of these layers, which have neither attention nor norms nor vocabulary.
std::string model_text(const std::string& name, const char* what, std::int64_t hidden, std::int64_t layers,
                       const nlohmann::ordered_json& ffn) {
  const nlohmann::ordered_json model = {{"schema", kModelSchema},
                                        {"name", name},
                                        {"source", what},
                                        {"hidden", hidden},
                                        {"vocab", 0},
                                        {"norms_per_layer", 0},
                                        {"attentions", {{"none", {{"kind", "none"}}}}},
                                        {"ffns", {{"block", ffn}}},
                                        {"layers", {{{"repeat", layers}, {"attention", "none"}, {"ffn", "block"}}}}};
  return model.dump(2) + "\n";
}

/// Says the question once: as a value for simulate_step(), and as the command that asks the same.
struct Asked {
  std::string model_path, layout, routing_path;  // routing_path "" = even
  std::int64_t gpus = 1, seq_len = 1, global_batch = 1;
};

SimulatedStep answer(const Asked& asked, const Pricer& pricer, const std::string& cluster_path) {
  const Model model = load_model(asked.model_path);
  StepQuestion q;
  q.model = &model;
  q.pricer = &pricer;
  q.layout = parse_layout(asked.layout, asked.gpus, "points");
  q.workload.seq_len = asked.seq_len;
  q.workload.global_batch = asked.global_batch;
  q.workload.precision = DataType::fp32;
  q.stack = load_stack(kStack, "--stack");
  SimulatedStep out;
  out.command = "shardplan simulate --model " + asked.model_path + " --cluster " + cluster_path + " --gpus " +
                std::to_string(asked.gpus) + " --layout \"" + asked.layout + "\" --seq-len " +
                std::to_string(asked.seq_len) + " --global-batch " + std::to_string(asked.global_batch) +
                " --precision fp32 --stack " + kStack;
  if (!asked.routing_path.empty()) {
    StepOptionTexts options;
    options.skew = "file:" + asked.routing_path;
    q.options.routing = read_routing(options, model, q.workload);
    out.command += " --skew " + options.skew;
  }
  out.seconds = simulate_step(q).step_time_s;
  return out;
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

SimulatedStep simulate_pipeline(const MeasuredPoint& p, const Pricer& pricer, const std::string& cluster_path) {
  const std::int64_t blocks = whole(p, "blocks", 1), hidden = whole(p, "hidden", 1), inner = whole(p, "inner", 1);
  const std::string name = "blocks-" + sizes_text({blocks, hidden, inner});
  Asked asked;
  asked.model_path = path_beside(cluster_path, name + ".json");
  write_text_file(
      asked.model_path,
      model_text(name, "the residual feed-forward blocks of `measure --backend cpu`: Y = X + max(0, X W1) W2", hidden,
                 blocks, {{"width", inner}, {"gated", false}}));
  asked.layout = layout_of(p);
  asked.gpus = whole(p, "ranks", 1) * whole(p, "replicas", 1);
  asked.seq_len = whole(p, "tokens", 1);
  asked.global_batch = whole(p, "microbatches", 1) * whole(p, "replicas", 1);
  return answer(asked, pricer, cluster_path);
}

/// Every rank has its own tokens: data- and expert-parallel over the same ranks, one micro-batch. How often each expert
/// was drawn is written beside the model.
SimulatedStep simulate_experts(const MeasuredPoint& p, const Pricer& pricer, const std::string& cluster_path) {
  const ExpertStepShape shape = expert_shape(p);
  const ExpertRouting routing(shape);
  const std::string name =
      "experts-" + sizes_text({shape.layers, shape.block.hidden, shape.block.inner, shape.experts(), shape.top_k});
  Asked asked;
  asked.model_path = path_beside(cluster_path, name + ".json");
  write_text_file(
      asked.model_path,
      model_text(
          name, "the mixture-of-experts layers of `measure --backend cpu`", shape.block.hidden, shape.layers,
          {{"experts", shape.experts()}, {"top_k", shape.top_k}, {"width", shape.block.inner}, {"gated", false}}));
  asked.routing_path = path_beside(cluster_path, name + (shape.skew > 0 ? ".skewed" : ".even") + ".json");
  write_text_file(asked.routing_path, nlohmann::ordered_json(routing.loads()).dump() + "\n");
  asked.layout = "dp" + std::to_string(shape.ranks) + " ep" + std::to_string(shape.ranks) + " zero0";
  asked.gpus = asked.global_batch = shape.ranks;
  asked.seq_len = shape.block.tokens;
  return answer(asked, pricer, cluster_path);
}

}  // namespace

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
      out.push_back(p.word("schedule") == "experts" ? simulate_experts(p, pricer, cluster_path)
                                                    : simulate_pipeline(p, pricer, cluster_path));
    }
  }
  return out;
}

}  // namespace shardplan
