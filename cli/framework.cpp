#include "cli/framework.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "sim/framework_notes.hpp"

namespace shardplan {
namespace {

/// Those with notes on schedules, and nanotron, of which no refusal is known.
std::vector<std::string> frameworks() {
  const auto names = framework_names();
  std::vector<std::string> out(names.begin(), names.end());
  if (std::find(out.begin(), out.end(), "nanotron") == out.end()) out.emplace_back("nanotron");
  return out;
}

}  // namespace

void add_framework_option(CLI::App& verb, std::string& framework) {
  std::string list;
  for (const std::string& name : frameworks()) list += (list.empty() ? "" : "|") + name;
  verb.add_option("--for", framework, "only what this framework takes as it is: " + list);
}

void check_framework_name(const std::string& framework) {
  if (framework.empty()) return;
  const std::vector<std::string> known = frameworks();
  if (std::find(known.begin(), known.end(), framework) != known.end()) return;
  throw InputError("--for",
                   "unknown framework \"" + framework.substr(0, 60) + "\"" + did_you_mean_or_list(framework, known));
}

void refuse_framework(const std::string& framework, const std::vector<FrameworkNote>& notes) {
  check_framework_name(framework);
  for (const FrameworkNote& note : notes)
    if (note.framework == framework) throw InputError("--layout", framework + " " + note.note);
}

std::vector<FrameworkNote> refusals_of_stack(const std::vector<FrameworkNote>& notes, const Stack& stack,
                                             const Layout& layout) {
  std::vector<FrameworkNote> out;
  for (const FrameworkNote& note : notes)
    if (note.framework == stack.framework && !(note.word == "zero" && stack.runs_zero(layout.zero_stage())))
      out.push_back(note);
  return out;
}

}  // namespace shardplan
