#include "hardware/cluster_read.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/field.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "hardware/cluster_figures.hpp"

namespace shardplan {
namespace {

constexpr int kMostGpusInNode = 1024, kMostGpusInDomain = 1 << 20, kMostNodes = 1 << 20;

double positive_text(const Field& value, double (*parse)(std::string_view, const std::string&)) {
  const double number = value.is_number() ? value.number() : parse(value.text(), value.where());
  if (number < 0) value.fail("must not be negative: " + value.shown());
  return number;
}

/// Far beyond any machine, so that no sum, product or ratio of figures leaves the numbers: 0 ("none"), or in between.
double within(const Field& value, double number, double least, double most) {
  if (number == 0 || (number >= least && number <= most)) return number;
  value.fail("out of range: " + value.shown() + " is no figure of a machine");
}

double in_unit(const Field& value, FigureUnit unit) {
  constexpr double kMiB = 1048576.0;
  switch (unit) {
    case FigureUnit::bytes:
      return within(value, value.bytes(), 1, 1e18);
    case FigureUnit::mebibytes:
      return within(value, value.bytes() / kMiB, 1, 1e12);
    case FigureUnit::bytes_per_second:
      return within(value, value.bytes_per_second(), 1, 1e18);
    case FigureUnit::seconds:
      return within(value, value.seconds(), 1e-15, 1e3);
    case FigureUnit::watts:
      return positive_text(value, parse_watts);
    case FigureUnit::usd_per_hour:
      return positive_text(value, parse_number);
    case FigureUnit::count:
      return static_cast<double>(value.count(0, 1 << 20));
    case FigureUnit::ratio:
      return within(value, value.positive(), 1e-6, 1e6);
  }
  return 0;
}

/// A figure is {value, source, assumed}, or the bare value where a person wrote a quick file.
template <class Read>
Sourced read_sourced(const Field& field, Read&& read) {
  Sourced figure;
  if (!field.is_object()) {
    figure.value = read(field);
    figure.source = "given without a source in " + field.name();
    return figure;
  }
  field.allow_only({"value", "source", "assumed"});
  figure.value = read(field.at("value"));
  figure.source = field.at("source").text();
  if (figure.source.empty()) field.at("source").fail("the source is empty");
  if (const auto assumed = field.find("assumed")) figure.assumed = assumed->boolean();
  return figure;
}

template <class Owner, std::size_t N>
void read_figures(const Field& object, const std::array<FigureRow<Owner>, N>& rows, Owner& owner) {
  for (const FigureRow<Owner>& row : rows) {
    const std::string key(row.key);
    if (!row.required && !object.find(key)) continue;
    owner.*row.member = read_sourced(object.at(key), [&](const Field& value) { return in_unit(value, row.unit); });
  }
}

template <class Owner, std::size_t N>
std::vector<std::string> keys_with(const std::array<FigureRow<Owner>, N>& rows, std::vector<std::string> keys) {
  for (const FigureRow<Owner>& row : rows) keys.emplace_back(row.key);
  return keys;
}

template <class Enum, std::size_t N>
Enum read_word(const Field& field, const std::array<std::string_view, N>& names) {
  const std::string word = field.text();
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == word) return static_cast<Enum>(i);
  }
  const std::vector<std::string> known(names.begin(), names.end());
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  field.fail("expected one of " + list + ", got " + field.shown() + did_you_mean(word, known));
}

