// Traffic matrices as text.
#include <charconv>
#include <cmath>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/flows.hpp"

namespace shardplan {
namespace {

constexpr std::int64_t kMostRanks = 8192;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == ','; }

/// The numbers of one line.
std::vector<double> numbers_of(std::string_view line, const std::string& where) {
  std::vector<double> numbers;
  const char* at = line.data();
  const char* const end = at + line.size();
  for (;;) {
    while (at != end && is_blank(*at)) ++at;
    if (at == end) return numbers;
    double value = 0;
    const auto [rest, error] = std::from_chars(at, end, value);
    if (error != std::errc() || !std::isfinite(value) || (rest != end && !is_blank(*rest))) {
      const char* stop = at;
      while (stop != end && !is_blank(*stop) && stop - at < 40) ++stop;
      throw InputError(where, "expected bytes, got \"" + std::string(at, stop) + "\"");
    }
    if (value < 0) throw InputError(where, "bytes must not be negative");
    numbers.push_back(value);
    if (static_cast<std::int64_t>(numbers.size()) > kMostRanks)
      throw InputError(where, "more than " + std::to_string(kMostRanks) + " ranks");
    at = rest;
  }
}

}  // namespace

TrafficMatrix parse_traffic_matrix(std::string_view text, const std::string& file) {
  TrafficMatrix matrix;
  std::int64_t columns = 0, line_number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string where = file + ": line " + std::to_string(++line_number);
    const std::vector<double> row = numbers_of(text.substr(0, end), where);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.empty()) continue;
    if (matrix.ranks == 0) columns = static_cast<std::int64_t>(row.size());
    if (static_cast<std::int64_t>(row.size()) != columns) {
      throw InputError(where, std::to_string(row.size()) + " columns, the first row has " + std::to_string(columns));
    }
    if (++matrix.ranks > columns) throw InputError(where, "more rows than the " + std::to_string(columns) + " columns");
    matrix.bytes.insert(matrix.bytes.end(), row.begin(), row.end());
  }
  if (matrix.ranks == 0) throw InputError(file, "no traffic matrix: the file is empty");
  if (matrix.ranks != columns) {
    throw InputError(file, "a traffic matrix is square: " + std::to_string(matrix.ranks) + " rows, " +
                               std::to_string(columns) + " columns");
  }
  return matrix;
}

TrafficMatrix read_traffic_matrix(const std::string& path) {
  constexpr std::size_t kLargest = 1u << 30;  // 8,192 ranks with 15 digits each
  return parse_traffic_matrix(read_text_file(path, kLargest), path);
}

std::string traffic_matrix_text(const TrafficMatrix& matrix) {
  std::string text;
  for (std::int64_t i = 0; i < matrix.ranks; ++i) {
    for (std::int64_t j = 0; j < matrix.ranks; ++j) {
      if (j > 0) text += ' ';
      text += std::to_string(std::llround(matrix.at(i, j)));
    }
    text += '\n';
  }
  return text;
}

}  // namespace shardplan
