#include "cli/explain_text.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/number_text.hpp"
#include "sim/pass_text.hpp"

namespace shardplan {
namespace {

using nlohmann::ordered_json;
constexpr std::size_t kNamed = 3;  // changes that are named
/// Gains below this share of the step are not named. What two layouts of one question share of their error cancels, so
/// it is less than the 80 % interval's half-width; repeats of one measured run differ by 0.3 % (worst 3 %).
constexpr double kTellable = 0.01;

std::size_t too_small(const ChangeReport& r) {
  return static_cast<std::size_t>(std::count_if(r.changes.begin(), r.changes.end(),
                                                [](const Change& c) { return c.gain > 0 && c.gain < kTellable; }));
}

std::size_t largest_part(const Cost& work) {
  return static_cast<std::size_t>(std::max_element(work.parts.begin(), work.parts.end()) - work.parts.begin());
}

std::string spaced(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string signed_bytes(double bytes) { return (bytes < 0 ? "-" : "+") + text_of_bytes(std::abs(bytes)); }

std::string change_line(std::size_t number, const Change& c) {
  std::string out = "  " + std::to_string(number) + ". " + c.what + ": " + text_of_seconds(c.step_time_s) + ", " +
                    text_of_percent(c.gain) + " of the step saved";
  out += "; memory " + text_of_bytes(c.memory_bytes) + " (" + signed_bytes(c.memory_change) + ")";
  if (c.hardware) out += "; other hardware";
  if (c.numerics) out += "; changes the numerics";
  if (!c.in_stack) out += "; not among what this stack runs";
  return out + "\n";
}

/// The step of ranks that all take their priced times, and of micro-batches that all have the mean mask.
double even_step_s(const StepQuestion& q) {
  StepQuestion even = q;
  even.options.spread.jitter = 0;
  even.options.spread.stragglers.clear();
  even.options.spread.documents = false;
  even.options.all_ranks = even.options.keep_trace = false;
  return simulate_step(even).step_time_s;
}

}  // namespace

std::string critical_path_text(const StepReport& s) {
  const CriticalPath& c = s.critical;
  if (c.shares.empty()) return "";
  double passes = 0;
  for (const CriticalShare& share : c.shares) passes += share.seconds;
  const CriticalShare& first = c.shares.front();
  const std::size_t part = largest_part(first.work);
  std::string out = "held by     " + spaced(pass_kind_name(first.kind)) + " passes of pipeline rank " +
                    std::to_string(first.rank) + ", " + text_of_seconds(first.seconds) + " of the " +
                    text_of_seconds(s.step_time_s) + " (largest part " + std::string(kPartNames[part]) + ", " +
                    text_of_seconds(first.work.parts[part]) + ")\n";
  out += "            critical path: passes " + text_of_seconds(passes) + ", messages " + text_of_seconds(c.sends_s) +
         ", gradient reduction " + text_of_seconds(c.reduction_s) + " (rank " + std::to_string(c.last_rank) +
         "), slowest rank " + text_of_seconds(c.slowest_rank_s) + ", optimizer " + text_of_seconds(c.optimizer_s) +
         ", parameter gather " + text_of_seconds(c.gather_s) + ", host " + text_of_seconds(c.fixed_s) + "\n\n";
  return out;
}

ordered_json critical_path_json(const StepReport& s) {
  const CriticalPath& c = s.critical;
  ordered_json out;
  out["passes"] = ordered_json::array();
  for (const CriticalShare& share : c.shares) {
    const std::size_t part = largest_part(share.work);
    out["passes"].push_back({{"pipeline_rank", share.rank},
                             {"kind", pass_kind_name(share.kind)},
                             {"count", share.passes},
                             {"seconds", share.seconds},
                             {"largest_part", std::string(kPartNames[part])},
                             {"largest_part_s", share.work.parts[part]}});
  }
  out["messages_s"] = c.sends_s;
  out["last_rank"] = c.last_rank;
  out["gradient_reduction_s"] = c.reduction_s;
  out["slowest_rank_s"] = c.slowest_rank_s;
  out["optimizer_s"] = c.optimizer_s;
  out["parameter_gather_s"] = c.gather_s;
  out["fixed_s"] = c.fixed_s;
  return out;
}

std::string replicas_text(const StepQuestion& q, const StepReport& s) {
  const ReplicaSpread& r = s.replicas;
  if (r.replicas == 0) return "";
  std::string out = "replicas    " + text_of_count(r.replicas) + " that move in step, " + text_of_count(r.replayed) +
                    " pipelines replayed; their last passes end at " + text_of_seconds(r.least) + " to " +
                    text_of_seconds(r.most) + ", mean " + text_of_seconds(r.mean) + "\n";
  const bool ranks = q.options.spread.any(), documents = documents_vary(q);
  if (ranks || documents) {
    const double alone = even_step_s(q);
    const std::string what = ranks && documents ? "jitter, stragglers and documents that differ"
                             : ranks            ? "jitter and stragglers"
                                                : "documents that differ";
    out += "            step without " + what + " " + text_of_seconds(alone) + ": they cost " +
           text_of_percent(s.step_time_s / alone - 1) + "\n";
  }
  return out + "\n";
}

void add_ranks_json(ordered_json& out, const StepQuestion& q, const StepReport& s) {
  const ReplicaSpread& r = s.replicas;
  if (q.options.spread.any() || documents_vary(q)) out["step_time_even_s"] = even_step_s(q);
  out["replicas"] = {{"count", r.replicas},
                     {"replayed", r.replayed},
                     {"least_end_s", r.least},
                     {"mean_end_s", r.mean},
                     {"most_end_s", r.most}};
  if (s.job.empty()) return;
  ordered_json ranks = ordered_json::array();
  for (const JobRank& rank : s.job)
    ranks.push_back({{"rank", rank.rank},
                     {"tp", rank.tp},
                     {"cp", rank.cp},
                     {"dp", rank.dp},
                     {"pp", rank.pipeline_rank},
                     {"busy_s", rank.busy},
                     {"idle_s", rank.idle},
                     {"last_pass_end_s", rank.last_end},
                     {"gradients_reduced_s", rank.finish}});
  out["ranks"] = std::move(ranks);
}

Explanation explain_step(const StepQuestion& q, const MemoryOptions& options, const StepReport& s,
                         const MemoryReport& memory) {
  return {try_changes(q, options, s, memory), nearest_run(q)};
}

std::string explanation_text(const Explanation& e) {
  std::string out = "\nsingle changes that would help most (same model, batch, precision and GPUs; each simulated)\n";
  std::size_t named = 0;
  for (const Change& c : e.changes.changes) {
    if (named == kNamed || c.gain < kTellable) break;
    out += change_line(++named, c);
  }
  if (named == 0) out += "  none: no change of the list that fits saves 1 % of the step\n";
  if (const std::size_t small = too_small(e.changes); named < kNamed && small > 0)
    out += "  " + std::to_string(small) +
           " more would save less than 1 % each, too little to tell: repeats of one measured run differ by 0.3 % and "
           "more\n";
  out += "  tried " + std::to_string(e.changes.tried) + " changes: " + std::to_string(e.changes.illegal) +
         " illegal, " + std::to_string(e.changes.too_large) + " do not fit\n";
  const NearestRun& n = e.nearest;
  out += "\nnearest measured run  " + n.anchor.id + ": " + n.anchor.layout + ", " + n.anchor.question.run.stack + ", " +
         n.anchor.precision + "\n  measured " + text_of_seconds(n.anchor.measured_s) + ", predicted " +
         text_of_seconds(n.predicted.step_time_s) + " (" +
         text_of_percent(n.predicted.step_time_s / n.anchor.measured_s - 1) + "); " + n.anchor.source +
         "\n  distance " + text_of_number(n.distance, 3) + ": " + kRunDistanceText + "\n";
  return out;
}

ordered_json explanation_json(const Explanation& e) {
  ordered_json out;
  out["tried"] = e.changes.tried;
  out["illegal"] = e.changes.illegal;
  out["too_large"] = e.changes.too_large;
  out["least_gain"] = kTellable;
  out["smaller_gains"] = too_small(e.changes);
  out["changes"] = ordered_json::array();
  for (const Change& c : e.changes.changes) {
    if (out["changes"].size() == kNamed || c.gain < kTellable) break;
    out["changes"].push_back({{"change", c.what},
                              {"layout", c.layout},
                              {"step_time_s", c.step_time_s},
                              {"gain", c.gain},
                              {"memory_bytes", c.memory_bytes},
                              {"memory_change_bytes", c.memory_change},
                              {"hardware", c.hardware},
                              {"numerics", c.numerics},
                              {"in_stack", c.in_stack}});
  }
  const NearestRun& n = e.nearest;
  out["nearest_run"] = {{"id", n.anchor.id},
                        {"source", n.anchor.source},
                        {"layout", n.anchor.layout},
                        {"stack", n.anchor.question.run.stack},
                        {"measured_s", n.anchor.measured_s},
                        {"predicted_s", n.predicted.step_time_s},
                        {"distance", n.distance}};
  return out;
}

}  // namespace shardplan
