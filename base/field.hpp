#pragma once
// A JSON value together with the place it stands at: "file: /path". Reading through it refuses what get<T>() lets pass:
// 3.7, -1 or true for a count, NaN and 1e400, duplicate keys, unknown keys, deep nesting, huge files.
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

inline constexpr std::size_t kLargestJsonBytes = 64u << 20;  // 64 MiB: the largest public config.json is 3 MB
inline constexpr int kDeepestJson = 64;

/// A read-only view into a parsed document; the document lives as long as any Field into it.
class Field {
 public:
  /// Parses text; `name` is the file's name for errors. Throws InputError (syntax, duplicate key, depth, size).
  static Field parse(std::string_view text, const std::string& name);
  /// Reads and parses a file; refuses folders, unreadable files and files over kLargestJsonBytes.
  static Field read(const std::string& path);

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  /// "file: /path", the `where` of errors.
  std::string where() const;
  const nlohmann::json& json() const { return *value_; }

  bool is_null() const;
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_number() const;

  bool has(const std::string& key) const;
  /// The member, which must be there.
  Field at(const std::string& key) const;
  /// The member, or nothing where it is absent or null.
  std::optional<Field> find(const std::string& key) const;
  std::size_t size() const;
  Field item(std::size_t i) const;
  std::vector<std::string> keys() const;

  std::int64_t count(std::int64_t least = 0, std::int64_t most = std::int64_t{1} << 53) const;
  double number() const;    // finite
  double positive() const;  // finite and > 0
  bool boolean() const;
  std::string text() const;
  std::vector<double> numbers() const;

  // Numbers or texts with units (see quantity_text.hpp).
  double bytes() const;
  double seconds() const;
  double bytes_per_second() const;
  double flops_per_second() const;

  /// Refuses members that are not in `known`, with "did you mean".
  void allow_only(const std::vector<std::string>& known) const;
  /// InputError at this place.
  [[noreturn]] void fail(const std::string& what) const;
  /// The value as short text for errors: `"abc"`, `3.7`, `an object`.
  std::string shown() const;

 private:
  Field(std::shared_ptr<const nlohmann::json> document, const nlohmann::json* value, std::string name,
        std::string path);
  double quantity(double (*parse)(std::string_view, const std::string&), const char* expected) const;

  std::shared_ptr<const nlohmann::json> document_;
  const nlohmann::json* value_;
  std::string name_;
  std::string path_;
};

/// Whole file as text; InputError names what is wrong. Files above `limit` bytes are refused.
std::string read_text_file(const std::string& path, std::size_t limit = kLargestJsonBytes);
/// Writes to a temporary name beside `path`, then renames: no partial file is ever left.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace shardplan
