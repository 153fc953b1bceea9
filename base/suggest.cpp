#include "base/suggest.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <tuple>
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

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Edits, where one digit in place of another counts `digit`.
int weighted_distance(std::string_view a_text, std::string_view b_text, int digit) {
  const std::string a = lowered(a_text), b = lowered(b_text);
  std::array<std::array<int, kLongestWord + 1>, kLongestWord + 1> d{};
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char x = a[i - 1], y = b[j - 1];
      const int replaced = x == y ? 0 : is_digit(x) && is_digit(y) ? digit : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + replaced});
      if (i > 1 && j > 1 && x == b[j - 2] && a[i - 2] == y) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

/// Candidates that go on where the word ends ("mixtral" of mixtral-8x7b), or else hold all of it; separators and case
/// aside.
std::vector<std::string> longer_words(std::string_view word, std::span<const std::string> candidates) {
  const std::string letters = lowered(without_separators(word));
  std::vector<std::string> begin, inside;
  if (letters.size() < 3) return begin;
  for (const std::string& candidate : candidates) {
    const std::size_t at = lowered(without_separators(candidate)).find(letters);
    if (at == 0) begin.push_back(candidate);
    if (at != std::string::npos) inside.push_back(candidate);
  }
  return begin.empty() ? inside : begin;
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) { return weighted_distance(a, b, 1); }

std::optional<std::string> nearest_word(std::string_view word, std::span<const std::string> candidates) {
  const int limit = std::max(1, static_cast<int>(std::min(word.size(), kLongestWord)) / 3);
  const std::string letters = without_separators(word);
  // "llama3.1_8b" is llama-3.1-8b: separators count only among words whose letters are equally near. A digit that
  // stands for another is another version or size, one too few is not: llama3-70b is rather llama-3.1-70b than
  // llama-2-70b.
  auto best = std::tuple(limit + 1, 0, 0);
  std::optional<std::string> found;
  for (const std::string& candidate : candidates) {
    const std::string other = without_separators(candidate);
    const auto distance =
        std::tuple(edit_distance(letters, other), weighted_distance(letters, other, 2), edit_distance(word, candidate));
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kMostNamed = 4;
  std::vector<std::string> near;
  if (const auto one = nearest_word(word, candidates))
    near.push_back(*one);
  else if (auto longer = longer_words(word, candidates); longer.size() <= kMostNamed)
    near = std::move(longer);
  std::string out;
  for (std::size_t i = 0; i < near.size(); ++i)
    out += (i == 0 ? "" : i + 1 == near.size() ? " or " : ", ") + ("\"" + near[i] + "\"");
  return out.empty() ? out : " (did you mean " + out + "?)";
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
