#pragma once
// Every layout that a question allows, before memory and time are asked.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layouts/step/question.hpp"

namespace shardplan {

/// What a search may vary. Values left empty are enumerated; a fixed word keeps its value.
struct SearchSpace {
  std::int64_t gpus = 1;
  bool any = false;                      // all that is modelled, not only what the stack can run
  std::string framework;                 // only what this framework takes as it is; "" = whatever arithmetic allows
  Layout fixed;                          // values of the words in `fixed_words`
  std::vector<std::string> fixed_words;  // "tp", "pp", "zero", ...
  bool is_fixed(const char* word) const;
};

/// Reads "tp8 pp4 recompute=full": the layout with these words, and which words they are.
SearchSpace parse_fixed(const std::string& text, std::int64_t gpus, const std::string& where);

/// How tokens travel to their experts: two words of a layout, as it states them.
struct ExpertPath {
  std::optional<Transport> transport;
  std::optional<EpOverlap> overlap;
  bool operator==(const ExpertPath&) const = default;
};
Layout with_path(Layout, const ExpertPath&);

/// A family of layouts that differ in what they recompute, cheapest in time first, and in the way to their experts,
/// which changes their memory for none: the first that fits is the best of it, on one of these ways.
struct Candidate {
  Layout layout;
  std::vector<Layout> ladder;
  std::vector<ExpertPath> paths;  // at least one
};

/// Transports that the stack may be searched for (--any: all that are priced) and this machine has for this layout's
/// groups of experts; the layout's own where it is fixed. `refused` (may be null) gets why the others do not run here.
std::vector<std::optional<Transport>> transports_here(const SearchSpace&, const Layout&, const Stack&, const Cluster&,
                                                      std::vector<std::string>* refused);
/// Ways to the experts of a legal layout with these transports: the overlaps that the stack may be searched for and
/// that the framework takes of it. One way, as the layout states it, where its experts are on one rank.
std::vector<ExpertPath> expert_paths(const SearchSpace&, const Layout&, const Model&, const Workload&, const Stack&,
                                     const std::vector<std::optional<Transport>>& transports);

/// Legal candidates in a fixed order; `refused` counts the others by reason.
std::vector<Candidate> enumerate_candidates(const SearchSpace&, const Model&, const Workload&, const Stack&,
                                            const Cluster&, std::map<std::string, std::int64_t>& refused);

}  // namespace shardplan