/// Dense peaks. A narrow format beyond four times BF16 per halving of its width would be a peak with sparsity: refused.
void read_peaks(const Field& peaks, Gpu& gpu) {
  peaks.allow_only({kDataTypeNames.begin(), kDataTypeNames.end()});
  for (std::size_t t = 0; t < kDataTypeNames.size(); ++t) {
    const auto field = peaks.find(std::string(kDataTypeNames[t]));
    if (!field) continue;
    gpu.peak_flops[t] =
        read_sourced(*field, [](const Field& value) { return within(value, value.flops_per_second(), 1, 1e24); });
  }
  const double bf16 = std::max(gpu.peak(DataType::bf16), gpu.peak(DataType::fp16));
  if (bf16 <= 0) peaks.fail("needs the dense peak of bf16 or fp16");
  for (std::size_t t = 0; t < kDataTypeNames.size(); ++t) {
    const auto type = static_cast<DataType>(t);
    // The widest published dense ratio is B300's NVFP4, 6.7 times its BF16; one-byte formats have at most 2.04 times.
    const double most = bytes_of(type) < 1 ? 7 : bytes_of(type) == 1 ? 2.1 : 1.01;
    if (gpu.peak(type) > most * bf16) {
      peaks.at(std::string(kDataTypeNames[t]))
          .fail("more than " +
                std::string(most == 7     ? "7"
                            : most == 2.1 ? "2.1"
                                          : "1") +
                " times the 16-bit peak: a peak with sparsity? Give the dense one");
    }
  }
}

Node read_node(const Field& object) {
  object.allow_only(keys_with(kNodeFigures, {"gpus", "nvlink_domain", "fabric", "torus", "source"}));
  Node node;
  node.gpus = static_cast<int>(object.at("gpus").count(1, kMostGpusInNode));
  node.nvlink_domain = node.gpus;
  if (const auto domain = object.find("nvlink_domain"))
    node.nvlink_domain = static_cast<int>(domain->count(1, kMostGpusInDomain));
  node.fabric = read_word<IntraFabric>(object.at("fabric"), kIntraFabricNames);
  if (node.nvlink_domain > node.gpus && node.nvlink_domain % node.gpus != 0) {
    object.at("nvlink_domain").fail("a domain larger than a node holds whole nodes: not a multiple of gpus");
  }
  if (node.nvlink_domain < node.gpus && node.gpus % node.nvlink_domain != 0) {
    object.at("nvlink_domain").fail("does not divide the GPUs of a node");
  }
  if (node.fabric == IntraFabric::torus) {
    const Field torus = object.at("torus");
    if (!torus.is_array() || torus.size() == 0 || torus.size() > 4) torus.fail("expected 1 to 4 dimensions");
    std::int64_t product = 1;
    for (std::size_t d = 0; d < torus.size(); ++d) {
      node.torus.push_back(static_cast<int>(torus.item(d).count(1, kMostGpusInDomain)));
      product *= node.torus.back();
      if (product > kMostGpusInDomain) torus.fail("too many GPUs");
    }
    if (product != node.nvlink_domain) torus.fail("the dimensions do not multiply to nvlink_domain");
  } else if (object.has("torus")) {
    object.at("torus").fail("only a torus has dimensions");
  }
  if (const auto source = object.find("source")) node.source = source->text();
  read_figures(object, kNodeFigures, node);
  return node;
}

Network read_network(const Field& object) {
  object.allow_only(
      keys_with(kNetworkFigures, {"kind", "wiring", "nodes_per_leaf_group", "nodes_per_pod", "sharp", "source"}));
  Network network;
  network.kind = object.at("kind").text();
  network.oversubscription = {1, "non-blocking where a file says nothing", false};
  network.pod_oversubscription = {1, "non-blocking where a file says nothing", false};
  if (const auto wiring = object.find("wiring")) network.wiring = read_word<Wiring>(*wiring, kWiringNames);
  if (const auto nodes = object.find("nodes_per_leaf_group")) {
    network.nodes_per_leaf_group = static_cast<int>(nodes->count(1, kMostNodes));
  }
  if (const auto nodes = object.find("nodes_per_pod")) {
    network.nodes_per_pod = static_cast<int>(nodes->count(1, kMostNodes));
    if (network.nodes_per_leaf_group > 0 && network.nodes_per_pod % network.nodes_per_leaf_group != 0) {
      nodes->fail("a pod holds whole leaf groups: not a multiple of nodes_per_leaf_group");
    }
  }
  if (const auto sharp = object.find("sharp")) network.sharp = sharp->boolean();
  if (const auto source = object.find("source")) network.source = source->text();
  read_figures(object, kNetworkFigures, network);
  return network;
}

