#pragma once
// The best layouts of a question: candidates, memory, a lower bound, and the same replay that `simulate` uses.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layouts/memory.hpp"
#include "layouts/search/candidates.hpp"
#include "layouts/step/step.hpp"

namespace shardplan {

enum class Objective { step_time, memory, cost };

struct PlanQuestion {
  const Model* model = nullptr;
  const Pricer* pricer = nullptr;
  SearchSpace space;
  Workload workload;
  Stack stack;
  StepOptions options;
  MemoryOptions memory;
  Objective objective = Objective::step_time;
  int top = 10;
  double headroom = 0;      // share of the GPU's memory that a plan must leave free
  bool exhaustive = false;  // replay every layout that fits: the bound prunes nothing
  std::function<void(std::int64_t done, std::int64_t all)> progress;  // may be empty
};

struct RankedPlan {
  Layout layout;
  StepReport step;
  MemoryReport memory;
};

struct PlanAnswer {
  std::int64_t considered = 0;  // layouts enumerated, legal or not, each recompute choice counted once it was looked at
  std::int64_t refused = 0;     // illegal for the model, the batch or the schedule
  std::int64_t infeasible = 0;  // do not fit in memory, whatever is recomputed
  std::int64_t pruned = 0;      // cannot beat the plans found: lower bound
  std::int64_t replayed = 0;
  std::map<std::string, std::int64_t> rejected;  // reason -> count
  std::vector<RankedPlan> plans;                 // best first
  struct Shortfall {
    Layout layout;
    int rank = 0;
    std::string term;
    double bytes = 0;
  };
  std::optional<Shortfall> shortfall;  // the smallest, where nothing fits
};

/// Answers do not depend on the number of threads.
PlanAnswer search_plans(const PlanQuestion&);

}  // namespace shardplan
