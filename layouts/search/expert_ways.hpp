#pragma once
// Ways to the experts (transport, overlap) of one layout against each other: which need no replay, and what the best
// plan's is worth.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layouts/search/search.hpp"
#include "layouts/step/layer_shelf.hpp"
#include "layouts/step/stage_cost.hpp"

namespace shardplan {

/// Prices the layers of a layout once for each way. `ask` is the search's question, with its shelf; its layout is
/// overwritten.
class ExpertWays {
 public:
  explicit ExpertWays(StepQuestion& ask) : ask_(ask) {}

  /// Without those that another beats in every block of every layer and on the host: with longer passes and the same
  /// order no replay is faster. Ties to the earlier one.
  std::vector<ExpertPath> undominated(const Layout&, const std::vector<ExpertPath>&);

 private:
  struct Known {
    std::vector<ExpertPath> asked, kept;
  };
  StepQuestion& ask_;
  std::map<const PricedLayers*, std::vector<Known>> known_;
};

/// The best plan on another way: its step, or why it has none.
struct OtherWay {
  Layout layout;
  std::optional<StepReport> step;
  std::string why;
};
/// One word changed at a time, in the order of the words.
struct WaysAnswer {
  std::vector<OtherWay> others;
  std::vector<std::string> refused;  // by the machine: "transport=deepep does not run on gb200"
};
WaysAnswer other_ways(const PlanQuestion&, const RankedPlan& best);

}  // namespace shardplan
