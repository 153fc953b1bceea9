#include "hardware/collective_tables.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/collective_rows.hpp"

namespace shardplan {

namespace {

constexpr std::string_view kFolder = "data/collectives/";
constexpr std::string_view kCommon = "data/collectives/common.json";
constexpr std::array<std::string_view, 3> kTypeClassNames = {"any", "wide", "narrow"};

ProtocolConstants read_protocol(const Field& f) {
  f.allow_only({"base_us", "hop_us", "bus_GBps", "pair_loss"});
  ProtocolConstants p{f.at("base_us").positive() * 1e-6, f.at("hop_us").number() * 1e-6,
                      f.at("bus_GBps").positive() * 1e9, f.at("pair_loss").number()};
  if (p.hop_seconds < 0) f.at("hop_us").fail("must not be negative");
  if (p.pair_loss < 0 || p.pair_loss >= 1) f.at("pair_loss").fail("must be in [0, 1)");
  return p;
}

MeasuredCurve read_curve(const Field& f) {
  f.allow_only({"op", "ranks", "types", "us"});
  MeasuredCurve c;
  const auto op = collective_of(f.at("op").text());
  if (!op) f.at("op").fail("is no collective");
  c.op = *op;
  c.ranks = static_cast<int>(f.at("ranks").count(2, 1 << 20));
  const std::string types = f.at("types").text();
  const auto at = std::find(kTypeClassNames.begin(), kTypeClassNames.end(), types);
  if (at == kTypeClassNames.end()) f.at("types").fail("must be any, wide or narrow");
  c.type = static_cast<TypeClass>(at - kTypeClassNames.begin());
  const Field us = f.at("us");
  for (std::size_t i = 0; i < us.size(); ++i)
    c.seconds.push_back(us.item(i).is_null() ? 0 : us.item(i).positive() * 1e-6);
  return c;
}

/// Four significant digits are below the noise of the fit.
double shortened(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return std::strtod(text, nullptr);
}
double rounded(double v, double unit) { return std::round(v / unit) / std::round(1 / unit); }

nlohmann::ordered_json protocol_json(const ProtocolConstants& p) {
  return {{"base_us", rounded(p.base_seconds * 1e6, 1e-3)},
          {"hop_us", rounded(p.hop_seconds * 1e6, 1e-3)},
          {"bus_GBps", rounded(p.bus_bytes_per_second * 1e-9, 1e-3)},
          {"pair_loss", rounded(p.pair_loss, 1e-4)}};
}

std::shared_ptr<const CollectiveCalibration> read_embedded() {
  auto out = std::make_shared<CollectiveCalibration>();
  for (const EmbeddedFile& file : hardware_data()) {
    if (file.name.rfind(kFolder, 0) != 0) continue;
    const std::string name = "hardware/" + std::string(file.name);
    if (file.name == kCommon)
      read_collective_common(file.text, name, *out);
    else
      out->tables.push_back(read_collective_table(file.text, name));
  }
  if (out->tables.empty()) throw InputError("hardware/data/collectives", "holds no table");
  std::sort(out->tables.begin(), out->tables.end(), [](const auto& a, const auto& b) { return a.gpu < b.gpu; });
  return out;
}

}  // namespace

double link_of(const Cluster& c) {
  const double pcie = c.node.pcie_bytes_per_second.value, nvlink = c.gpu.nvlink_bytes_per_second.value;
  return (c.node.fabric == IntraFabric::pcie && pcie > 0) || nvlink <= 0 ? pcie : nvlink;
}

CollectiveTable read_collective_table(std::string_view json, const std::string& name) {
  return read_collective_table(Field::parse(json, name));
}

CollectiveTable read_collective_table(const Field& f) {
  f.allow_only({"gpu", "family", "generation", "serves", "source", "fabric", "link_GBps", "ring", "pairwise", "nvls",
                "all_reduce_loss", "spread_small", "spread_large", "curves"});
  CollectiveTable t;
  t.gpu = f.at("gpu").text();
  t.family = f.at("family").text();
  t.generation = f.at("generation").text();
  const Field serves = f.at("serves");
  for (std::size_t i = 0; i < serves.size(); ++i) t.serves.push_back(serves.item(i).text());
  t.source = f.at("source").text();
  if (const auto fabric = f.find("fabric")) {
    t.fabric = fabric->text();
    if (std::find(kIntraFabricNames.begin(), kIntraFabricNames.end(), t.fabric) == kIntraFabricNames.end())
      fabric->fail("is no fabric of a node: " + fabric->shown());
  }
  t.link_bytes_per_second = f.at("link_GBps").positive() * 1e9;
  const Field ring = f.at("ring"), pairwise = f.at("pairwise");
  t.domain.ring = {read_protocol(ring.at("ll")), read_protocol(ring.at("ll128")), read_protocol(ring.at("simple"))};
  t.domain.pairwise = {read_protocol(pairwise.at("ll")), read_protocol(pairwise.at("simple"))};
  if (const auto nvls = f.find("nvls")) {
    t.domain.nvls = NvlsConstants{nvls->at("base_us").positive() * 1e-6, nvls->at("GBps").positive() * 1e9,
                                  static_cast<int>(nvls->at("least_ranks").count(2, 1024))};
  }
  t.domain.all_reduce_loss = f.at("all_reduce_loss").positive();
  t.spread_small = f.at("spread_small").positive();
  t.spread_large = f.at("spread_large").positive();
  if (const auto curves = f.find("curves")) {
    for (std::size_t i = 0; i < curves->size(); ++i) t.curves.push_back(read_curve(curves->item(i)));
  }
  return t;
}

void read_collective_common(std::string_view json, const std::string& name, CollectiveCalibration& into) {
  const Field f = Field::parse(json, name);
  f.allow_only({"source", "correlation", "interval", "across_nodes"});
  const Field c = f.at("correlation"), i = f.at("interval"), a = f.at("across_nodes");
  into.correlation = {c.at("variance").positive(),   c.at("noise").positive(),
                      c.at("family").number(),       c.at("generation").number(),
                      c.at("other_gpu").number(),    c.at("gather_scatter").number(),
                      c.at("reduce_other").number(), c.at("pairwise_other").number(),
                      c.at("ranks").positive(),      c.at("type").number(),
                      c.at("fade").number()};
  into.interval = {i.at("small").positive(), i.at("large").positive(), i.at("pairwise_small").positive(),
                   i.at("pairwise_large").positive()};
  into.fabric.ring_efficiency = a.at("ring_efficiency").positive();
  into.fabric.tree_efficiency = a.at("tree_efficiency").positive();
  into.fabric.nvls_tree_efficiency = a.at("nvls_tree_efficiency").positive();
  const auto scale = a.at("hop_scale").numbers(), extra = a.at("hop_extra_us").numbers();
  if (scale.size() != 3 || extra.size() != 3)
    a.fail("hop_scale and hop_extra_us hold three numbers: LL, LL128, Simple");
  for (std::size_t p = 0; p < 3; ++p) {
    into.fabric.hop_scale[p] = scale[p];
    into.fabric.hop_extra[p] = extra[p] * 1e-6;
  }
  into.fabric.fill_scale = a.at("fill_scale").positive();
  into.fabric.fill_bytes = a.at("fill_bytes").positive();
  into.across_log_deviation = a.at("log_deviation").positive();
}

std::string json_of(const CollectiveTable& t) {
  using json = nlohmann::ordered_json;
  json out = {
      {"gpu", t.gpu}, {"family", t.family}, {"generation", t.generation}, {"serves", t.serves}, {"source", t.source}};
  if (t.fabric != "nvswitch") out["fabric"] = t.fabric;
  out["link_GBps"] = t.link_bytes_per_second * 1e-9;
  out["ring"] = {{"ll", protocol_json(t.domain.ring[0])},
                 {"ll128", protocol_json(t.domain.ring[1])},
                 {"simple", protocol_json(t.domain.ring[2])}};
  out["pairwise"] = {{"ll", protocol_json(t.domain.pairwise[0])}, {"simple", protocol_json(t.domain.pairwise[1])}};
  if (t.domain.nvls) {
    out["nvls"] = {{"base_us", rounded(t.domain.nvls->base_seconds * 1e6, 1e-3)},
                   {"GBps", rounded(t.domain.nvls->bytes_per_second * 1e-9, 1e-3)},
                   {"least_ranks", t.domain.nvls->least_ranks}};
  }
  out["all_reduce_loss"] = shortened(t.domain.all_reduce_loss);
  out["spread_small"] = shortened(t.spread_small);
  out["spread_large"] = shortened(t.spread_large);
  std::string text = out.dump(1);
  text.resize(text.size() - 2);  // the closing brace: one line a curve follows
  text += ",\n \"curves\": [";
  for (std::size_t i = 0; i < t.curves.size(); ++i) {
    const MeasuredCurve& c = t.curves[i];
    json us = json::array();
    for (const double s : c.seconds) us.push_back(s > 0 ? json(shortened(s * 1e6)) : json(nullptr));
    const json line = {{"op", collective_name(c.op)},
                       {"ranks", c.ranks},
                       {"types", kTypeClassNames[static_cast<std::size_t>(c.type)]},
                       {"us", us}};
    text += (i > 0 ? ",\n  " : "\n  ") + line.dump();
  }
  return text + "\n ]\n}\n";
}

std::string common_json_of(const CollectiveCalibration& c) {
  using json = nlohmann::ordered_json;
  const CorrelationConstants& k = c.correlation;
  json out;
  out["source"] =
      "calibrated on published nccl-tests curves by leaving out whole curves (in one domain) and whole logs (across "
      "nodes)";
  out["correlation"] = {{"variance", k.variance},
                        {"noise", k.noise},
                        {"family", k.family},
                        {"generation", k.generation},
                        {"other_gpu", k.other_gpu},
                        {"gather_scatter", k.gather_scatter},
                        {"reduce_other", k.reduce_other},
                        {"pairwise_other", k.pairwise_other},
                        {"ranks", k.ranks},
                        {"type", k.type},
                        {"fade", k.fade}};
  out["interval"] = {{"small", shortened(c.interval.small)},
                     {"large", shortened(c.interval.large)},
                     {"pairwise_small", shortened(c.interval.pairwise_small)},
                     {"pairwise_large", shortened(c.interval.pairwise_large)}};
  const FabricConstants& f = c.fabric;
  out["across_nodes"] = {
      {"ring_efficiency", shortened(f.ring_efficiency)},
      {"tree_efficiency", shortened(f.tree_efficiency)},
      {"nvls_tree_efficiency", shortened(f.nvls_tree_efficiency)},
      {"hop_scale", {shortened(f.hop_scale[0]), shortened(f.hop_scale[1]), shortened(f.hop_scale[2])}},
      {"hop_extra_us",
       {shortened(f.hop_extra[0] * 1e6), shortened(f.hop_extra[1] * 1e6), shortened(f.hop_extra[2] * 1e6)}},
      {"fill_scale", shortened(f.fill_scale)},
      {"fill_bytes", shortened(f.fill_bytes)},
      {"log_deviation", shortened(c.across_log_deviation)}};
  return out.dump(1) + "\n";
}

const CollectiveTable* CollectiveCalibration::find(std::string_view gpu) const {
  for (const CollectiveTable& t : tables) {
    if (t.gpu == gpu) return &t;
  }
  return nullptr;
}

CorrectionField CollectiveCalibration::correction_field() const {
  std::vector<CorrectionField::Entry> entries;
  for (const CollectiveTable& t : tables) {
    for (const MeasuredCurve& c : t.curves) {
      entries.push_back({{t.gpu, t.family, t.generation, c.op, c.ranks, c.type}, log_ratios(c, t.domain)});
    }
  }
  return CorrectionField(std::move(entries), correlation);
}

std::shared_ptr<const CollectiveCalibration> collective_calibration() {
  static const std::shared_ptr<const CollectiveCalibration> calibration = read_embedded();
  return calibration;
}

CollectiveCalibration with_table(const CollectiveCalibration& calibration, CollectiveTable table) {
  CollectiveCalibration out = calibration;
  std::erase_if(out.tables, [&](const CollectiveTable& t) { return t.gpu == table.gpu; });
  for (CollectiveTable& t : out.tables) std::erase(t.serves, table.gpu);
  out.tables.push_back(std::move(table));
  std::sort(out.tables.begin(), out.tables.end(), [](const auto& a, const auto& b) { return a.gpu < b.gpu; });
  return out;
}

std::shared_ptr<const CollectiveCalibration> calibration_of(const Cluster& cluster) {
  const std::string& path = cluster.gpu.calibration;
  if (!path.ends_with(".json")) return collective_calibration();
  const auto own = Field::read(path).find("collectives");
  if (!own) return collective_calibration();
  CollectiveTable table = read_collective_table(*own);
  table.gpu = cluster.gpu.name;  // measured on this machine, whatever its GPU is called now
  return std::make_shared<const CollectiveCalibration>(with_table(*collective_calibration(), std::move(table)));
}

TableChoice table_for(const CollectiveCalibration& calibration, const Cluster& cluster) {
  const double link = link_of(cluster);
  const auto chosen = [&](const CollectiveTable* t, bool own, bool known) {
    return TableChoice{t, own, known, link > 0 ? link / t->link_bytes_per_second : 1};
  };
  if (const auto* t = calibration.find(cluster.gpu.name)) return chosen(t, true, true);
  for (const CollectiveTable& t : calibration.tables) {
    if (std::find(t.serves.begin(), t.serves.end(), cluster.gpu.name) != t.serves.end()) return chosen(&t, false, true);
  }
  const CollectiveTable* nearest = &calibration.tables.front();
  const auto distance = [&](const CollectiveTable& t) {
    return std::abs(std::log(std::max(link, 1.0) / t.link_bytes_per_second));
  };
  for (const CollectiveTable& t : calibration.tables) {
    if (distance(t) < distance(*nearest)) nearest = &t;
  }
  return chosen(nearest, false, false);
}

}  // namespace shardplan
