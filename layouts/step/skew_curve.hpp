#pragma once
// How one layout's step time and memory grow with the skew of its experts' popularity.
#include <cstdint>
#include <vector>

#include "layouts/memory.hpp"
#include "layouts/step/question.hpp"

namespace shardplan {

struct SkewPoint {
  double exponent = 0;                          // popularity rank^-exponent, ranks dealt to the experts by the seed
  double busiest_expert = 1, busiest_rank = 1;  // routed tokens over the mean
  double step_time_s = 0;
  // Of the busiest pipeline rank: device seconds of the experts' products, all-to-all seconds that stay visible, and
  // what of the step the two do not explain.
  double experts_s = 0, exchange_s = 0, rest_s = 0;
  double memory_bytes = 0;  // fullest rank, device
  bool fits = false;
};

inline constexpr double kSkewExponents[] = {0, 0.25, 0.5, 0.75, 1, 1.25, 1.5};

/// The question's step at each exponent in place of its own skew; node limit, redundant copies and capacity factor
/// stay as asked. InputError where the model has no experts.
std::vector<SkewPoint> skew_curve(const StepQuestion&, const MemoryOptions&, std::uint64_t seed);

}  // namespace shardplan
