#pragma once
// One verb a file. Each registers its subcommand on the app; its callback reads, calls and prints.
#include <span>
#include <string_view>

namespace CLI {
class App;
}

namespace shardplan {

struct Verb {
  std::string_view name;
  void (*add)(CLI::App& app);
};

/// In the order that --help lists them.
std::span<const Verb> verbs();

/// Parses and runs; returns the exit code (0 answered, 1 nothing fits, 2 bad input, 3 not there). Never throws.
int run_command_line(int argc, const char* const* argv);

}  // namespace shardplan
