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

RunSize run_size(const StepQuestion& q) {
  RunSize out;
  out.parameters = static_cast<double>(count_parameters(*q.model).total);
  out.gpus = static_cast<double>(q.layout.gpus());
  out.sequence = static_cast<double>(q.workload.seq_len);
  out.tokens_per_gpu = out.sequence * static_cast<double>(q.workload.global_batch) / out.gpus;
  out.gpu_family = family_key(q.pricer->cluster().gpu);
  out.framework = q.stack.framework;
  out.product_bytes = bytes_of(q.workload.precision);
  out.experts = q.model->has_moe();
  return out;
}

double run_distance(const RunSize& a, const RunSize& b) {
  const auto square = [](double x, double y, double weight) { return std::pow(weight * std::log(x / y), 2); };
  return std::sqrt(square(a.parameters, b.parameters, 1) + square(a.gpus, b.gpus, 0.5) +
                   square(a.tokens_per_gpu, b.tokens_per_gpu, 0.5) + square(a.sequence, b.sequence, 0.5) +
                   (a.gpu_family != b.gpu_family ? 4 : 0) + (a.product_bytes != b.product_bytes ? 1 : 0) +
                   (a.framework != b.framework ? 1 : 0) + (a.experts != b.experts ? 1 : 0));
}

NearestRun nearest_run(const StepQuestion& q) {
  NearestRun best;
  const RunSize mine = run_size(q);
  PricerShelf shelf(ConstantSet::all);
  bool first = true;
  for (Anchor& anchor : measured_anchors()) {
    const StepQuestion asked = question_of(anchor.question, shelf.of(anchor.question.run.cluster), 0);
    const double distance = run_distance(mine, run_size(asked));
    if (!first && distance >= best.distance) continue;
    first = false;
    best.distance = distance;
    best.anchor = std::move(anchor);
  }
  best.predicted = simulate_step(question_of(best.anchor.question, shelf.of(best.anchor.question.run.cluster), 0));
  return best;
}

}  // namespace shardplan
