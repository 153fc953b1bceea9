#pragma once
// The words of a layout text as two tables: one serves reading, printing and "did you mean". A new word is one row.
#include <cstdint>
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

}  // namespace shardplan
