#include "layouts/machine_needs.hpp"

#include <algorithm>
#include <vector>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "layouts/ranks.hpp"

namespace shardplan {
namespace {

constexpr const char* kFile = "data/machine_needs.json";

/// Lists that are empty ask for nothing.
struct Needs {
  std::string word;
  std::vector<std::string> architectures, not_gpus, fabrics;
  std::vector<int> ranks;  // sizes that a group of experts may have
  std::vector<std::string> far_architectures, far_networks;
  bool whole_nodes = false;  // a group across nodes is made of whole ones
};

std::vector<std::string> texts(const Field& f, const char* key) {
  std::vector<std::string> out;
  if (const auto list = f.find(key))
    for (std::size_t i = 0; i < list->size(); ++i) out.push_back(list->item(i).text());
  return out;
}

Needs read_needs(const Field& f) {
  f.allow_only({"word", "architectures", "not_gpus", "fabrics", "ranks", "across_nodes", "source"});
  Needs n;
  n.word = f.at("word").text();
  f.at("source").text();
  n.architectures = texts(f, "architectures");
  n.not_gpus = texts(f, "not_gpus");
  n.fabrics = texts(f, "fabrics");
  if (const auto list = f.find("ranks"))
    for (std::size_t i = 0; i < list->size(); ++i) n.ranks.push_back(static_cast<int>(list->item(i).count(1, 65536)));
  if (const auto far = f.find("across_nodes")) {
    far->allow_only({"architectures", "networks", "whole_nodes"});
    n.far_architectures = texts(*far, "architectures");
    n.far_networks = texts(*far, "networks");
    if (const auto whole = far->find("whole_nodes")) n.whole_nodes = whole->boolean();
  }
  return n;
}

const std::vector<Needs>& all_needs() {
  static const std::vector<Needs> all = [] {
    for (const EmbeddedFile& file : layouts_data()) {
      if (file.name != kFile) continue;
      const Field list = Field::parse(file.text, kFile).at("needs");
      std::vector<Needs> out;
      for (std::size_t i = 0; i < list.size(); ++i) out.push_back(read_needs(list.item(i)));
      return out;
    }
    throw InputError(kFile, "is not part of this program");
  }();
  return all;
}

const Needs* needs_of(const std::string& word) {
  for (const Needs& n : all_needs())
    if (n.word == word) return &n;
  return nullptr;
}

template <class T>
bool lists(const std::vector<T>& list, const T& one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

std::string either(const std::vector<std::string>& list) {
  std::string out;
  for (std::size_t i = 0; i < list.size(); ++i) out += (i == 0 ? "" : i + 1 == list.size() ? " or " : ", ") + list[i];
  return out;
}

using Reason = std::optional<std::string>;

Reason of_gpu(const Needs& n, const Cluster& c) {
  if (!n.architectures.empty() && !lists(n.architectures, c.gpu.architecture))
    return n.word + " needs " + either(n.architectures) + " GPUs, " + c.gpu.name + " is " + c.gpu.architecture;
  if (lists(n.not_gpus, c.gpu.name)) return n.word + " does not run on " + c.gpu.name;
  const std::string fabric(fabric_name(c.node.fabric));
  if (!n.fabrics.empty() && !lists(n.fabrics, fabric))
    return n.word + " needs " + either(n.fabrics) + " inside a node, not " + fabric;
  return {};
}

Reason of_group(const Needs& n, const Layout& l, const Cluster& c) {
  const int ranks = l.ep * l.etp;
  if (!n.ranks.empty() && !lists(n.ranks, ranks))
    return n.word + " has no kernels for groups of " + std::to_string(ranks) + " ranks";
  const GroupShape shape = group_shape(l, c, RankGroup::ep);
  if (!shape.crosses()) return {};
  if (!n.far_architectures.empty() && !lists(n.far_architectures, c.gpu.architecture))
    return n.word + " crosses nodes with " + either(n.far_architectures) + " GPUs only";
  if (!n.far_networks.empty() && !lists(n.far_networks, c.network.kind))
    return n.word + " needs " + either(n.far_networks) + " between nodes, not " + c.network.kind;
  if (n.whole_nodes && shape.ranks_per_domain * l.etp != c.node.nvlink_domain)
    return n.word + " crosses nodes only with whole nodes";
  return {};
}

}  // namespace

bool overlaps_tensor_parallel(const Cluster& c) {
  const Needs* n = needs_of("tp-overlap=async");
  return n == nullptr || !of_gpu(*n, c);
}

std::optional<std::string> refused_by_machine(const Layout& l, const Cluster& c) {
  if (l.tp > 1 && l.tp_overlap == TpOverlap::async) {
    if (const Needs* n = needs_of("tp-overlap=async"))
      if (auto why = of_gpu(*n, c)) return why;
  }
  if (l.ep == 1 || !l.transport || *l.transport == Transport::nccl) return {};
  const Needs* n = needs_of(*l.transport == Transport::deepep ? "transport=deepep" : "transport=hybridep");
  if (n == nullptr) return {};
  if (auto why = of_gpu(*n, c)) return why;
  return of_group(*n, l, c);
}

}  // namespace shardplan
