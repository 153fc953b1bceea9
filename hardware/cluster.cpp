#include "hardware/cluster.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/suggest.hpp"
#include "hardware/cluster_figures.hpp"
#include "hardware/cluster_read.hpp"

namespace shardplan {
namespace {

constexpr std::string_view kGpuFolder = "data/gpus/";
constexpr std::string_view kClusterFolder = "data/clusters/";

bool is_path(const std::string& text) {
  const auto ends_in_json = text.size() > 5 && text.compare(text.size() - 5, 5, ".json") == 0;
  return ends_in_json || text.find('/') != std::string::npos;
}

/// Names of the embedded files of one folder, sorted.
std::vector<std::string> names_in(std::string_view folder) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : hardware_data()) {
    if (file.name.substr(0, folder.size()) != folder) continue;
    const std::string_view rest = file.name.substr(folder.size());
    names.emplace_back(rest.substr(0, rest.size() - std::string_view(".json").size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

const EmbeddedFile* built_in(std::string_view folder, std::string_view name) {
  for (const EmbeddedFile& file : hardware_data()) {
    if (file.name == std::string(folder) + std::string(name) + ".json") return &file;
  }
  return nullptr;
}

Field parsed(const EmbeddedFile& file) { return Field::parse(file.text, "hardware/" + std::string(file.name)); }

Gpu gpu_named(const std::string& name, const std::string& where) {
  const EmbeddedFile* file = built_in(kGpuFolder, name);
  if (file == nullptr) file = built_in(kGpuFolder, gpu_of_alias(name));
  if (file == nullptr) throw InputError(where, "unknown GPU \"" + name + "\"" + did_you_mean(name, gpu_names()));
  return read_gpu(parsed(*file));
}

/// The `gpu` of a cluster file: a built-in name, or the path of a GPU file as seen from the cluster file's folder.
Gpu gpu_of_text(const Field& field) {
  const std::string text = field.text();
  if (!is_path(text)) return gpu_named(text, field.where());
  const std::filesystem::path beside = std::filesystem::path(field.name()).parent_path() / text;
  return read_gpu(Field::read(beside.string()));
}

/// A cluster file, or a GPU file with its reference node and network.
Cluster cluster_of(const Field& file) {
  if (!file.is_object()) file.fail("expected an object, got " + file.shown());
  if (file.has("gpu")) return read_cluster_file(file, gpu_of_text);
  if (file.has("reference")) return read_reference(file);
  file.fail("missing member \"gpu\": a cluster file has gpu, node and network, a GPU file peak and reference");
}

}  // namespace

double Gpu::capacity_bytes(bool datasheet) const {
  if (datasheet) return hbm_bytes.value;
  constexpr double kMiB = 1048576.0, kGiB = 1073741824.0, kGB = 1e9;
  if (hbm_mib.value > 0) return hbm_mib.value * kMiB;
  // Labels count binary gigabytes (an "80 GB" H100 has five stacks of 16 GiB) and the driver keeps about half a
  // percent: H100 81,559 of 81,920 MiB (0.44 %), H200 143,771 of 144,384 (0.42 %), GB300 284,208 of 294,912 (3.6 %, the
  // widest known).
  constexpr double kDriverShare = 0.005;
  return hbm_bytes.value / kGB * kGiB * (1 - kDriverShare);
}

std::vector<std::string> Cluster::assumed_figures() const {
  std::vector<std::string> paths;
  const auto ask = [&](const auto& rows, const auto& owner, const std::string& section) {
    for (const auto& row : rows) {
      if (row.use == FigureUse::prediction && (owner.*row.member).assumed)
        paths.push_back(section + std::string(row.key));
    }
  };
  for (std::size_t t = 0; t < gpu.peak_flops.size(); ++t) {
    if (gpu.peak_flops[t].assumed) paths.push_back("/gpu/peak/" + std::string(kDataTypeNames[t]));
  }
  ask(kGpuFigures, gpu, "/gpu/");
  ask(kNodeFigures, node, "/node/");
  ask(kNetworkFigures, network, "/network/");
  return paths;
}

Cluster read_cluster(std::string_view text, const std::string& file) { return cluster_of(Field::parse(text, file)); }

Cluster load_cluster(const std::string& name, const std::string& where) {
  if (is_path(name)) return cluster_of(Field::read(name));
  if (const EmbeddedFile* file = built_in(kClusterFolder, name)) return read_cluster_file(parsed(*file), gpu_of_text);
  const EmbeddedFile* file = built_in(kGpuFolder, name);
  if (file == nullptr) file = built_in(kGpuFolder, gpu_of_alias(name));
  if (file != nullptr) return read_reference(parsed(*file));
  std::vector<std::string> known = gpu_names();
  for (std::string& cluster : cluster_names()) known.push_back(std::move(cluster));
  const std::string near = did_you_mean(name, known);
  throw InputError(
      where, "unknown cluster \"" + name + "\"" +
                 (near.empty() ? ": `shardplan cluster list` names those built in, a file may describe yours" : near));
}

Gpu load_gpu(const std::string& name, const std::string& where) {
  if (is_path(name)) {
    const Field file = Field::read(name);
    return file.is_object() && file.has("gpu") ? cluster_of(file).gpu : read_gpu(file);
  }
  if (const EmbeddedFile* file = built_in(kClusterFolder, name))
    return read_cluster_file(parsed(*file), gpu_of_text).gpu;
  return gpu_named(name, where);
}

std::vector<std::string> cluster_names() { return names_in(kClusterFolder); }
std::vector<std::string> gpu_names() { return names_in(kGpuFolder); }

std::string gpu_of_alias(std::string_view published) {
  static const std::map<std::string, std::string> aliases = [] {
    std::map<std::string, std::string> table;
    for (const std::string& name : gpu_names()) {
      for (const std::string& alias : read_aliases(parsed(*built_in(kGpuFolder, name)))) table.emplace(alias, name);
    }
    return table;
  }();
  std::string key;
  for (const char c : published)
    key += c == '_' || c == ' ' ? '-' : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (built_in(kGpuFolder, key) != nullptr) return key;
  const auto found = aliases.find(key);
  return found == aliases.end() ? "" : found->second;
}

std::vector<DomainShare> domains_of(const Cluster& cluster, const std::vector<std::int64_t>& ranks) {
  const std::int64_t size = std::max(1, cluster.node.nvlink_domain);
  std::map<std::int64_t, int> members;
  for (const std::int64_t rank : ranks) ++members[rank / size];
  std::vector<DomainShare> shares;
  for (const auto& [domain, count] : members) shares.push_back({domain, count});
  return shares;
}

}  // namespace shardplan
