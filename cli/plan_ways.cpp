#include "cli/plan_ways.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number_text.hpp"
#include "cli/step_text.hpp"

namespace shardplan {
namespace {

using nlohmann::ordered_json;

/// The value of a word, "transport" of "tp2 transport=deepep"; `silent` where the text leaves it out.
std::string value_in(const std::string& layout, const std::string& word, const std::string& silent) {
  const auto at = (" " + layout).find(" " + word + "=");
  if (at == std::string::npos) return silent;
  const auto from = at + word.size() + 1;
  return layout.substr(from, layout.find(' ', from) - from);
}
std::string transport_of(const Layout& l) { return value_in(layout_text(l), "transport", "nccl"); }
std::string overlap_of(const Layout& l) { return value_in(layout_text(l), "ep-overlap", "none"); }

}  // namespace

std::string ways_text(const WaysAnswer& w, const RankedPlan& best) {
  if (w.others.empty() && w.refused.empty()) return "";
  const std::string transport = transport_of(best.layout), overlap = overlap_of(best.layout);
  std::string out =
      "\nthe best plan's way to its experts is transport=" + transport + " ep-overlap=" + overlap + "; with another\n";
  for (const OtherWay& other : w.others) {
    const std::string word = transport_of(other.layout) == transport ? "ep-overlap=" + overlap_of(other.layout)
                                                                     : "transport=" + transport_of(other.layout);
    std::string line = other.why;
    if (other.step) {
      const double slower = other.step->step_time_s / best.step.step_time_s - 1;
      const std::string why = differences_text(best.step, *other.step);
      line = text_of_seconds(other.step->step_time_s) + "  " + (slower < 0 ? "" : "+") + text_of_percent(slower) +
             (why.empty() ? "" : ", " + why);
    }
    out += "  " + word + std::string(word.size() < 20 ? 20 - word.size() : 0, ' ') + "  " + line + "\n";
  }
  for (const std::string& why : w.refused) out += "  " + why + "\n";
  return out;
}

ordered_json ways_json(const WaysAnswer& w, const RankedPlan& best) {
  ordered_json out = ordered_json::array();
  for (const OtherWay& other : w.others) {
    ordered_json one = {{"layout", layout_text(other.layout)},
                        {"transport", transport_of(other.layout)},
                        {"ep_overlap", overlap_of(other.layout)}};
    if (other.step) {
      one["step_time_s"] = other.step->step_time_s;
      one["against_best"] = {{"step_time_s", other.step->step_time_s - best.step.step_time_s},
                             {"items_s", ordered_json::object()}};
      for (const auto& [name, seconds] : step_differences(best.step, *other.step))
        one["against_best"]["items_s"][name] = seconds;
    } else {
      one["refused"] = other.why;
    }
    out.push_back(std::move(one));
  }
  for (const std::string& why : w.refused) out.push_back({{"refused", why}});
  return out;
}

}  // namespace shardplan
