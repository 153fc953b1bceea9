// shardplan measure import topo: what `nvidia-smi topo -m` printed, as a node of a cluster.
#include "cli/measure_import_topo.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/quantity_text.hpp"
#include "cli/output.hpp"
#include "hardware/import_topo.hpp"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file, gpu, nic, out, format = "text";
};

std::vector<std::string> names(const TopoMatrix& m, const std::vector<int>& devices) {
  std::vector<std::string> out;
  for (const int d : devices) out.push_back(m.devices[d]);
  return out;
}

Json json_of(const TopoMatrix& m, const std::string& written) {
  const TopoSummary s = summary_of(m);
  Json gpus = Json::array();
  for (int g = 0; g < m.gpus; ++g) {
    gpus.push_back({{"name", m.devices[g]},
                    {"nearest_nics", names(m, s.nearest_nics[g])},
                    {"cpu_affinity", m.cpu_affinity[g]},
                    {"numa_affinity", m.numa_affinity[g]}});
  }
  return {{"gpus", gpus},
          {"nics", m.nics()},
          {"compute_nics", s.rails},
          {"other_nics", names(m, s.other_nics)},
          {"gpus_without_a_near_nic", names(m, s.far_gpus)},
          {"fabric", fabric_name(s.fabric)},
          {"nvlinks_per_gpu", s.nvlinks_per_gpu},
          {"nvlinks_per_pair", s.nvlinks_per_pair},
          {"nvlink_domain", s.nvlink_domain},
          {"notes", m.notes},
          {"written", written.empty() ? Json(nullptr) : Json(written)}};
}

Json figure(const std::string& value, const Sourced& from) {
  Json out = {{"value", value}, {"source", from.source}};
  if (from.assumed) out["assumed"] = true;
  return out;
}

std::string rate(double bytes_per_second) { return Json(bytes_per_second * 1e-9).dump() + " GB/s"; }

/// The node as a cluster file: links and NICs as the matrix shows them, the network as in the GPU's reference cluster.
std::string cluster_file(const TopoMatrix& m, const Options& o) {
  if (o.gpu.empty()) throw InputError("--gpu", "is required with --out: a matrix does not name its GPUs");
  if (o.nic.empty() && m.nics() > 0)
    throw InputError("--nic", "is required with --out: a matrix does not tell the NICs' rate");
  const Cluster reference = load_cluster(o.gpu, "--gpu");
  const Node node = node_of(m, reference.gpu, o.nic.empty() ? 0 : parse_bytes_per_second(o.nic, "--nic"));
  Json n = {{"gpus", node.gpus},
            {"nvlink_domain", node.nvlink_domain},
            {"fabric", fabric_name(node.fabric)},
            {"source", "nvidia-smi topo -m"}};
  if (node.pair_bytes_per_second.value > 0)
    n["pair_bandwidth"] = figure(rate(node.pair_bytes_per_second.value), node.pair_bytes_per_second);
  n["nics"] = {{"value", static_cast<int>(node.nics.value)}, {"source", node.nics.source}};
  n["nic_bandwidth"] = figure(rate(node.nic_bytes_per_second.value), node.nic_bytes_per_second);
  if (reference.node.pcie_bytes_per_second.value > 0) {
    n["pcie_bandwidth"] =
        figure(rate(reference.node.pcie_bytes_per_second.value), reference.node.pcie_bytes_per_second);
  }
  const Network& net = reference.network;
  const Json network = {{"kind", net.kind},
                        {"wiring", wiring_name(net.wiring)},
                        {"source", "reference cluster of " + reference.gpu.name},
                        {"hop_latency", figure(Json(net.hop_seconds.value * 1e6).dump() + " us", net.hop_seconds)}};
  return Json{{"name", "imported-" + reference.gpu.name},
              {"description", "A node of " + std::to_string(m.gpus) + " GPUs read from nvidia-smi topo -m"},
              {"gpu", reference.gpu.name},
              {"node", n},
              {"network", network}}
             .dump(2) +
         "\n";
}

void run(const Options& o) {
  const TopoMatrix matrix = read_topo(o.file);
  if (!o.out.empty()) {
    const std::string text = cluster_file(matrix, o);
    read_cluster(text, o.out);  // what is written can be read
    write_text_file(o.out, text);
  }
  if (o.format == "json") return print_json(json_of(matrix, o.out));
  std::printf("%s", topo_text(matrix).c_str());
  if (!o.out.empty()) std::printf("written to %s\n", o.out.c_str());
}

}  // namespace

void add_import_topo(CLI::App& import_verb) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = import_verb.add_subcommand("topo", "The matrix that nvidia-smi topo -m prints");
  verb->add_option("file", o->file, "the text")->required();
  verb->add_option("--gpu", o->gpu, "the GPU's name, for --out");
  verb->add_option("--nic", o->nic, "line rate of one compute NIC, for --out: \"400 Gbit/s\"");
  verb->add_option("--out", o->out, "cluster file to write");
  add_format_option(*verb, o->format);
  verb->footer("Example:\n  shardplan measure import topo topo.txt --gpu h100-sxm --nic '400 Gbit/s' --out node.json");
  verb->callback([o] { run(*o); });
}

}  // namespace shardplan
