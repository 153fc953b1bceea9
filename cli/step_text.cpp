#include "cli/step_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/number_text.hpp"
#include "cli/output.hpp"

namespace shardplan {
namespace {

using nlohmann::ordered_json;

/// Seconds of a step by item; they sum to the step time.
std::vector<std::pair<std::string, double>> breakdown(const StepReport& s) {
  std::vector<std::pair<std::string, double>> out;
  for (std::size_t i = 0; i < kParts; ++i)
    if (static_cast<Part>(i) != Part::launch) out.emplace_back(kPartNames[i], s.busiest.parts[i]);
  out.emplace_back("launch", s.launch_s);
  out.emplace_back("blocking_sends", s.blocking_s);
  if (s.jitter_s != 0) out.emplace_back("jitter", s.jitter_s);
  if (s.documents_s != 0) out.emplace_back("longest_documents", s.documents_s);
  out.emplace_back("bubble", s.bubble_s);
  out.emplace_back("gradient_reduction", s.reduce_exposed_s);
  out.emplace_back("slowest_rank", s.slowest_rank_s);
  out.emplace_back("optimizer", s.optimizer_s);
  out.emplace_back("parameter_gather", s.gather_exposed_s);
  out.emplace_back("fixed", s.fixed_s);
  return out;
}

/// Seconds that an axis of the layout makes the busiest rank wait or communicate with nothing beside it.
std::vector<std::pair<std::string, double>> exposed(const StepReport& s) {
  return {
      {"tp", s.busiest.part(Part::tp)},  {"cp", s.busiest.part(Part::cp)},
      {"ep", s.busiest.part(Part::ep)},  {"dp", s.busiest.part(Part::fsdp) + s.reduce_exposed_s + s.gather_exposed_s},
      {"pp", s.bubble_s + s.blocking_s}, {"optimizer", s.optimizer_s}};
}

/// The same with recomputed work apart from what runs once.
std::vector<std::pair<std::string, double>> items(const StepReport& s) {
  std::vector<std::pair<std::string, double>> out = breakdown(s);
  for (std::size_t i = 0; i < kParts; ++i)
    for (auto& [name, seconds] : out)
      if (name == kPartNames[i]) seconds -= s.recompute.parts[i];
  out.emplace_back("recompute", s.recompute.device());
  return out;
}

}  // namespace

std::vector<std::pair<std::string, double>> step_differences(const StepReport& best, const StepReport& other) {
  std::map<std::string, double> before;
  for (const auto& [name, seconds] : items(best)) before[name] = seconds;
  std::vector<std::pair<std::string, double>> out;
  for (const auto& [name, seconds] : items(other)) {
    out.emplace_back(name, seconds - before[name]);
    before.erase(name);
  }
  for (const auto& [name, seconds] : before) out.emplace_back(name, -seconds);
  return out;
}

std::string differences_text(const StepReport& best, const StepReport& other) {
  constexpr std::size_t kMostNamed = 4;
  auto list = step_differences(best, other);
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  const double whole = other.step_time_s - best.step_time_s, largest = std::abs(list.front().second);
  if (!(largest > 0)) return "";
  // Whole steps of the last digit that is printed, so that the printed parts sum to the printed difference.
  const bool seconds = largest >= 0.9995;
  const double scale = seconds ? 1 : 1e3;
  const int decimals = std::clamp(2 - static_cast<int>(std::floor(std::log10(largest * scale))), 0, 6);
  const double unit = std::pow(10, -decimals) / scale;
  const auto text = [&](std::int64_t steps) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%+.*f", decimals, static_cast<double>(steps) * unit * scale);
    return std::string(buffer);
  };
  const std::int64_t all = std::llround(whole / unit);
  std::int64_t left = all;
  std::string parts;
  for (std::size_t i = 0; i < std::min(list.size(), kMostNamed); ++i) {
    if (std::abs(list[i].second) < 0.1 * largest) break;
    std::string name = list[i].first;
    std::replace(name.begin(), name.end(), '_', ' ');
    const std::int64_t steps = std::llround(list[i].second / unit);
    left -= steps;
    parts += (parts.empty() ? "" : ", ") + name + " " + text(steps);
  }
  if (left != 0) parts += ", rest " + text(left);
  return text(all) + (seconds ? " s: " : " ms: ") + parts;
}

double tokens_per_second_per_gpu(const StepQuestion& q, const StepReport& s) {
  return s.tokens / s.step_time_s / q.layout.gpus();
}

namespace {

/// FLOP/s that model FLOPs are held against, whatever the precision: the dense BF16 peak; of GPUs before BF16 (V100)
/// the FP16 one.
double mfu_peak(const Gpu& gpu) {
  double peak = gpu.peak(DataType::bf16);
  for (const DataType other : {DataType::fp16, DataType::fp32})
    if (!(peak > 0)) peak = gpu.peak(other);
  return peak;
}

}  // namespace

