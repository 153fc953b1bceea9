// Every fenced block of examples/*.md whose first line is `$ shardplan ...` is run, and its output compared byte for
// byte. A block opened with ```keys shows the members of a JSON answer and their types instead of its numbers.
// README.md shows measured rates, which move with every fit: there a command only has to answer.
// scripts/update-examples runs this test with SHARDPLAN_UPDATE_EXAMPLES=1: it then writes what the program says now.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace {

using nlohmann::ordered_json;

struct Piece {
  std::string text;            // lines outside blocks, or a block's expected output
  std::string fence, command;  // of a block that is run: its opening line; its lines up to the output, without "$ "
};

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::vector<Piece> pieces_of(const std::filesystem::path& path) {
  const std::vector<std::string> lines = lines_of(path);
  std::vector<Piece> out(1);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool runs =
        lines[i].rfind("```", 0) == 0 && i + 1 < lines.size() && lines[i + 1].rfind("$ shardplan ", 0) == 0;
    if (!runs) {
      out.back().text += lines[i] + "\n";
      continue;
    }
    Piece block;
    block.fence = lines[i++];
    block.command = lines[i].substr(2);
    while (block.command.back() == '\\' && i + 1 < lines.size()) block.command += "\n" + lines[++i];
    while (++i < lines.size() && lines[i] != "```") block.text += lines[i] + "\n";
    out.push_back(block);
    out.emplace_back();
  }
  return out;
}

/// "plans[].memory.fits: boolean": one line a member, arrays by their first element.
void add_keys(const ordered_json& value, const std::string& path, std::string& out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items()) add_keys(member, path.empty() ? key : path + "." + key, out);
  } else if (value.is_array() && !value.empty()) {
    add_keys(value.front(), path + "[]", out);
  } else {
    out += path + ": " + value.type_name() + "\n";
  }
}

/// What a reader sees: stdout, and the exit code where it is not 0.
std::string answer_to(const Piece& block) {
  const std::string command = "cd '" SHARDPLAN_SOURCE_DIR "' && '" SHARDPLAN_BINARY "'" +
                              block.command.substr(std::string("shardplan").size()) + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) out.append(buffer.data(), n);
  const int status = pclose(pipe);
  REQUIRE(WIFEXITED(status));
  if (block.fence == "```keys") {
    std::string keys;
    add_keys(ordered_json::parse(out), "", keys);
    out = keys;
  }
  if (WEXITSTATUS(status) != 0) out += "[exit " + std::to_string(WEXITSTATUS(status)) + "]\n";
  return out;
}

std::vector<std::filesystem::path> example_files() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(SHARDPLAN_SOURCE_DIR "/examples"))
    if (entry.path().extension() == ".md") out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  out.emplace_back(SHARDPLAN_SOURCE_DIR "/README.md");
  return out;
}

}  // namespace

TEST_CASE("every example prints what it says", "[cli][examples]") {
  const bool update = std::getenv("SHARDPLAN_UPDATE_EXAMPLES") != nullptr;
  int commands = 0;
  for (const auto& path : example_files()) {
    std::string written;
    for (const Piece& piece : pieces_of(path)) {
      if (piece.command.empty()) {
        written += piece.text;
        continue;
      }
      ++commands;
      const std::string now = answer_to(piece);
      INFO(path.filename().string() << ": where the new output is right, run scripts/update-examples");
      INFO("$ " << piece.command);
      if (path.filename() == "README.md") {
        CHECK(now.find("[exit") == std::string::npos);
      } else if (!update) {
        CHECK(now == piece.text);
      }
      written += piece.fence + "\n$ " + piece.command + "\n" + now + "```\n";
    }
    if (update) std::ofstream(path) << written;
  }
  CHECK(commands >= 6);
}
