#pragma once
// Comma-separated tables with a header line: quoted cells ("a, b", doubled quotes inside), LF or CRLF, a byte-order
// mark is skipped. Every row must have as many cells as the header; errors name the file and the line.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

class CsvTable {
 public:
  static CsvTable parse(std::string_view text, const std::string& name);
  static CsvTable read(const std::string& path);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& header() const { return header_; }
  std::size_t size() const { return rows_.size(); }
  bool has(std::string_view column) const { return find(column).has_value(); }
  std::optional<std::size_t> find(std::string_view column) const;

  /// The cell of row i (from 0); InputError where the column is missing.
  const std::string& text(std::size_t row, std::string_view column) const;
  /// The cell, or "" where the file has no such column.
  std::string text_or_empty(std::size_t row, std::string_view column) const;
  double number(std::size_t row, std::string_view column) const;       // finite
  std::int64_t count(std::size_t row, std::string_view column) const;  // whole, >= 0
  /// "file: line 7, column bytes", the `where` of errors.
  std::string where(std::size_t row, std::string_view column) const;

 private:
  std::string name_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> lines_;
};

}  // namespace shardplan
