#pragma once
// "did you mean": the nearest of the known words, or nothing where none is near.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

/// Edits (insert, delete, replace, swap of neighbours) between two words; case is ignored. Words are cut at 64
/// characters.
int edit_distance(std::string_view a, std::string_view b);

/// The nearest candidate within max(1, length / 3) edits; ties go to the first.
std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> candidates);

/// " (did you mean \"x\"?)" or "". Where none is near, up to four that begin with the word or hold it.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

/// The same, and where no candidate is near all of them: ": expected a, b or c". For short lists.
std::string did_you_mean_or_list(std::string_view word, std::span<const std::string> candidates);

}  // namespace shardplan
