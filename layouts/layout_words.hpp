#pragma once
// The words of a layout text as two tables: one serves reading, printing and "did you mean". A new word is one row.
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "layouts/layout.hpp"

namespace shardplan {

/// Where a value stands, for errors.
struct WordPlace {
  const std::string& where;
  std::string_view word;

  [[noreturn]] void fail(const std::string& what) const;
  int count(std::string_view digits, std::int64_t least, std::int64_t most) const;
};

/// tp8
struct NumberWord {
  std::string_view name;
  int Layout::* member;
  int least;
  std::int64_t most;
  int silent;  // the value that is not printed
};
std::span<const NumberWord> number_words();

/// recompute=full
struct ValueWord {
  std::string_view name;
  void (*read)(Layout&, std::string_view value, const WordPlace&);
  std::string (*show)(const Layout&);  // "" = nothing to print
};
std::span<const ValueWord> value_words();

/// The words of a text as they stand, before anything is left out or filled in.
struct GivenWords {
  Layout layout;  // these words, defaults elsewhere; not canonical: a word may repeat a default
  std::set<std::string, std::less<>> words;  // "tp", "zero", "sp" (for nosp too), "schedule", ...
};
/// InputError where a word is unknown, out of range or given twice. Empty text: no words.
GivenWords parse_layout_words(std::string_view text, const std::string& where);

}  // namespace shardplan
