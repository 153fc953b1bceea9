#include "cli/output.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace shardplan {

void add_format_option(CLI::App& verb, std::string& format) {
  verb.add_option("--format", format, "text for people, json for programs")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text");
}

void print_json(const nlohmann::ordered_json& answer) {
  const std::string text = answer.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out;
}

void print_warning(const std::string& what) { std::fprintf(stderr, "warning: %s\n", one_line(what).c_str()); }

}  // namespace shardplan
