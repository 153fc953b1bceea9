// The include lines against the table of rooms: who may stand on whom. Names the file that breaks it.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {"base"}},
    {"models", {"models", "base"}},
    {"sim", {"sim", "base"}},
    {"hardware", {"hardware", "sim", "base"}},
    {"layouts", {"layouts", "models", "hardware", "sim", "base"}},
    {"cli", {"cli", "layouts", "models", "hardware", "sim", "base"}},
};

}  // namespace

TEST_CASE("every include obeys the table of rooms") {
  const std::filesystem::path root = SHARDPLAN_SOURCE_DIR;
  const std::regex include_line("^\\s*#\\s*include\\s+\"([a-z_]+)/.*\"");
  int seen = 0;
  for (const auto& [room, allowed] : kMayInclude) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".hpp" && extension != ".cpp" && extension != ".cu") continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        std::smatch match;
        if (!std::regex_search(line, match, include_line) || kMayInclude.count(match[1]) == 0) continue;
        ++seen;
        INFO(entry.path().lexically_relative(root).string() << ": " << line);
        CHECK(allowed.count(match[1]) == 1);
      }
    }
  }
  CHECK(seen > 100);
}
