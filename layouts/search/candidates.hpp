#pragma once
// Every layout that a question allows, before memory and time are asked.
#include <cstdint>
#include <map>
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

/// A family of layouts that differ only in what they recompute, cheapest in time first: the first that fits is the best
/// of it.
struct Candidate {
  Layout layout;
  std::vector<Layout> ladder;
};

/// Legal candidates in a fixed order; `refused` counts the others by reason.
std::vector<Candidate> enumerate_candidates(const SearchSpace&, const Model&, const Workload&, const Stack&,
                                            const Cluster&, std::map<std::string, std::int64_t>& refused);

}  // namespace shardplan
