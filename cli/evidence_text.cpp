#include "cli/evidence_text.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/number_text.hpp"

namespace shardplan {
namespace {

/// "107 of h100-sxm (bf16)", "none of mi300x (bf16)".
std::string row_text(const EvidenceRow& r) {
  std::string what = r.constant;
  if (what.rfind("attention_", 0) == 0) what = what.substr(10) + " attention";
  if (what == "network_factor") what = "between nodes";
  if (what == "domain_factor") what = "in one node";
  const std::string count = r.runs > 0 ? std::to_string(r.runs) : "none";
  if (r.constant == "stack") return count + " of the stack " + r.scope;
  return count + " of " + r.scope + " (" + what + ")";
}

std::string joined(const std::vector<std::string>& list, const char* last) {
  std::string out;
  for (std::size_t i = 0; i < list.size(); ++i) out += (i == 0 ? "" : i + 1 == list.size() ? last : ", ") + list[i];
  return out;
}

}  // namespace

std::string evidence_text(const Evidence& e) {
  if (e.rows.empty()) return "";
  std::vector<std::string> rows;
  for (const EvidenceRow& r : e.rows) rows.push_back(row_text(r));
  std::string out = "stands on measured runs: " + joined(rows, ", ") + "\n";
  constexpr double kZ80 = 1.2816;
  const double factor = std::exp(kZ80 * e.left_out_sd);
  const std::string within = text_of_percent(factor - 1) + " above and " + text_of_percent(1 - 1 / factor) + " below";
  if (e.left_out_measured) {
    out += "80 % interval: the stack's runs (" + e.kind + ") left out of the fit lie within " + within;
  } else {
    out += "80 % interval: assumed, " + within + ": no run of this stack (" + e.kind + ") was measured";
    if (!e.measured_stacks.empty()) out += "; --stack " + joined(e.measured_stacks, " or ") + " has such runs";
  }
  if (!e.wider_for.empty()) out += "; wider for " + joined(e.wider_for, " and ");
  return out + "\n";
}

nlohmann::ordered_json evidence_json(const Evidence& e) {
  nlohmann::ordered_json out;
  out["runs"] = nlohmann::ordered_json::array();
  for (const EvidenceRow& r : e.rows)
    out["runs"].push_back({{"scope", r.scope}, {"constant", r.constant}, {"runs", r.runs}});
  out["kind"] = e.kind;
  out["left_out_sd"] = e.left_out_sd;
  out["left_out_measured"] = e.left_out_measured;
  out["measured_stacks"] = e.measured_stacks;
  out["wider_for"] = e.wider_for;
  return out;
}

}  // namespace shardplan
