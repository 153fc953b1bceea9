// The house's pages: files that they name are there, and the commands that the README prints answer.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/run_program.hpp"
#include "tests/sanitized.hpp"
#include "tests/scratch.hpp"

namespace {

const std::filesystem::path kRoot = SHARDPLAN_SOURCE_DIR;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::vector<std::filesystem::path> pages() {
  std::vector<std::filesystem::path> out = {kRoot / "README.md", kRoot / "CONTRIBUTING.md"};
  for (const char* room : {"base", "models", "sim", "hardware", "layouts", "cli", "examples"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / room))
      if (entry.path().extension() == ".md") out.push_back(entry.path());
  return out;
}

std::vector<std::string> matches(const std::string& line, const std::regex& pattern) {
  std::vector<std::string> out;
  for (std::sregex_iterator at(line.begin(), line.end(), pattern), end; at != end; ++at) out.push_back((*at)[1]);
  return out;
}

/// A pair of files is named without its ending.
bool is_there(const std::filesystem::path& path) {
  return std::filesystem::exists(path) || std::filesystem::exists(path.string() + ".cpp") ||
         std::filesystem::exists(path.string() + ".hpp");
}

/// "layouts/x.json" stands for a file of the reader's own.
bool is_placeholder(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  return stem == "x" || (stem.size() > 2 && stem.substr(stem.size() - 2) == "_x");
}

}  // namespace

TEST_CASE("every file that a page names is there", "[house][docs]") {
  const std::regex room_path(
      "`((?:base|models|sim|hardware|layouts|cli|tests|examples|scripts|cmake)/[A-Za-z0-9_./-]+)`");
  const std::regex link("\\]\\(([^):#]+)\\)");
  int seen = 0;
  for (const auto& page : pages()) {
    for (const std::string& line : lines_of(page)) {
      INFO(page.lexically_relative(kRoot).string() << ": " << line);
      for (const std::string& path : matches(line, room_path)) {
        if (is_placeholder(path)) continue;
        ++seen;
        INFO(path);
        CHECK(is_there(kRoot / path));
      }
      for (const std::string& path : matches(line, link)) {
        ++seen;
        INFO(path);
        CHECK(std::filesystem::exists(page.parent_path() / path));
      }
    }
  }
  CHECK(seen > 40);
}

TEST_CASE("every command of the README answers", "[cli][docs][slow]") {
  // The README's own words: runs.json and trace.json stand for files of the reader.
  const Scratch scratch;
  std::filesystem::copy_file(kRoot / "tests/data/invented_runs.json", scratch.folder() / "runs.json");
  scratch.write("trace.json", R"({"deviceProperties":[{"id":0,"name":"X"}],"traceEvents":[
{"ph":"X","cat":"kernel","name":"gemm","ts":8,"dur":3,"pid":0,"tid":7,"args":{"stream":7}},
{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","ts":9,"dur":4,"pid":0,"tid":9,"args":{"stream":9}}]})");
  int seen = 0;
  bool fenced = false;
  for (const std::string& line : lines_of(kRoot / "README.md")) {
    if (line.rfind("```", 0) == 0) fenced = !fenced;
    if (!fenced || line.rfind("shardplan ", 0) != 0) continue;
    const std::string command = line.substr(std::string("shardplan ").size(), line.find(" #") - 10);
    if (kSanitized && command.rfind("measure ", 0) == 0) continue;  // minutes, and times that mean nothing
    ++seen;
    INFO(line);
    const Answer answer = run(command, "cd '" + scratch.folder().string() + "' && ");
    INFO(answer.text.substr(0, 2000));
    CHECK(answer.code == 0);
  }
  CHECK(seen >= 12);
}
