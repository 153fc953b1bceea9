// shardplan cluster: the machines that it knows, every figure with its source, and their wires.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/output.hpp"
#include "hardware/cluster_figures.hpp"
#include "hardware/topology.hpp"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string cluster, gpus;
  bool topology = false;
  std::string format = "text";
};

// ---- list

std::string reference_text(const std::string& gpu) { return load_gpu(gpu).description; }

void print_list(const Options& options) {
  if (options.format == "json") {
    Json answer = Json::object();
    answer["gpus"] = Json::array();
    answer["clusters"] = Json::array();
    for (const std::string& name : gpu_names())
      answer["gpus"].push_back({{"name", name}, {"description", reference_text(name)}});
    for (const std::string& name : cluster_names()) {
      const Cluster c = load_cluster(name);
      answer["clusters"].push_back({{"name", name}, {"gpu", c.gpu.name}, {"description", c.description}});
    }
    print_json(answer);
    return;
  }
  std::printf("GPUs (each stands for itself in its reference node: one NIC a GPU, a network that never blocks)\n");
  for (const std::string& name : gpu_names()) std::printf("  %-22s %s\n", name.c_str(), reference_text(name).c_str());
  std::printf("\nClusters\n");
  for (const std::string& name : cluster_names())
    std::printf("  %-22s %s\n", name.c_str(), load_cluster(name).description.c_str());
}

// ---- show

std::string text_of(double value, FigureUnit unit) {
  switch (unit) {
    case FigureUnit::bytes:
      return text_of_decimal_bytes(value);
    case FigureUnit::mebibytes:
      return text_of_count(static_cast<std::int64_t>(value)) + " MiB";
    case FigureUnit::bytes_per_second:
      return text_of_bytes_per_second(value);
    case FigureUnit::seconds:
      return text_of_seconds(value);
    case FigureUnit::watts:
      return text_of_number(value, 4) + " W";
    case FigureUnit::usd_per_hour:
      return text_of_number(value, 3) + " USD/h";
    case FigureUnit::count:
      return text_of_count(static_cast<std::int64_t>(value));
    case FigureUnit::ratio:
      return text_of_number(value, 3);
  }
  return "";
}

void print_figure(const std::string& name, const std::string& value, const Sourced& figure) {
  std::printf("  %-22s %-16s %s%s\n", name.c_str(), value.c_str(), figure.assumed ? "[assumed] " : "",
              figure.source.c_str());
}

template <class Owner, std::size_t N>
void print_figures(const Owner& owner, const std::array<FigureRow<Owner>, N>& rows) {
  for (const FigureRow<Owner>& row : rows) {
    const Sourced& figure = owner.*row.member;
    if (!figure.source.empty()) print_figure(std::string(row.key), text_of(figure.value, row.unit), figure);
  }
}

void print_word(const char* name, const std::string& value) {
  if (!value.empty()) std::printf("  %-22s %s\n", name, value.c_str());
}

void print_show(const Cluster& c) {
  std::printf("%s: %s\n", c.name.c_str(), c.description.c_str());
  std::printf("\ngpu %s: %s\n", c.gpu.name.c_str(), c.gpu.description.c_str());
  print_word("architecture", c.gpu.architecture);
  print_word("calibration", c.gpu.calibration.empty() ? "none of its own" : c.gpu.calibration);
  print_word("sibling", c.gpu.sibling);
  for (std::size_t t = 0; t < kDataTypeNames.size(); ++t) {
    const Sourced& peak = c.gpu.peak_flops[t];
    if (peak.value > 0)
      print_figure("peak " + std::string(kDataTypeNames[t]), text_of_flops_per_second(peak.value), peak);
  }
  print_figures(c.gpu, kGpuFigures);
  std::printf("  %-22s %-16s %s\n", "capacity", text_of_bytes(c.gpu.capacity_bytes(false)).c_str(),
              c.gpu.hbm_mib.value > 0 ? "reported_memory" : "[assumed] the label in GiB less 0.5 %");
  std::printf("\nnode: %d GPUs, NVLink domain of %d, %s\n", c.node.gpus, c.node.nvlink_domain,
              std::string(fabric_name(c.node.fabric)).c_str());
  print_word("source", c.node.source);
  print_figures(c.node, kNodeFigures);
  std::printf("  %-22s %s (nics x nic_bandwidth / gpus)\n", "network per GPU",
              text_of_bytes_per_second(c.network_bytes_per_second_per_gpu()).c_str());
  std::printf("\nnetwork: %s, wired as %s%s\n", c.network.kind.c_str(),
              std::string(wiring_name(c.network.wiring)).c_str(), c.network.sharp ? ", in-network reduction" : "");
  print_word("source", c.network.source);
  print_figures(c.network, kNetworkFigures);
  if (c.network.nodes_per_leaf_group > 0)
    print_word("nodes_per_leaf_group", std::to_string(c.network.nodes_per_leaf_group));
  if (c.network.nodes_per_pod > 0) print_word("nodes_per_pod", std::to_string(c.network.nodes_per_pod));
  std::printf("\nRates are per direction; GB = 1e9 bytes. Peaks are dense.\n");
}

Json json_of(const Sourced& figure) {
  return {{"value", figure.value}, {"source", figure.source}, {"assumed", figure.assumed}};
}

