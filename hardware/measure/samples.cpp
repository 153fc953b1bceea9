#include "hardware/measure/samples.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {
namespace {

double sorted_quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return sorted_quantile(values, 0.5);
}

SampleSummary summarise(const std::vector<double>& seconds) {
  SampleSummary s;
  s.n = static_cast<int>(seconds.size());
  if (seconds.empty()) return s;
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  s.min = sorted.front();
  for (const double x : sorted) s.mean += x / static_cast<double>(sorted.size());
  s.median = sorted_quantile(sorted, 0.5);
  s.p10 = sorted_quantile(sorted, 0.1);
  s.p90 = sorted_quantile(sorted, 0.9);
  std::vector<double> away;
  away.reserve(sorted.size());
  for (const double x : sorted) away.push_back(std::abs(x - s.median));
  s.mad = median(std::move(away));
  return s;
}

}  // namespace shardplan
