#pragma once
// A minimum without derivatives, for fits of a dozen constants: the losses here have corners (least of several
// protocols).
#include <functional>
#include <vector>

namespace shardplan {

/// Least of `f` from `x` on by steps along each axis, longer after a success and halved after a failure (compass
/// search; Kolda, Lewis and Torczon, SIAM Review 45, 2003). Deterministic; finds a local minimum.
std::vector<double> compass_search(std::vector<double> x, const std::function<double(const std::vector<double>&)>& f,
                                   int rounds);

}  // namespace shardplan
