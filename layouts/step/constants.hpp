#pragma once
// The step's fitted constants as a list: what `validate --constants` prints.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layouts/step/stack.hpp"

namespace shardplan {

struct FittedConstant {
  std::string_view kind;  // gpu | host | gpu-family | fabric | host-code | stack | release
  std::string scope;      // h100-sxm, infiniband-400, megatron-bridge
  std::string name, unit;
  std::string_view meaning;
  double value = 0;
  std::optional<double> neutral;  // what predictions use where nothing was fitted; the fit's start (message_s: 1 ms)
  double least = 0, most = 0;     // range of the fit; both 0 = not bounded
  std::optional<int> rows;        // measured runs that it was fitted on

  bool at_limit() const { return most > 0 && (value <= least * 1.0001 || value >= most * 0.9999); }
};

/// Machines first (in the order of the data file), then host codes, then stacks by name.
std::vector<FittedConstant> fitted_constants(ConstantSet);

}  // namespace shardplan
