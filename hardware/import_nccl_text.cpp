// The text of nccl-tests, line by line: a row is found wherever two whole numbers and a type word stand next to one
// another.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "hardware/import_nccl.hpp"

namespace shardplan {

namespace {

constexpr std::size_t kLongestLine = 4096;
constexpr std::size_t kMostRows = 100000;

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : line.substr(0, kLongestLine)) {
    if (c == ' ' || c == '\t' || c == '|' || c == '\r' || c == '`') {
      if (!word.empty()) out.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!word.empty()) out.push_back(std::move(word));
  return out;
}

/// A whole number, thousands may be set apart by underscores or commas.
std::optional<double> whole(const std::string& word) {
  std::string digits;
  for (const char c : word) {
    if (c == '_' || c == ',') continue;
    if (c < '0' || c > '9') return std::nullopt;
    digits += c;
  }
  if (digits.empty() || digits.size() > 18) return std::nullopt;
  return std::stod(digits);
}

std::optional<double> number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// mpirun's and srun's marks in front of a line.
std::string_view without_prefix(std::string_view line) {
  if (const auto mark = line.find("<stdout>:"); mark != std::string_view::npos && mark < 32)
    return line.substr(mark + 9);
  if (const auto mark = line.find("<stderr>:"); mark != std::string_view::npos && mark < 32)
    return line.substr(mark + 9);
  std::size_t at = line.find_first_not_of(' ');
  const std::size_t first = at;
  while (at < line.size() && line[at] >= '0' && line[at] <= '9') ++at;
  if (first != std::string_view::npos && at > first && at - first <= 6 && at < line.size() && line[at] == ':')
    return line.substr(at + 1);
  return line;
}

/// time, algbw, busbw and the fourth cell, which is a count of wrong elements, N/A or (old releases) the largest error.
std::optional<NcclTestsHalf> half_of(const std::vector<std::string>& words, std::size_t at) {
  if (at + 3 > words.size()) return std::nullopt;
  const auto time = number(words[at]), algbw = number(words[at + 1]), busbw = number(words[at + 2]);
  if (!time || !algbw || !busbw) return std::nullopt;
  NcclTestsHalf h{*time * 1e-6, *algbw * 1e9, *busbw * 1e9, {}};
  if (at + 3 < words.size() && words[at + 3].find("e-") == std::string::npos) h.wrong = number(words[at + 3]);
  return h;
}

/// Cells between the halves: 4, or 8 with per-iteration columns.
std::size_t half_width(std::size_t cells) {
  if (cells == 16 || cells == 8) return cells / 2;
  return 4;
}

std::optional<NcclTestsRow> row_of(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i + 5 < words.size() && i < 8; ++i) {
    const auto bytes = whole(words[i]), count = whole(words[i + 1]);
    if (!bytes || !count || !nccl_type(words[i + 2])) continue;
    NcclTestsRow row;
    row.bytes = *bytes;
    row.count = *count;
    row.type = words[i + 2];
    std::size_t at = i + 3;
    if (at < words.size() && !number(words[at])) row.redop = words[at++];  // sum, prod, none ...
    std::size_t cells = words.size() - at;
    // The root column (-1 or a rank) makes the count of cells odd: 9 or 17 (5 where only one half was run).
    const auto root = at < words.size() ? number(words[at]) : std::nullopt;
    if (root && cells % 2 == 1 && *root >= -1 && *root == std::floor(*root)) {
      ++at;
      --cells;
    }
    const std::size_t width = half_width(cells);
    row.out_of_place = half_of(words, at);
    if (cells > width) row.in_place = half_of(words, at + width);
    if (row.out_of_place) return row;
  }
  return std::nullopt;
}

struct Devices {
  std::set<int> ranks;
  std::set<std::string> hosts;
};

/// "#  Rank  0 Group  0 Pid 1942267 on HOST device  0 [0x0f] NVIDIA H100 80GB HBM3"; Group is missing in old releases.
void read_device(const std::vector<std::string>& words, NcclTestsLog& log, Devices& devices) {
  const auto rank = std::find(words.begin(), words.end(), "Rank");
  const auto on = std::find(words.begin(), words.end(), "on");
  const auto device = std::find(words.begin(), words.end(), "device");
  if (rank == words.end() || rank + 1 == words.end() || on == words.end() || on + 1 == words.end() ||
      device == words.end() || on < rank)
    return;
  const auto n = whole(*(rank + 1));
  if (!n || *n > 1e7) return;
  devices.ranks.insert(static_cast<int>(*n));
  devices.hosts.insert(*(on + 1));
  std::string name;
  bool behind = false;
  for (auto w = device; w != words.end(); ++w) {
    if (behind) name += (name.empty() ? "" : " ") + *w;
    behind = behind || w->back() == ']';
  }
  if (!name.empty()) log.gpu = name;
}

