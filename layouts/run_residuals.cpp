#include "layouts/run_residuals.hpp"

#include <array>
#include <cmath>

#include "base/accuracy.hpp"

namespace shardplan {
namespace {

constexpr double kPriorRows = 4;  // weight of the prior spread below, in rows
// ln, of dense runs (between curated tables, 2-3 %, and shared clusters, 8-10 %), of runs held by the host (measured:
// 8-11 % at 80 % of them), of MoE runs (measured spread where the recipe is unknown).
constexpr std::array<double, 3> kPriorSpread = {0.06, 0.10, 0.20};

}  // namespace

void Residuals::add(const std::string& stack, const Residual& r) {
  by_stack_[{stack, r.scatter}].push_back(std::abs(r.error));
}

std::size_t Residuals::count(const std::string& stack, Scatter kind) const {
  const auto found = by_stack_.find({stack, kind});
  return found == by_stack_.end() ? 0 : found->second.size();
}

double Residuals::spread(const std::string& stack, Scatter kind) const {
  const auto found = by_stack_.find({stack, kind});
  const double z80 = 1.2816, before = kPriorSpread[static_cast<std::size_t>(kind)];
  if (found == by_stack_.end()) return before;
  const auto n = static_cast<double>(found->second.size());
  const double sd = quantile(found->second, 0.8) / z80;
  return std::sqrt((n * sd * sd + kPriorRows * before * before) / (n + kPriorRows));
}

}  // namespace shardplan
