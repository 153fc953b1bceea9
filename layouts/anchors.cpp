#include "layouts/anchors.hpp"

#include <cmath>
#include <stdexcept>

#include "base/embedded.hpp"
#include "layouts/precision.hpp"
#include "models/parameters.hpp"

namespace shardplan {
namespace {

Field anchors_file() {
  constexpr std::string_view kName = "data/measured_anchors.json";
  for (const EmbeddedFile& file : layouts_data())
    if (file.name == kName) return Field::parse(file.text, "layouts/data/measured_anchors.json");
  throw std::logic_error("layouts/data/measured_anchors.json is not embedded");
}

Anchor read_anchor(const Field& f) {
  Anchor out;
  out.id = f.at("id").text();
  out.source = f.at("source").text();
  out.measured_s = f.at("step_time_s").positive();
  out.precision = f.at("precision").text();
  out.layout = f.at("layout").text();
  MeasuredRun& run = out.question.run;
  run.id = out.id;
  run.model = model_of_run(f.at("model"));
  run.cluster = cluster_of_run(f.at("hardware"));
  run.workload.seq_len = f.at("seq_len").count(1);
  run.workload.global_batch = f.at("global_batch").count(1);
  run.workload.precision = parse_precision(out.precision, f.path() + "/precision");
  run.layout = parse_layout(out.layout, f.at("gpus").count(1), f.path() + "/layout");
  if (const auto balanced = f.find("balanced_routing")) run.balanced_routing = balanced->boolean();
  run.stack = f.at("stack").text();
  out.question.stack = load_stack(run.stack, f.path() + "/stack");
  if (const auto release = f.find("release")) set_release(out.question.stack, release->text());
  return out;
}

}  // namespace

std::vector<Anchor> measured_anchors() {
  const Field rows = anchors_file().at("runs");
  std::vector<Anchor> out;
  for (std::size_t i = 0; i < rows.size(); ++i) out.push_back(read_anchor(rows.item(i)));
  return out;
}

RunSize run_size(const Model& model, const Cluster& cluster, const Workload& w, std::int64_t gpus) {
  RunSize out;
  out.parameters = static_cast<double>(count_parameters(model).total);
  out.gpus = static_cast<double>(gpus);
  out.tokens_per_gpu = static_cast<double>(w.seq_len) * static_cast<double>(w.global_batch) / out.gpus;
  out.gpu_family = family_key(cluster.gpu);
  out.experts = model.has_moe();
  return out;
}

double run_distance(const RunSize& a, const RunSize& b) {
  const auto square = [](double x, double y) { return std::pow(std::log(x / y), 2); };
  return std::sqrt(square(a.parameters, b.parameters) + square(a.gpus, b.gpus) +
                   square(a.tokens_per_gpu, b.tokens_per_gpu) + (a.gpu_family != b.gpu_family ? 1 : 0) +
                   (a.experts != b.experts ? 1 : 0));
}

NearestRun nearest_run(const StepQuestion& q) {
  NearestRun best;
  const RunSize mine = run_size(*q.model, q.pricer->cluster(), q.workload, q.layout.gpus());
  bool first = true;
  for (Anchor& anchor : measured_anchors()) {
    const MeasuredRun& run = anchor.question.run;
    const double distance = run_distance(mine, run_size(run.model, run.cluster, run.workload, run.layout.gpus()));
    if (!first && distance >= best.distance) continue;
    first = false;
    best.distance = distance;
    best.anchor = std::move(anchor);
  }
  PricerShelf shelf(ConstantSet::all);
  const StepQuestion ask = question_of(best.anchor.question, shelf.of(best.anchor.question.run.cluster), 0);
  best.predicted = simulate_step(ask);
  return best;
}

}  // namespace shardplan
