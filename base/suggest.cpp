#include "base/suggest.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace shardplan {
namespace {

constexpr std::size_t kLongestWord = 64;

std::string lowered(std::string_view text) {
  std::string out(text.substr(0, kLongestWord));
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string without_separators(std::string_view word) {
  std::string out;
  for (const char c : word.substr(0, kLongestWord)) {
    if (c != '-' && c != '_' && c != '.' && c != ' ') out += c;
  }
  return out.empty() ? std::string(word) : out;
}

}  // namespace

int edit_distance(std::string_view a_text, std::string_view b_text) {
  const std::string a = lowered(a_text), b = lowered(b_text);
  std::array<std::array<int, kLongestWord + 1>, kLongestWord + 1> d{};
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> candidates) {
  const int limit = std::max(1, static_cast<int>(std::min(word.size(), kLongestWord)) / 3);
  const std::string letters = without_separators(word);
  // "llama3.1_8b" is llama-3.1-8b: separators count only among words whose letters are equally near.
  auto best = std::pair(limit + 1, 0);
  std::optional<std::string> found;
  for (const std::string& candidate : candidates) {
    const auto distance =
        std::pair(edit_distance(letters, without_separators(candidate)), edit_distance(word, candidate));
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const auto near = nearest_word(word, candidates);
  return near ? " (did you mean \"" + *near + "\"?)" : std::string();
}

std::string did_you_mean_or_list(std::string_view word, std::span<const std::string> candidates) {
  std::string near = did_you_mean(word, candidates);
  if (!near.empty() || candidates.empty()) return near;
  std::string list;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    list += (i == 0 ? "" : i + 1 == candidates.size() ? " or " : ", ") + candidates[i];
  return ": expected " + list;
}

}  // namespace shardplan
