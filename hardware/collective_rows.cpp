#include "hardware/collective_rows.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/csv.hpp"
#include "base/errors.hpp"

namespace shardplan {

namespace {

std::string squeezed(std::string_view word) {
  std::string out;
  for (const char c : word) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// "8x400G" -> 8 NICs of 400 Gbit/s; "400G/GPU" -> one a GPU. 0 where the text has neither.
std::pair<double, double> nics_of(const std::string& net, int gpus_per_node) {
  for (std::size_t at = net.find('G'); at != std::string::npos; at = net.find('G', at + 1)) {
    std::size_t first = at;
    while (first > 0 && std::isdigit(static_cast<unsigned char>(net[first - 1]))) --first;
    if (first == at) continue;
    const double gbit = std::stod(net.substr(first, std::min<std::size_t>(at - first, 6)));
    if (net.compare(at, 5, "G/GPU") == 0) return {gpus_per_node, gbit * 1e9 / 8};
    if (first == 0 || net[first - 1] != 'x') continue;
    std::size_t count = first - 1;
    while (count > 0 && std::isdigit(static_cast<unsigned char>(net[count - 1]))) --count;
    if (count == first - 1) continue;
    return {std::stod(net.substr(count, std::min<std::size_t>(first - 1 - count, 6))), gbit * 1e9 / 8};
  }
  return {0, 0};
}

struct FabricWord {
  std::string_view word;
  const char* cluster;  // whose network it is
};
// The longer words first.
constexpr std::array<FabricWord, 11> kFabricWords{{{"EFA v1", "p4de-efa"},
                                                   {"EFA v2", "p5-efa"},
                                                   {"EFA v3", "p5en-efa"},
                                                   {"EFA v4", "p6-b200-efa"},
                                                   {"TCPXO", "gcp-a3-mega"},
                                                   {"TCPX", "gcp-a3-high"},
                                                   {"EFA", "p5-efa"},
                                                   {"RoCE", "grand-teton-roce"},
                                                   {"InfiniBand", "dgx-h100"},
                                                   {"IB", "dgx-h100"},
                                                   {"unstated", "dgx-h100"}}};

Network network_of(const std::string& net, const std::string& where) {
  for (const FabricWord& f : kFabricWords) {
    if (!contains(net, f.word)) continue;
    Network n = load_cluster(f.cluster).network;
    n.sharp = contains(net, "SHARP");
    return n;
  }
  throw InputError(where, "the fabric \"" + net + "\" is not known (InfiniBand, RoCE, EFA v1-v4, TCPX, TCPXO)");
}

}  // namespace

std::vector<CollectiveRow> read_collective_rows(const CsvTable& t) {
  std::vector<CollectiveRow> out;
  out.reserve(t.size());
  for (std::size_t i = 0; i < t.size(); ++i) {
    CollectiveRow r;
    r.dataset = t.text_or_empty(i, "dataset");
    r.gpu = t.text(i, "gpu");
    r.net = t.text_or_empty(i, "net");
    r.op = t.text(i, "op");
    r.dtype = t.text(i, "dtype");
    r.nccl = t.text_or_empty(i, "nccl");
    r.place = t.text_or_empty(i, "place");
    r.env = t.text_or_empty(i, "env");
    const auto whole = [&](const char* column, int otherwise) {
      return t.text_or_empty(i, column).empty() ? otherwise
                                                : static_cast<int>(std::min<std::int64_t>(t.count(i, column), 1 << 24));
    };
    r.gpus_per_node = std::max(1, whole("gpus_per_node", 8));
    r.nodes = std::max(1, whole("nodes", 1));
    r.ranks = whole("ranks", 1);
    r.bytes = t.number(i, "bytes");
    r.seconds = t.number(i, "time_us") * 1e-6;
    out.push_back(std::move(r));
  }
  return out;
}

std::optional<Collective> collective_of(std::string_view word) {
  const std::string w = squeezed(word);
  if (w == "allreduce") return Collective::all_reduce;
  if (w == "allgather") return Collective::all_gather;
  if (w == "reducescatter") return Collective::reduce_scatter;
  if (w == "broadcast") return Collective::broadcast;
  if (w == "alltoall" || w == "alltoallv") return Collective::all_to_all;
  if (w == "sendrecv") return Collective::send_recv;
  return std::nullopt;
}

std::string_view collective_name(Collective op) {
  constexpr std::array<std::string_view, 6> names = {"all-reduce", "all-gather", "reduce-scatter",
                                                     "broadcast",  "all-to-all", "send-recv"};
  return names[static_cast<std::size_t>(op)];
}

std::optional<DataType> nccl_type(std::string_view word) {
  const std::string w = squeezed(word);
  if (w == "half" || w == "float16" || w == "fp16") return DataType::fp16;
  if (w == "bfloat16" || w == "bf16") return DataType::bf16;
  if (w == "float" || w == "float32" || w == "fp32" || w == "int32" || w == "uint32") return DataType::fp32;
  if (w == "int8" || w == "uint8" || w == "char") return DataType::int8;
  if (w.rfind("fp8", 0) == 0 || w.rfind("f8", 0) == 0 || w.rfind("float8", 0) == 0) return DataType::fp8;
  return std::nullopt;
}

Cluster cluster_of(const CollectiveRow& row) {
  const std::string where = row.dataset.empty() ? row.gpu : row.dataset;
  std::string name = gpu_of_alias(row.gpu);
  // "H100 (p5.48xlarge)", "H200 8x", "NVIDIA H100 80GB HBM3": the first words that are a GPU.
  for (std::size_t end = row.gpu.rfind(' '); name.empty() && end != std::string::npos && end > 0;
       end = row.gpu.rfind(' ', end - 1)) {
    name = gpu_of_alias(std::string_view(row.gpu).substr(0, end));
  }
  if (name.empty()) throw InputError(where, "the GPU \"" + row.gpu + "\" has no data file");
  Cluster c = load_cluster(name);
  c.node.gpus = row.gpus_per_node;
  c.node.nvlink_domain = std::max(c.node.nvlink_domain, row.gpus_per_node);
  if (row.nodes > 1) {
    const auto [count, rate] = nics_of(row.net, row.gpus_per_node);
    if (!(count > 0))
      throw InputError(where, "the network \"" + row.net + "\" does not say how many NICs of what rate a node has");
    c.network = network_of(row.net, where);
    c.node.nics.value = count;
    c.node.nic_bytes_per_second.value = rate;
  }
  return c;
}

NcclSettings settings_of(const CollectiveRow& row) {
  NcclSettings s;
  s.nvls = !contains(row.env, "NCCL_NVLS_ENABLE=0");
  const std::string env = squeezed(row.env);
  if (!contains(env, "ncclalgo")) return s;
  if (contains(env, "nvlstree"))
    s.algorithm = "nvls-tree";
  else if (contains(env, "ring"))
    s.algorithm = "ring";
  else if (contains(env, "tree"))
    s.algorithm = "tree";
  return s;
}

GroupShape shape_of(const CollectiveRow& row, const Cluster& cluster) {
  return group_shape(cluster, row.ranks, (row.ranks + row.nodes - 1) / row.nodes);
}

}  // namespace shardplan
