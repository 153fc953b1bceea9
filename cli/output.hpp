#pragma once
// Where answers go: text or JSON on stdout, warnings on stderr.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace CLI {
class App;
}

namespace shardplan {

/// Adds --format text|json to a verb. The string lives in the caller's options.
void add_format_option(CLI::App& verb, std::string& format);
/// Prints with two spaces of indent, keys in insertion order; numbers at full precision. Bytes are whole: members named
/// `bytes` or `..._bytes` are written as integers.
void print_json(const nlohmann::ordered_json& answer);
/// An estimate in bytes as a whole number.
std::int64_t whole_bytes(double bytes);
/// Control characters of user-given text as `?`: an error or a warning is one line.
std::string one_line(const std::string& text);
void print_warning(const std::string& what);
/// A callback that answers with another exit code than 0 throws this (plan: 1 where nothing fits).
struct ExitCode {
  int code;
};

}  // namespace shardplan