/// Checks that need more than one section.
void check_together(const Field& file, const Cluster& cluster) {
  const bool linked = cluster.node.fabric != IntraFabric::pcie;
  if (linked && cluster.node.nvlink_domain > 1 && cluster.gpu.nvlink_bytes_per_second.value <= 0) {
    file.fail("the fabric is " + std::string(fabric_name(cluster.node.fabric)) +
              " but the GPU has no nvlink_bandwidth");
  }
  if (!linked && cluster.node.pcie_bytes_per_second.value <= 0) file.fail("a pcie fabric needs /node/pcie_bandwidth");
}

}  // namespace

namespace {

/// A table file is named as seen from the folder of the file that names it (or, failing that, from the working folder).
std::string beside(const Field& file, const std::string& text) {
  if (!text.ends_with(".json")) return text;
  const std::filesystem::path there = std::filesystem::path(file.name()).parent_path() / text;
  return std::filesystem::exists(there) ? there.string() : text;
}

}  // namespace

std::vector<std::string> read_aliases(const Field& file) {
  std::vector<std::string> aliases;
  if (const auto list = file.find("aliases")) {
    for (std::size_t i = 0; i < list->size(); ++i) aliases.push_back(list->item(i).text());
  }
  return aliases;
}

Gpu read_gpu(const Field& file) {
  if (!file.is_object()) file.fail("expected an object, got " + file.shown());
  file.allow_only(keys_with(
      kGpuFigures, {"name", "aliases", "description", "architecture", "calibration", "sibling", "peak", "reference"}));
  Gpu gpu;
  gpu.name = file.at("name").text();
  const auto optional_text = [&](const char* key) { return file.find(key) ? file.at(key).text() : std::string(); };
  gpu.description = optional_text("description");
  gpu.architecture = optional_text("architecture");
  gpu.calibration = beside(file, optional_text("calibration"));
  gpu.sibling = optional_text("sibling");
  read_aliases(file);
  read_peaks(file.at("peak"), gpu);
  read_figures(file, kGpuFigures, gpu);
  if (gpu.hbm_bytes.value <= 0) file.at("memory").fail("must be positive");
  if (gpu.hbm_bytes_per_second.value <= 0) file.at("memory_bandwidth").fail("must be positive");
  if (gpu.pair_bytes_per_second.value <= 0) gpu.pair_bytes_per_second = gpu.nvlink_bytes_per_second;
  if (gpu.pair_bytes_per_second.value > gpu.nvlink_bytes_per_second.value) {
    file.at("pair_bandwidth").fail("one pair cannot have more than all links together (nvlink_bandwidth)");
  }
  return gpu;
}

Cluster read_reference(const Field& file) {
  Cluster cluster;
  cluster.gpu = read_gpu(file);
  cluster.name = cluster.gpu.name;
  cluster.description = cluster.gpu.description;
  const Field reference = file.at("reference");
  reference.allow_only({"node", "network"});
  cluster.node = read_node(reference.at("node"));
  cluster.network = read_network(reference.at("network"));
  check_together(file, cluster);
  return cluster;
}

Cluster read_cluster_file(const Field& file, Gpu (*named)(const Field&)) {
  file.allow_only({"name", "description", "gpu", "node", "network"});
  Cluster cluster;
  cluster.name = file.at("name").text();
  if (const auto description = file.find("description")) cluster.description = description->text();
  const Field gpu = file.at("gpu");
  cluster.gpu = gpu.is_string() ? named(gpu) : read_gpu(gpu);
  cluster.node = read_node(file.at("node"));
  cluster.network = read_network(file.at("network"));
  check_together(file, cluster);
  return cluster;
}

}  // namespace shardplan
