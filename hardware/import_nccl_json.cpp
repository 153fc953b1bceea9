// The report of nccl-tests -J: config with devices, results with out_of_place and in_place.
#include <set>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/import_nccl.hpp"

namespace shardplan {

namespace {

std::optional<NcclTestsHalf> half_of(const Field& result, const char* key) {
  const auto f = result.find(key);
  if (!f) return std::nullopt;
  const auto time = f->find("time") ? f->find("time") : f->find("cpu_time");
  if (!time) f->fail("has neither time nor cpu_time");
  NcclTestsHalf h{time->number() * 1e-6, f->at("alg_bw").number() * 1e9, f->at("bus_bw").number() * 1e9, {}};
  if (const auto wrong = f->find("nwrong")) h.wrong = wrong->number();
  return h;
}

void read_devices(const Field& list, NcclTestsLog& log) {
  std::set<std::string> hosts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field d = list.item(i);
    log.header_ranks = std::max(log.header_ranks, static_cast<int>(d.at("rank").count(0, 1 << 24)) + 1);
    if (const auto host = d.find("hostname")) hosts.insert(host->text());
    if (const auto info = d.find("device_info")) log.gpu = info->text();
  }
  if (static_cast<int>(list.size()) == log.header_ranks)
    log.header_nodes = static_cast<int>(hosts.size());
  else
    log.flags.push_back("the device list names " + std::to_string(list.size()) + " of " +
                        std::to_string(log.header_ranks) + " ranks");
}

}  // namespace

void read_nccl_tests_json(std::string_view text, NcclTestsLog& log) {
  const Field f = Field::parse(text, log.name);
  if (const auto config = f.find("config")) {
    if (const auto most = config->find("maximum_bytes")) log.header_most_bytes = most->number();
    if (const auto devices = config->find("devices")) read_devices(*devices, log);
  }
  if (const auto devices = f.find("devices")) read_devices(*devices, log);
  for (const char* key : {"nccl_version", "nccl_library_version"}) {
    if (const auto version = f.find(key); version && version->is_string()) log.nccl = version->text();
  }
  if (const auto arguments = f.find("args"); arguments && arguments->is_array() && arguments->size() > 0) {
    std::string program = arguments->item(0).is_string() ? arguments->item(0).text() : "";
    if (const auto slash = program.rfind('/'); slash != std::string::npos) program = program.substr(slash + 1);
    if (const auto perf = program.find("_perf"); perf != std::string::npos) program.resize(perf);
    if (collective_of(program)) log.op = program;
  }
  const Field results = f.at("results");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Field r = results.item(i);
    NcclTestsRow row;
    row.bytes = r.at("size").number();
    row.count = r.at("count").number();
    row.type = r.at("type").text();
    if (const auto redop = r.find("redop")) row.redop = redop->text();
    if (const auto name = r.find("experiment_name"); name && log.op.empty() && collective_of(name->text()))
      log.op = name->text();
    row.out_of_place = half_of(r, "out_of_place");
    row.in_place = half_of(r, "in_place");
    log.rows.push_back(std::move(row));
  }
  log.complete = f.has("out_of_bounds");
  if (const auto bounds = f.find("out_of_bounds"); bounds && bounds->find("okay") && !bounds->at("okay").boolean()) {
    log.flags.push_back("the run reports wrong results (out of bounds values)");
  }
}

}  // namespace shardplan