/// "minBytes 8 maxBytes 4294967296": the value behind a word.
double value_behind(const std::vector<std::string>& words, const char* word) {
  const auto at = std::find(words.begin(), words.end(), word);
  if (at == words.end() || at + 1 == words.end()) return 0;
  return whole(*(at + 1)).value_or(0);
}

/// "./build/sendrecv_perf", "AllReduce", "all_reduce_perf": the operation that a word names.
std::string operation_in(const std::string& word) {
  const auto perf = word.find("_perf");
  if (perf == std::string::npos) return "";
  std::string name = word.substr(0, perf);
  if (const auto slash = name.rfind('/'); slash != std::string::npos) name = name.substr(slash + 1);
  return collective_of(name) ? name : "";
}

void read_remark(std::string_view line, const std::vector<std::string>& words, NcclTestsLog& log) {
  for (const std::string& w : words) {
    if (const std::string op = operation_in(w); !op.empty()) log.op = op;
    if (w.rfind("nccl-library=", 0) == 0) {
      if (const auto code = whole(w.substr(13)); code && *code > 0) {
        const int c = static_cast<int>(*code);
        log.nccl = c >= 10000
                       ? std::to_string(c / 10000) + "." + std::to_string(c / 100 % 100) + "." + std::to_string(c % 100)
                       : "";
      }
    }
  }
  if (const auto at = line.find("NCCL version "); at != std::string_view::npos) {
    const std::string_view rest = line.substr(at + 13);
    log.nccl = std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
  }
  if (line.find("maxBytes") != std::string_view::npos) log.header_most_bytes = value_behind(words, "maxBytes");
  if (line.find("Out of bounds values") != std::string_view::npos) {
    log.complete = true;
    if (line.find("FAILED") != std::string_view::npos)
      log.flags.push_back("the run reports wrong results (out of bounds values: FAILED)");
  }
  if (line.find("Test NCCL failure") != std::string_view::npos ||
      line.find("Test CUDA failure") != std::string_view::npos) {
    log.flags.push_back("the run failed: " + std::string(line.substr(0, 120)));
  }
  if (words.size() == 1 && words[0] == "...") log.flags.push_back("lines were left out (\"...\")");
  // A single process with -g N and no device list: N ranks.
  if (const auto g = std::find(words.begin(), words.end(), "-g");
      !log.op.empty() && g != words.end() && g + 1 != words.end()) {
    if (const auto n = whole(*(g + 1)); n && *n > 0 && *n < 4096 && line.find("mpirun") == std::string_view::npos &&
                                        line.find("srun") == std::string_view::npos && log.header_ranks == 0) {
      log.header_ranks = static_cast<int>(*n);
      log.header_nodes = 1;
    }
  }
}

}  // namespace

void read_nccl_tests_text(std::string_view text, NcclTestsLog& log) {
  Devices devices;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view raw = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const std::string_view line = without_prefix(raw);
    if (line.find("NCCL INFO") != std::string_view::npos && line.find("NCCL version") == std::string_view::npos)
      continue;
    const auto words = words_of(line);
    if (words.empty()) continue;
    if (auto row = row_of(words)) {
      if (log.rows.size() < kMostRows) log.rows.push_back(std::move(*row));
      continue;
    }
    read_device(words, log, devices);
    read_remark(line, words, log);
  }
  if (devices.ranks.empty()) return;
  log.header_ranks = *devices.ranks.rbegin() + 1;
  if (static_cast<int>(devices.ranks.size()) == log.header_ranks) {
    log.header_nodes = static_cast<int>(devices.hosts.size());
  } else {
    log.flags.push_back("the device list names " + std::to_string(devices.ranks.size()) + " of " +
                        std::to_string(log.header_ranks) + " ranks");
  }
}

}  // namespace shardplan