double mfu(const StepQuestion& q, const StepReport& s, double flops) {
  const double peak = mfu_peak(q.pricer->cluster().gpu);
  return peak > 0 ? flops / (s.step_time_s * peak * q.layout.gpus()) : 0;
}

void add_step_json(ordered_json& out, const StepQuestion& q, const StepReport& s, const MemoryReport& memory) {
  out["step_time_s"] = s.step_time_s;
  out["step_time_low_s"] = s.low_s;
  out["step_time_high_s"] = s.high_s;
  out["tokens_per_s_per_gpu"] = tokens_per_second_per_gpu(q, s);
  out["gpu_hours_per_trillion_tokens"] = 1e12 / tokens_per_second_per_gpu(q, s) / 3600;
  out["model_flops_per_s_per_gpu"] = s.model_flops / s.step_time_s / q.layout.gpus();
  out["mfu"] = mfu(q, s, s.model_flops);
  out["mfu_full_attention"] = mfu(q, s, s.model_flops_full_attention);
  out["hfu"] = mfu(q, s, s.hardware_flops);
  out["microbatches"] = s.microbatches;
  out["fits"] = memory.fits;
  out["bubble"] = {{"over_ideal", s.over_ideal}, {"over_total", s.over_total}, {"window", s.window}};
  ordered_json parts = ordered_json::object();
  for (const auto& [name, seconds] : breakdown(s)) parts[name] = seconds;
  out["breakdown_s"] = std::move(parts);
  double unexposed = s.step_time_s;
  for (const auto& [name, seconds] : exposed(s)) {
    out["exposed_s"][name] = seconds;
    unexposed -= seconds;
  }
  out["unexposed_s"] = unexposed;
  out["recompute_s"] = s.recompute.device();
  ordered_json basis = ordered_json::object();
  const double device = std::max(1e-30, s.busiest.device());
  for (std::size_t i = 0; i < kBasisNames.size(); ++i)
    if (s.busiest.basis[i] != 0) basis[std::string(kBasisNames[i])] = s.busiest.basis[i] / device;
  out["basis"] = std::move(basis);
}

void add_memory_json(ordered_json& out, const MemoryReport& memory) {
  ordered_json ranks = ordered_json::array();
  for (const RankMemory& rank : memory.ranks) {
    ordered_json one;
    one["stage"] = rank.stage;
    for (std::size_t t = 0; t < kMemoryTerms; ++t) one[std::string(kMemoryTermNames[t])] = whole_bytes(rank.terms[t]);
    one["allocated"] = whole_bytes(rank.allocated());
    one["reserved"] = whole_bytes(rank.reserved());
    one["device"] = whole_bytes(rank.device());
    one["peak_microbatches"] = rank.peak_microbatches;
    ranks.push_back(std::move(one));
  }
  out["memory"] = {{"recipe", memory.recipe},
                   {"ranks", std::move(ranks)},
                   {"peak_bytes", memory.peak_bytes()},
                   {"capacity_bytes", memory.capacity_bytes},
                   {"fits", memory.fits}};
  if (memory.shortfall)
    out["memory"]["shortfall"] = {{"rank", memory.shortfall->rank},
                                  {"term", std::string(term_name(memory.shortfall->term))},
                                  {"bytes", memory.shortfall->bytes}};
}

std::string exposed_text(const StepReport& s) {
  std::string out;
  double rest = s.step_time_s;
  for (const auto& [name, seconds] : exposed(s)) {
    rest -= seconds;
    if (seconds >= 5e-4 * s.step_time_s) out += (out.empty() ? "" : ", ") + name + " " + text_of_seconds(seconds);
  }
  return (out.empty() ? "nothing" : out) + "; compute and what is not an axis' " + text_of_seconds(rest);
}

std::string step_breakdown_text(const StepReport& s) {
  auto items = breakdown(s);
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out;
  for (const auto& [name, seconds] : items) {
    if (seconds < 5e-4 * s.step_time_s) continue;
    std::string line = "  " + name;
    for (char& c : line)
      if (c == '_') c = ' ';
    line.resize(24, ' ');
    std::string amount = text_of_seconds(seconds);
    line += std::string(amount.size() < 10 ? 10 - amount.size() : 0, ' ') + amount;
    const std::string share = text_of_percent(seconds / s.step_time_s);
    line += std::string(share.size() < 9 ? 9 - share.size() : 0, ' ') + share;
    out += line + "\n";
  }
  if (s.recompute.device() >= 5e-4 * s.step_time_s)
    out += "  of these, recomputed work takes " + text_of_seconds(s.recompute.device()) + "\n";
  return out;
}

std::string step_rate_text(const StepQuestion& q, const StepReport& s) {
  return text_of_flops_per_second(s.model_flops / s.step_time_s / q.layout.gpus()) + " per GPU, MFU " +
         text_of_percent(mfu(q, s, s.model_flops)) + " of the 16-bit peak, " +
         text_of_flops_per_second(mfu_peak(q.pricer->cluster().gpu));
}

}  // namespace shardplan
