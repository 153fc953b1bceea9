#include "hardware/import_topo.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"

namespace shardplan {
namespace {

constexpr int kMostDevices = 512;

/// Without ESC [ ... letter.
std::string without_escapes(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      i += 2;
      while (i < text.size() && !((text[i] >= 'A' && text[i] <= 'Z') || (text[i] >= 'a' && text[i] <= 'z'))) ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : line) {
    if (c == ' ' || c == '\t' || c == '\r') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

bool digits(std::string_view text) {
  return !text.empty() && text.size() <= 4 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_gpu(std::string_view word) { return word.substr(0, 3) == "GPU" && digits(word.substr(3)); }
/// NIC3, mlx5_3, mlx5_bond_0, ibp12s0, bnxt_re0, rdmap0s6, hfi1_0, efa_0, ...
bool is_nic(std::string_view word) {
  for (const std::string_view prefix :
       {"NIC", "mlx", "ib", "bnxt", "rdma", "hfi", "efa", "irdma", "roce", "eth", "hns"}) {
    if (word.size() > prefix.size() && word.substr(0, prefix.size()) == prefix &&
        word.find(':') == std::string_view::npos)
      return true;
  }
  return false;
}
bool is_device(std::string_view word) { return is_gpu(word) || is_nic(word); }

/// One cell from the front of `text`, which loses it; nothing where it is none.
std::optional<PathCell> take_cell(std::string_view& text) {
  if (text.substr(0, 2) == "NV") {
    std::size_t end = 2;
    int links = 0;
    while (end < text.size() && end < 4 && text[end] >= '0' && text[end] <= '9')
      links = 10 * links + (text[end++] - '0');
    if (end == 2 || links == 0) return std::nullopt;
    text.remove_prefix(end);
    return PathCell{PathKind::nvlink, links};
  }
  constexpr std::array<std::pair<std::string_view, PathKind>, 7> names{{{"PIX", PathKind::pix},
                                                                        {"PXB", PathKind::pxb},
                                                                        {"PHB", PathKind::phb},
                                                                        {"NODE", PathKind::node},
                                                                        {"SYS", PathKind::sys},
                                                                        {"SOC", PathKind::sys},
                                                                        {"X", PathKind::self}}};
  for (const auto& [name, kind] : names) {
    if (text.substr(0, name.size()) != name) continue;
    text.remove_prefix(name.size());
    return PathCell{kind, 0};
  }
  return std::nullopt;
}

/// The cells of a word: one, or several that have grown together ("PIXNODE"); none where it is no cell.
std::vector<PathCell> cells_of(std::string_view word) {
  std::vector<PathCell> cells;
  while (!word.empty()) {
    const auto cell = take_cell(word);
    if (!cell) return {};
    cells.push_back(*cell);
  }
  return cells;
}

struct Row {
  std::string name;
  std::vector<PathCell> cells;
  std::vector<std::string> rest;  // affinities
  int line = 0;
};

/// Header and rows as they stand in the text.
struct RawMatrix {
  std::vector<std::string> header;
  std::vector<Row> rows;
  bool escapes = false, glued = false, old_names = false;
};

std::optional<Row> row_of(const std::vector<std::string>& words, int line, bool& glued) {
  if (words.size() < 2 || !is_device(words[0])) return std::nullopt;
  Row row{words[0], {}, {}, line};
  std::size_t w = 1;
  for (; w < words.size(); ++w) {
    const auto cells = cells_of(words[w]);
    if (cells.empty()) break;
    glued |= cells.size() > 1;
    row.cells.insert(row.cells.end(), cells.begin(), cells.end());
  }
  if (row.cells.empty()) return std::nullopt;
  row.rest.assign(words.begin() + static_cast<std::ptrdiff_t>(w), words.end());
  return row;
}

RawMatrix raw_of(std::string_view text) {
  RawMatrix raw;
  raw.escapes = text.find('\x1b') != std::string_view::npos;
  const std::string plain = without_escapes(text);
  int line_number = 0;
  for (std::size_t at = 0; at < plain.size();) {
    const std::size_t end = std::min(plain.find('\n', at), plain.size());
    const auto words = words_of(std::string_view(plain).substr(at, end - at));
    ++line_number;
    at = end + 1;
    if (words.size() > 1 && is_device(words[0]) && is_device(words[1])) {
      if (!raw.header.empty()) break;  // a second matrix: the first is taken
      for (const std::string& word : words) {
        if (!is_device(word)) break;
        raw.header.push_back(word);
      }
    } else if (words.size() == 1 && is_gpu(words[0]) && raw.header.empty() && raw.rows.empty()) {
      raw.header = words;  // one GPU without a NIC
    } else if (auto row = row_of(words, line_number, raw.glued)) {
      raw.rows.push_back(std::move(*row));
    }
  }
  return raw;
}

/// Names of the columns where the header row is missing: the rows' own names, then NIC0, NIC1, ...
void name_columns(RawMatrix& raw, TopoMatrix& matrix) {
  if (!raw.header.empty()) return;
  for (const Row& row : raw.rows) raw.header.push_back(row.name);
  std::size_t columns = 0;
  for (const Row& row : raw.rows) columns = std::max(columns, row.cells.size());
  for (int nic = 0; raw.header.size() < columns; ++nic) raw.header.push_back("NIC" + std::to_string(nic));
  matrix.notes.push_back("no header row: " + std::to_string(columns) + " columns named by their order");
}

void place_rows(const RawMatrix& raw, const std::string& file, TopoMatrix& matrix) {
  std::map<std::string, int> number;
  for (int d = 0; d < matrix.size(); ++d) number[matrix.devices[d]] = d;
  if (static_cast<int>(number.size()) != matrix.size()) throw InputError(file, "a device stands twice in the header");
  std::vector<bool> given(matrix.devices.size(), false);
  matrix.cells.resize(matrix.devices.size() * matrix.devices.size());
  for (const Row& row : raw.rows) {
    const std::string where = file + ": line " + std::to_string(row.line);
    const auto at = number.find(row.name);
    if (at == number.end()) throw InputError(where, "row " + row.name + " has no column");
    if (given[at->second]) throw InputError(where, "row " + row.name + " stands twice");
    given[at->second] = true;
    if (row.cells.size() != matrix.devices.size()) {
      throw InputError(where, "row " + row.name + " has " + std::to_string(row.cells.size()) + " cells, expected " +
                                  std::to_string(matrix.devices.size()));
    }
    std::copy(row.cells.begin(), row.cells.end(),
              matrix.cells.begin() + static_cast<std::ptrdiff_t>(at->second) * matrix.size());
    if (at->second < matrix.gpus) {
      if (!row.rest.empty()) matrix.cpu_affinity[at->second] = row.rest[0];
      if (row.rest.size() > 1) matrix.numa_affinity[at->second] = row.rest[1];
    }
  }
  std::string filled;
  for (int r = 0; r < matrix.size(); ++r) {
    if (given[r]) continue;
    if (r < matrix.gpus) throw InputError(file, "no row for " + matrix.devices[r]);
    filled += (filled.empty() ? "" : ", ") + matrix.devices[r];
    for (int c = 0; c < matrix.size(); ++c) {
      PathCell cell{PathKind::sys, 0};
      if (r == c) cell.kind = PathKind::self;
      if (given[c]) cell = matrix.at(c, r);
      matrix.cells[static_cast<std::size_t>(r) * matrix.devices.size() + c] = cell;
    }
  }
  if (!filled.empty())
    matrix.notes.push_back("no rows for " + filled + ": filled by symmetry, between themselves taken as SYS");
}

std::string shown(const PathCell& cell) {
  if (cell.kind == PathKind::self) return "X";
  if (cell.kind == PathKind::nvlink) return "NV" + std::to_string(cell.links);
  std::string name(kPathKindNames[static_cast<std::size_t>(cell.kind)]);
  for (char& c : name) c = static_cast<char>(c - 'a' + 'A');
  return name;
}

void check_symmetry(const TopoMatrix& matrix, const std::string& file) {
  for (int r = 0; r < matrix.size(); ++r) {
    if (matrix.at(r, r).kind != PathKind::self)
      throw InputError(file,
                       "the cell of " + matrix.devices[r] + " with itself is " + shown(matrix.at(r, r)) + ", not X");
    for (int c = 0; c < r; ++c) {
      if (matrix.at(r, c).kind == PathKind::self)
        throw InputError(file, matrix.devices[r] + " and " + matrix.devices[c] + " are marked as one device");
      if (matrix.at(r, c) == matrix.at(c, r)) continue;
      throw InputError(file, "row " + matrix.devices[r] + " says " + shown(matrix.at(r, c)) + " to " +
                                 matrix.devices[c] + ", row " + matrix.devices[c] + " says " + shown(matrix.at(c, r)) +
                                 " back");
    }
  }
}

void note_what_is_missing(const RawMatrix& raw, TopoMatrix& matrix) {
  if (raw.escapes) matrix.notes.push_back("escape codes of a terminal were taken out");
  if (raw.glued) matrix.notes.push_back("cells without a blank between them were taken apart");
  if (matrix.nics() == 0) matrix.notes.push_back("no NIC columns: the network of this node is not known from here");
  if (matrix.nics() > 0 && matrix.devices[matrix.gpus].substr(0, 3) != "NIC") {
    matrix.notes.push_back("NICs carry their driver's names (an older driver)");
  }
  const bool no_numa = std::all_of(matrix.numa_affinity.begin(), matrix.numa_affinity.end(),
                                   [](const std::string& n) { return n.empty() || n == "N/A"; });
  if (no_numa) matrix.notes.push_back("no NUMA affinity: sockets are told apart by CPU affinity");
}

/// One NVLink per direction: generations 2 to 4 (Volta, Ampere, Hopper) 25 GB/s, 5 (Blackwell) 50 GB/s
/// (stas00/ml-engineering@744d01e18b79 network/README.md); 0 = the GPU has none that this program knows.
double nvlink_bytes_per_second(const Gpu& gpu) {
  if (gpu.architecture == "blackwell") return 50e9;
  return gpu.architecture == "volta" || gpu.architecture == "ampere" || gpu.architecture == "hopper" ? 25e9 : 0;
}

/// Behind a switch all NVLinks of a GPU are shown: they are what its figure says. In a mesh some may lead to CPUs.
void check_links(const TopoSummary& s, const Gpu& gpu) {
  const double one = nvlink_bytes_per_second(gpu), shown = one * s.nvlinks_per_gpu,
               has = gpu.nvlink_bytes_per_second.value;
  const bool fits = s.fabric == IntraFabric::nvswitch ? std::abs(shown - has) <= 0.01 * has : shown <= has * 1.01;
  if (one > 0 && fits) return;
  throw InputError("--gpu", "the matrix shows " + std::to_string(s.nvlinks_per_gpu) + " NVLinks a GPU" +
                                (one > 0 ? " (" + text_of_bytes_per_second(shown) + ")" : "") + ", " + gpu.name +
                                " has " + (has > 0 && one > 0 ? text_of_bytes_per_second(has) : "none"));
}

}  // namespace

TopoMatrix parse_topo(std::string_view text, const std::string& file) {
  RawMatrix raw = raw_of(text);
  if (raw.rows.empty())
    throw InputError(file, "no matrix of nvidia-smi topo -m: no row begins with a GPU and its cells");
  TopoMatrix matrix;
  name_columns(raw, matrix);
  if (raw.header.size() > kMostDevices)
    throw InputError(file, "more than " + std::to_string(kMostDevices) + " devices");
  matrix.devices = raw.header;
  while (matrix.gpus < matrix.size() && is_gpu(matrix.devices[matrix.gpus])) ++matrix.gpus;
  if (matrix.gpus == 0) throw InputError(file, "the first column is no GPU: " + matrix.devices[0]);
  for (int d = matrix.gpus; d < matrix.size(); ++d) {
    if (is_gpu(matrix.devices[d])) throw InputError(file, matrix.devices[d] + " stands after the NICs");
  }
  matrix.cpu_affinity.resize(matrix.gpus);
  matrix.numa_affinity.resize(matrix.gpus);
  place_rows(raw, file, matrix);
  check_symmetry(matrix, file);
  note_what_is_missing(raw, matrix);
  return matrix;
}

TopoMatrix read_topo(const std::string& path) { return parse_topo(read_text_file(path, 1u << 20), path); }

TopoSummary summary_of(const TopoMatrix& m) {
  constexpr int kMostNvlinks = 18;  // of one GPU, up to Blackwell
  TopoSummary s;
  std::vector<int> together(m.gpus, 0);
  for (int a = 0; a < m.gpus; ++a) {
    int partners = 0;
    for (int b = 0; b < m.gpus; ++b) {
      if (m.at(a, b).kind != PathKind::nvlink) continue;
      together[a] += m.at(a, b).links;
      s.nvlinks_per_pair = std::max(s.nvlinks_per_pair, m.at(a, b).links);
      ++partners;
    }
    s.nvlink_domain = std::max(s.nvlink_domain, partners + 1);
  }
  const int most = *std::max_element(together.begin(), together.end());
  // Behind a switch every cell shows all of a GPU's links, so that they seem to be more than a GPU has.
  const bool switched = most > kMostNvlinks;
  if (most > 0) s.fabric = switched ? IntraFabric::nvswitch : IntraFabric::nvlink_mesh;
  s.nvlinks_per_gpu = switched ? s.nvlinks_per_pair : most;
  std::set<int> used;
  for (int g = 0; g < m.gpus; ++g) {
    PathKind nearest = PathKind::sys;
    for (int n = m.gpus; n < m.size(); ++n) nearest = std::min(nearest, m.at(g, n).kind);
    std::vector<int> nics;
    for (int n = m.gpus; n < m.size() && nearest < PathKind::sys; ++n) {
      if (m.at(g, n).kind == nearest) nics.push_back(n);
    }
    if (nics.empty() && m.nics() > 0) s.far_gpus.push_back(g);
    s.nearest_nics.push_back(nics);
  }
  // A compute NIC shares a PCIe switch with some GPU; where no NIC does, the nearest ones carry the traffic.
  bool any_near = false;
  for (int g = 0; g < m.gpus; ++g) {
    for (const int n : s.nearest_nics[g]) any_near |= m.at(g, n).kind <= PathKind::pxb;
  }
  for (int g = 0; g < m.gpus; ++g) {
    for (const int n : s.nearest_nics[g]) {
      if (!any_near || m.at(g, n).kind <= PathKind::pxb) used.insert(n);
    }
  }
  s.rails = static_cast<int>(used.size());
  for (int n = m.gpus; n < m.size(); ++n) {
    if (used.count(n) == 0) s.other_nics.push_back(n);
  }
  return s;
}

Node node_of(const TopoMatrix& m, const Gpu& gpu, double nic_bytes_per_second) {
  const TopoSummary s = summary_of(m);
  const std::string seen = "nvidia-smi topo -m";
  Node node;
  node.gpus = m.gpus;
  node.fabric = s.fabric;
  node.nvlink_domain = s.fabric == IntraFabric::pcie ? m.gpus : s.nvlink_domain;
  if (s.fabric != IntraFabric::pcie) check_links(s, gpu);
  if (s.fabric == IntraFabric::nvlink_mesh) {
    node.pair_bytes_per_second = {s.nvlinks_per_pair * nvlink_bytes_per_second(gpu),
                                  seen + ": " + std::to_string(s.nvlinks_per_pair) + " NVLinks a pair", false};
  }
  node.nics = {static_cast<double>(s.rails), seen + ": NICs near a GPU", false};
  node.nic_bytes_per_second = {nic_bytes_per_second, "given with the matrix", false};
  return node;
}

}  // namespace shardplan
