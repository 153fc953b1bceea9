#include "cli/output.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace shardplan {

void add_format_option(CLI::App& verb, std::string& format) {
  verb.add_option("--format", format, "text for people, json for programs")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text");
}

std::int64_t whole_bytes(double bytes) {
  constexpr double kMost = 9e18;
  return std::llround(std::clamp(bytes, -kMost, kMost));
}

namespace {

using Json = nlohmann::ordered_json;

bool names_bytes(const std::string& key) { return key == "bytes" || key.ends_with("_bytes"); }

void make_bytes_whole(Json& value, bool bytes) {
  if (value.is_object()) {
    for (auto& [key, member] : value.items()) make_bytes_whole(member, names_bytes(key));
  } else if (value.is_array()) {
    for (Json& item : value) make_bytes_whole(item, bytes);
  } else if (bytes && value.is_number_float() && std::isfinite(value.get<double>())) {
    value = whole_bytes(value.get<double>());
  }
}

}  // namespace

void print_json(const nlohmann::ordered_json& answer) {
  Json whole = answer;
  make_bytes_whole(whole, false);
  const std::string text = whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out;
}

void print_warning(const std::string& what) { std::fprintf(stderr, "warning: %s\n", one_line(what).c_str()); }

}  // namespace shardplan
