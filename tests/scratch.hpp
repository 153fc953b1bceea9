#pragma once
// A folder of a test's own, gone when it goes: several copies of the tests may run at once.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "shardplan_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for temporary files");
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::string file(std::string_view name) const { return (folder_ / name).string(); }
  /// Writes the file and tells its path.
  std::string write(std::string_view name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return file(name);
  }

 private:
  std::filesystem::path folder_;
};
