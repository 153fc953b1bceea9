#include "base/csv.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/quantity_text.hpp"

namespace shardplan {

namespace {

/// Takes one record (it may hold line breaks inside quotes) and moves `at` behind it; counts the lines it took.
std::vector<std::string> take_record(std::string_view text, std::size_t& at, std::size_t& line,
                                     const std::string& name) {
  std::vector<std::string> cells(1);
  const std::size_t first = line;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        cells.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        cells.back() += text[++at];
      } else {
        quoted = false;
      }
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else if (c == ',') {
      cells.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  if (quoted) throw InputError(name + ": line " + std::to_string(first), "a quoted cell does not end");
  return cells;
}

}  // namespace

CsvTable CsvTable::parse(std::string_view text, const std::string& name) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  CsvTable out;
  out.name_ = name;
  std::size_t at = 0, line = 1;
  while (at < text.size()) {
    const std::size_t first = line;
    auto cells = take_record(text, at, line, name);
    if (cells.size() == 1 && cells.front().empty()) continue;  // blank line
    if (out.header_.empty()) {
      out.header_ = std::move(cells);
      continue;
    }
    if (cells.size() != out.header_.size()) {
      throw InputError(
          name + ": line " + std::to_string(first),
          "has " + std::to_string(cells.size()) + " cells, the header has " + std::to_string(out.header_.size()));
    }
    out.rows_.push_back(std::move(cells));
    out.lines_.push_back(first);
  }
  if (out.header_.empty()) throw InputError(name, "is empty: no header line");
  return out;
}

CsvTable CsvTable::read(const std::string& path) { return parse(read_text_file(path), path); }

std::optional<std::size_t> CsvTable::find(std::string_view column) const {
  const auto it = std::find(header_.begin(), header_.end(), column);
  if (it == header_.end()) return std::nullopt;
  return static_cast<std::size_t>(it - header_.begin());
}

const std::string& CsvTable::text(std::size_t row, std::string_view column) const {
  const auto at = find(column);
  if (!at) throw InputError(name_, "has no column " + std::string(column));
  return rows_[row][*at];
}

std::string CsvTable::text_or_empty(std::size_t row, std::string_view column) const {
  const auto at = find(column);
  return at ? rows_[row][*at] : std::string();
}

double CsvTable::number(std::size_t row, std::string_view column) const {
  return parse_number(text(row, column), where(row, column));
}

std::int64_t CsvTable::count(std::size_t row, std::string_view column) const {
  return parse_count(text(row, column), where(row, column));
}

std::string CsvTable::where(std::size_t row, std::string_view column) const {
  return name_ + ": line " + std::to_string(lines_[row]) + ", column " + std::string(column);
}

}  // namespace shardplan
