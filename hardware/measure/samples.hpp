#pragma once
// Repeated measurements of one quantity, and the order statistics that are kept of them.
#include <vector>

namespace shardplan {

/// Seconds. Quantiles interpolate linearly between order statistics; mad = median absolute deviation from the median.
struct SampleSummary {
  int n = 0;
  double median = 0, mean = 0, p10 = 0, p90 = 0, min = 0, mad = 0;
};

/// Of at least one value.
double median(std::vector<double> values);
SampleSummary summarise(const std::vector<double>& seconds);

}  // namespace shardplan
