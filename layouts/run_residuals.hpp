#pragma once
// Errors of runs by stack and kind: what the step's 80 % intervals stand on.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layouts/step/step.hpp"

namespace shardplan {

/// ln(predicted / measured) of a run.
struct Residual {
  double error = 0;
  Scatter scatter = Scatter::dense;
};

class Residuals {
 public:
  void add(const std::string& stack, const Residual&);
  std::size_t count(const std::string& stack, Scatter) const;
  /// The 80 % quantile of the absolute errors as a standard deviation, pulled towards a prior worth a few rows.
  double spread(const std::string& stack, Scatter) const;

 private:
  std::map<std::pair<std::string, Scatter>, std::vector<double>> by_stack_;
};

}  // namespace shardplan
