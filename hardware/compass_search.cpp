#include "hardware/compass_search.hpp"

#include <algorithm>

namespace shardplan {

std::vector<double> compass_search(std::vector<double> x, const std::function<double(const std::vector<double>&)>& f,
                                   int rounds) {
  std::vector<double> step(x.size(), 0.3);
  double best = f(x);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      bool moved = false;
      for (const double way : {1.0, -1.0}) {
        const double before = x[i];
        x[i] = before + way * step[i];
        if (const double value = f(x); value < best) {
          best = value;
          moved = true;
          break;
        }
        x[i] = before;
      }
      step[i] *= moved ? 1.5 : 0.5;
      step[i] = std::clamp(step[i], 1e-4, 1.0);
    }
  }
  return x;
}

}  // namespace shardplan
