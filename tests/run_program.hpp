#pragma once
// Runs the program as a person does, for the tests of verbs.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

struct Answer {
  int code = -1;     // -1: it did not exit by itself
  std::string text;  // stdout and stderr together
};

/// A line of the shell.
inline Answer run_line(const std::string& line) {
  Answer out;
  FILE* pipe = popen((line + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) out.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

/// `before` is put before the program's path in the shell's line.
inline Answer run(const std::string& arguments, const std::string& before = "") {
  return run_line(before + "'" + SHARDPLAN_BINARY + "' " + arguments);
}
