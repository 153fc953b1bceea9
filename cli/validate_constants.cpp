// shardplan validate --constants: every fitted constant of the step.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/number_text.hpp"
#include "cli/output.hpp"
#include "cli/validate.hpp"
#include "layouts/step/constants.hpp"

namespace shardplan {

namespace {

std::string value_text(const FittedConstant& c, double value) {
  return c.unit == "s" ? text_of_seconds(value) : text_of_number(value, 4);
}

void print_text(const std::vector<FittedConstant>& constants, bool leave_out) {
  std::printf("The step's fitted constants (fitted on %s). Everything else is data with a source or a formula.\n",
              leave_out ? "the half of the questions that --leave-out does not score" : "all questions");
  std::printf(
      "neutral = what is used where nothing was fitted, and where the fit starts (message_s starts at 1 ms);\n"
      "rows = measured runs that the constant was fitted on; * = at the end of its allowed range.\n\n");
  std::printf("%-11s %-25s %-18s %-4s %10s %10s %6s  %s\n", "kind", "scope", "name", "unit", "value", "neutral", "rows",
              "what it is");
  for (const FittedConstant& c : constants) {
    std::printf("%-11s %-25s %-18s %-4s %9s%s %10s %6s  %s\n", std::string(c.kind).c_str(), c.scope.c_str(),
                c.name.c_str(), c.unit.c_str(), value_text(c, c.value).c_str(), c.at_limit() ? "*" : " ",
                c.neutral ? value_text(c, *c.neutral).c_str() : "-", c.rows ? std::to_string(*c.rows).c_str() : "-",
                std::string(c.meaning).c_str());
  }
  std::printf("\n%zu constants\n", constants.size());
}

}  // namespace

void print_step_constants(bool leave_out, bool json) {
  const auto constants = fitted_constants(leave_out ? ConstantSet::half : ConstantSet::all);
  if (!json) return print_text(constants, leave_out);
  nlohmann::ordered_json out{{"leave_out", leave_out}, {"constants", nlohmann::ordered_json::array()}};
  for (const FittedConstant& c : constants) {
    nlohmann::ordered_json one{
        {"kind", std::string(c.kind)}, {"scope", c.scope}, {"name", c.name}, {"unit", c.unit}, {"value", c.value},
        {"neutral", nullptr},          {"rows", nullptr}};
    if (c.neutral) one["neutral"] = *c.neutral;
    if (c.rows) one["rows"] = *c.rows;
    if (c.most > 0) one["range"] = {c.least, c.most}, one["at_limit"] = c.at_limit();
    one["meaning"] = std::string(c.meaning);
    out["constants"].push_back(std::move(one));
  }
  print_json(out);
}

}  // namespace shardplan
