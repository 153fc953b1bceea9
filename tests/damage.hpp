#pragma once
// Sound files made unsound, the same way every time: what a truncated download, an editor or an attacker would do.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "base/random.hpp"

/// Values that a number or a word is swapped for.
// clang-format off
inline constexpr std::array<std::string_view, 26> kNastyValues = {
    "0", "-0", "-1", "1", "3", "3.7", "10000", "16777216", "268435456", "2147483648", "9007199254740993",
    "9223372036854775807", "99999999999999999999", "1e308", "-1e308", "1e-320", "1e999", "null", "true", "\"x\"", "\"\"", "[]",
    "{}", "[1, 2]", "NaN", "\"1e300 GB\""};
// clang-format on

/// One wound to the bytes: a character, a number, a piece cut out or doubled, the end missing.
inline std::string damaged_bytes(std::string text, shardplan::Random& random) {
  static constexpr std::string_view kLetters("{}[]\",:0129e.-ntf _a\\\n\t\r|x;\0\xff\xc3", 31);
  if (text.empty()) return std::string(1, kLetters[random.below(kLetters.size())]);
  const std::size_t at = random.below(text.size());
  const std::size_t length = 1 + random.below(std::min<std::size_t>(40, text.size() - at));
  switch (random.below(6)) {
    case 0:
      text[at] = kLetters[random.below(kLetters.size())];
      return text;
    case 1:
      return text.erase(at, length);
    case 2:
      return text.insert(at, text.substr(at, length));
    case 3:
      if (random.below(4) == 0) return text.substr(0, at);
      return text.insert(at, 1, kLetters[random.below(kLetters.size())]);
    default: {
      std::size_t from = text.find_first_of("0123456789", at);
      if (from == std::string::npos) return text.erase(at);
      while (from > 0 && std::isdigit(static_cast<unsigned char>(text[from - 1])) != 0) --from;
      std::size_t to = from;
      while (to < text.size() && (std::isdigit(static_cast<unsigned char>(text[to])) != 0 || text[to] == '.')) ++to;
      return text.replace(from, to - from, kNastyValues[random.below(kNastyValues.size())]);
    }
  }
}

/// One wound to the values of a document that stays JSON: a value swapped, removed, renamed, or buried in lists.
inline std::string damaged_json(nlohmann::ordered_json document, shardplan::Random& random) {
  using Json = nlohmann::ordered_json;
  std::vector<Json*> parents;
  const auto visit = [&](const auto& self, Json& value) -> void {
    if (!value.is_structured() || value.empty()) return;
    parents.push_back(&value);
    for (Json& item : value) self(self, item);
  };
  visit(visit, document);
  if (parents.empty()) return "[]";
  Json& parent = *parents[random.below(parents.size())];
  auto member = parent.begin();
  for (std::uint64_t skip = random.below(parent.size()); skip > 0; --skip) ++member;
  switch (random.below(8)) {
    case 0:
      parent.erase(member);
      break;
    case 1:
      if (parent.is_object()) parent[member.key() + "x"] = *member;
      break;
    case 2: {
      Json buried = *member;
      for (std::uint64_t depth = 1 + random.below(80); depth > 0; --depth) buried = Json::array({buried});
      *member = buried;
      break;
    }
    case 3:
      if (parent.is_array())
        for (int copies = 0; copies < 50; ++copies) parent.push_back(parent.front());
      break;
    default: {
      const std::string_view value = kNastyValues[random.below(kNastyValues.size())];
      const Json swapped = Json::parse(value, nullptr, false);
      *member = swapped.is_discarded() ? Json(std::string(value)) : swapped;
    }
  }
  return document.dump();
}

/// Reads a text, and throws InputError where it is unsound.
using ReadText = std::function<void(const std::string& text)>;

struct Tally {
  int read = 0, refused = 0;

  Tally& operator+=(const Tally& other) {
    read += other.read;
    refused += other.refused;
    return *this;
  }
};

/// Fails where anything but an InputError with a place and a reason leaves the reader.
inline void feed(const std::string& text, const ReadText& read, Tally& tally) {
  try {
    read(text);
    ++tally.read;
  } catch (const shardplan::InputError& e) {
    ++tally.refused;
    if (e.where().empty() || std::string_view(e.what()).empty()) FAIL("no place or no reason for\n" << text);
  } catch (const std::exception& e) {
    FAIL("not an InputError: " << e.what() << "\nfor\n" << text);
  }
}

/// SHARDPLAN_DAMAGE=20 damages twenty times as often, for a long run under the sanitizers.
inline int damage_rounds() {
  const char* rounds = std::getenv("SHARDPLAN_DAMAGE");
  return rounds == nullptr ? 1 : std::max(1, std::atoi(rounds));
}

/// One to three wounds each time.
inline Tally feed_bytes(const std::string& sound, const ReadText& read, int times, std::uint64_t seed) {
  shardplan::Random random(seed);
  Tally tally;
  for (int i = 0; i < times * damage_rounds(); ++i) {
    std::string text = sound;
    for (std::uint64_t wounds = 1 + random.below(3); wounds > 0; --wounds) text = damaged_bytes(text, random);
    feed(text, read, tally);
  }
  return tally;
}

inline Tally feed_values(const std::string& sound, const ReadText& read, int times, std::uint64_t seed) {
  shardplan::Random random(seed);
  Tally tally;
  const auto document = nlohmann::ordered_json::parse(sound);
  for (int i = 0; i < times * damage_rounds(); ++i) feed(damaged_json(document, random), read, tally);
  return tally;
}
