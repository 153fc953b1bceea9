#include "hardware/collective_tables.hpp"

#include <algorithm>
#include <cmath>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"

namespace shardplan {

namespace {

constexpr std::string_view kFolder = "data/collectives/";

ProtocolConstants read_protocol(const Field& f) {
  f.allow_only({"base_us", "hop_us", "bus_GBps", "pair_loss"});
  ProtocolConstants p{f.at("base_us").positive() * 1e-6, f.at("hop_us").number() * 1e-6,
                      f.at("bus_GBps").positive() * 1e9, f.at("pair_loss").number()};
  if (p.hop_seconds < 0) f.at("hop_us").fail("must not be negative");
  if (p.pair_loss < 0 || p.pair_loss >= 1) f.at("pair_loss").fail("must be in [0, 1)");
  return p;
}

CollectiveTable read_table(const Field& f) {
  CollectiveTable t;
  t.gpu = f.at("gpu").text();
  const Field serves = f.at("serves");
  for (std::size_t i = 0; i < serves.size(); ++i) t.serves.push_back(serves.item(i).text());
  t.source = f.at("source").text();
  t.link_bytes_per_second = f.at("link_GBps").positive() * 1e9;
  const Field ring = f.at("ring"), pairwise = f.at("pairwise");
  t.domain.ring = {read_protocol(ring.at("ll")), read_protocol(ring.at("ll128")), read_protocol(ring.at("simple"))};
  t.domain.pairwise = {read_protocol(pairwise.at("ll")), read_protocol(pairwise.at("simple"))};
  if (const auto nvls = f.find("nvls")) {
    t.domain.nvls = NvlsConstants{nvls->at("base_us").positive() * 1e-6, nvls->at("GBps").positive() * 1e9,
                                  static_cast<int>(nvls->at("least_ranks").count(2, 1024))};
  }
  return t;
}

std::vector<CollectiveTable> read_tables() {
  std::vector<CollectiveTable> out;
  for (const EmbeddedFile& file : hardware_data()) {
    if (file.name.rfind(kFolder, 0) != 0) continue;
    const Field f = Field::parse(file.text, "hardware/" + std::string(file.name));
    if (f.has("ring")) out.push_back(read_table(f));
  }
  if (out.empty()) throw InputError("hardware/data/collectives", "holds no table");
  return out;
}

const CollectiveTable* find_table(const std::string& gpu) {
  for (const CollectiveTable& t : collective_tables()) {
    if (t.gpu == gpu) return &t;
  }
  return nullptr;
}

/// Links of the domain as one GPU sees them, bytes/s per direction.
double link_of(const Cluster& c) {
  if (c.node.fabric == IntraFabric::pcie && c.node.pcie_bytes_per_second.value > 0)
    return c.node.pcie_bytes_per_second.value;
  if (c.gpu.nvlink_bytes_per_second.value > 0) return c.gpu.nvlink_bytes_per_second.value;
  return c.node.pcie_bytes_per_second.value;
}

}  // namespace

std::span<const CollectiveTable> collective_tables() {
  static const std::vector<CollectiveTable> tables = read_tables();
  return tables;
}

TableChoice table_for(const Cluster& cluster) {
  const double link = link_of(cluster);
  const auto chosen = [&](const CollectiveTable* t, bool own) {
    return TableChoice{t, own, link > 0 ? link / t->link_bytes_per_second : 1};
  };
  if (const auto* t = find_table(cluster.gpu.name)) return chosen(t, true);
  for (const CollectiveTable& t : collective_tables()) {
    if (std::find(t.serves.begin(), t.serves.end(), cluster.gpu.name) != t.serves.end()) return chosen(&t, false);
  }
  if (const auto* t = find_table(cluster.gpu.sibling)) return chosen(t, false);
  const CollectiveTable* nearest = &collective_tables().front();
  const auto distance = [&](const CollectiveTable& t) {
    return std::abs(std::log(std::max(link, 1.0) / t.link_bytes_per_second));
  };
  for (const CollectiveTable& t : collective_tables()) {
    if (distance(t) < distance(*nearest)) nearest = &t;
  }
  return chosen(nearest, false);
}

}  // namespace shardplan