template <class Owner, std::size_t N>
void add_figures(Json& object, const Owner& owner, const std::array<FigureRow<Owner>, N>& rows) {
  for (const FigureRow<Owner>& row : rows) {
    const Sourced& figure = owner.*row.member;
    object[std::string(row.json_key)] = figure.source.empty() ? Json(nullptr) : json_of(figure);
  }
}

Json json_of(const Cluster& c) {
  Json gpu = {{"name", c.gpu.name},
              {"description", c.gpu.description},
              {"architecture", c.gpu.architecture},
              {"calibration", c.gpu.calibration},
              {"sibling", c.gpu.sibling},
              {"peak_flops_per_s", Json::object()}};
  for (std::size_t t = 0; t < kDataTypeNames.size(); ++t) {
    if (c.gpu.peak_flops[t].value > 0)
      gpu["peak_flops_per_s"][std::string(kDataTypeNames[t])] = json_of(c.gpu.peak_flops[t]);
  }
  add_figures(gpu, c.gpu, kGpuFigures);
  gpu["capacity_bytes"] = c.gpu.capacity_bytes(false);
  Json node = {{"gpus", c.node.gpus}, {"nvlink_domain", c.node.nvlink_domain}, {"fabric", fabric_name(c.node.fabric)}};
  if (!c.node.torus.empty()) node["torus"] = c.node.torus;
  add_figures(node, c.node, kNodeFigures);
  node["source"] = c.node.source;
  node["network_bytes_per_s_per_gpu"] = c.network_bytes_per_second_per_gpu();
  Json network = {{"kind", c.network.kind}, {"wiring", wiring_name(c.network.wiring)}};
  add_figures(network, c.network, kNetworkFigures);
  network["nodes_per_leaf_group"] =
      c.network.nodes_per_leaf_group > 0 ? Json(c.network.nodes_per_leaf_group) : Json(nullptr);
  network["nodes_per_pod"] = c.network.nodes_per_pod > 0 ? Json(c.network.nodes_per_pod) : Json(nullptr);
  network["sharp"] = c.network.sharp;
  network["source"] = c.network.source;
  return {{"name", c.name}, {"description", c.description}, {"gpu", gpu},
          {"node", node},   {"network", network},           {"assumed", c.assumed_figures()}};
}

constexpr std::array<const char*, 9> kPlaceNames = {"gpu", "nvswitch", "memory", "pcie_switch", "host",
                                                    "nic", "leaf",     "spine",  "core"};
constexpr std::array<const char*, 3> kLinkKindNames = {"nvlink", "pcie", "network"};

Json json_of(const Topology& t) {
  Json vertices = Json::array(), links = Json::array();
  for (std::size_t v = 0; v < t.vertices().size(); ++v) {
    vertices.push_back({{"name", t.name_of(static_cast<std::int32_t>(v))},
                        {"place", kPlaceNames[static_cast<std::size_t>(t.vertices()[v].place)]},
                        {"count", t.vertices()[v].count}});
  }
  for (const TopologyLink& link : t.links()) {
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"kind", kLinkKindNames[static_cast<std::size_t>(link.kind)]},
                     {"bytes_per_s", link.bytes_per_second}});
  }
  return {{"gpus", t.gpus()}, {"vertices", vertices}, {"links", links}};
}

/// Two pods, two leaf groups or two domains: enough to show every kind of wire.
std::int64_t gpus_to_draw(const Cluster& c) {
  const std::int64_t nodes = c.network.nodes_per_pod > 0          ? c.network.nodes_per_pod
                             : c.network.nodes_per_leaf_group > 0 ? c.network.nodes_per_leaf_group
                                                                  : 1;
  return 2 * std::max<std::int64_t>(c.node.nvlink_domain, nodes * c.node.gpus);
}

void show(const Options& options) {
  const Cluster cluster = load_cluster(options.cluster, "cluster");
  if (!options.gpus.empty() && !options.topology) throw InputError("--gpus", "only --topology draws a number of GPUs");
  const std::int64_t gpus = options.gpus.empty() ? gpus_to_draw(cluster) : parse_count(options.gpus, "--gpus");
  if (options.format == "json") {
    Json answer = json_of(cluster);
    if (options.topology) answer["topology"] = json_of(Topology::of(cluster, gpus));
    print_json(answer);
    return;
  }
  const std::string drawing = options.topology ? topology_text(cluster, gpus) : "";
  print_show(cluster);
  if (options.topology) std::printf("\n%s", drawing.c_str());
}

}  // namespace

void add_cluster(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("cluster", "GPUs, nodes and networks: every figure with its source");
  verb->require_subcommand(1);
  auto options = std::make_shared<Options>();

  CLI::App* list = verb->add_subcommand("list", "The built-in GPUs and clusters");
  add_format_option(*list, options->format);
  list->footer("Example: shardplan cluster list");
  list->callback([options] { print_list(*options); });

  CLI::App* one = verb->add_subcommand("show", "One cluster, every figure with its source");
  one->add_option("cluster", options->cluster, "a GPU's name, a cluster's name or a path to a cluster file")
      ->required();
  one->add_flag("--topology", options->topology, "draw the wires (json: the graph)");
  one->add_option("--gpus", options->gpus, "how many GPUs to draw (default: two pods, leaf groups or domains)");
  add_format_option(*one, options->format);
  one->footer("Example: shardplan cluster show dgx-h100 --topology");
  one->callback([options] { show(*options); });
  verb->footer("Example: shardplan cluster show h100-sxm");
}

}  // namespace shardplan
