#include "cli/skew_text.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/number_text.hpp"

namespace shardplan {

std::string skew_curve_text(const std::vector<SkewPoint>& curve) {
  std::string out =
      "\nhow the step grows with skew: expert popularity rank^-S (S = 0: every expert equally popular), the slowest "
      "rank\n"
      "sets the time of a layer; experts and all-to-all are seconds of the busiest pipeline rank, all-to-all what "
      "stays\n"
      "visible; busiest = routed tokens over the mean\n";
  char line[200];
  std::snprintf(line, sizeof line, "%6s %10s %10s %10s %8s %10s %10s %10s %12s\n", "S", "busiest", "busiest", "step",
                "growth", "experts", "all-to-all", "rest", "memory");
  out += line;
  std::snprintf(line, sizeof line, "%6s %10s %10s\n", "", "expert", "EP rank");
  out += line;
  for (const SkewPoint& p : curve) {
    std::snprintf(line, sizeof line, "%6.2f %9sx %9sx %10s %8s %10s %10s %10s %12s%s\n", p.exponent,
                  text_of_number(p.busiest_expert, 3).c_str(), text_of_number(p.busiest_rank, 3).c_str(),
                  text_of_seconds(p.step_time_s).c_str(),
                  ("+" + text_of_percent(p.step_time_s / curve.front().step_time_s - 1)).c_str(),
                  text_of_seconds(p.experts_s).c_str(), text_of_seconds(p.exchange_s).c_str(),
                  text_of_seconds(p.rest_s).c_str(), text_of_bytes(p.memory_bytes).c_str(),
                  p.fits ? "" : " DOES NOT FIT");
    out += line;
  }
  return out;
}

nlohmann::ordered_json skew_curve_json(const std::vector<SkewPoint>& curve) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const SkewPoint& p : curve)
    out.push_back({{"zipf_exponent", p.exponent},
                   {"busiest_expert_over_mean", p.busiest_expert},
                   {"busiest_rank_over_mean", p.busiest_rank},
                   {"step_time_s", p.step_time_s},
                   {"growth", p.step_time_s / curve.front().step_time_s - 1},
                   {"experts_s", p.experts_s},
                   {"ep_exposed_s", p.exchange_s},
                   {"rest_s", p.rest_s},
                   {"memory_bytes", p.memory_bytes},
                   {"fits", p.fits}});
  return out;
}

}  // namespace shardplan
