#include "cli/measure_calibrate_rows.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/csv.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"
#include "cli/output.hpp"
#include "hardware/calibrate_collectives.hpp"
#include "hardware/calibrate_deepep.hpp"

namespace shardplan {

namespace {

bool is_collective_table(const CsvTable& t) { return t.has("op") && t.has("ranks") && t.has("time_us"); }

struct Fitted {
  std::string file;
  std::size_t rows = 0;
};

/// Rows that the tables could not use are counted by GPU, not hidden.
std::vector<Fitted> calibrate_collective_rows(const std::vector<CollectiveRow>& rows, const std::string& out) {
  const CollectiveCalibration c = calibrate_collectives(rows, *collective_calibration());
  std::map<std::string, std::size_t> counts;
  for (const CollectiveRow& r : rows) {
    try {
      CollectiveRow one = r;
      one.nodes = 1;
      ++counts[cluster_of(one).gpu.name];
    } catch (const InputError&) {
      ++counts["(no data file) " + r.gpu];
    }
  }
  std::vector<Fitted> fitted;
  for (const auto& [gpu, n] : counts) {
    if (const CollectiveTable* t = c.find(gpu)) {
      const std::string path = out + "/" + gpu + ".json";
      write_text_file(path, json_of(*t));
      fitted.push_back({path, n});
    } else {
      fitted.push_back({"not used: " + gpu, n});
    }
  }
  write_text_file(out + "/common.json", common_json_of(c));
  fitted.push_back({out + "/common.json", rows.size()});
  return fitted;
}

std::vector<Fitted> calibrate_deepep_rows(const std::vector<DeepEpRow>& rows, const std::string& out) {
  std::map<std::string, std::vector<DeepEpRow>> by_gpu;
  for (const DeepEpRow& r : rows) by_gpu[r.gpu.empty() ? r.device : r.gpu].push_back(r);
  std::vector<Fitted> fitted;
  for (const auto& [gpu, own] : by_gpu) {
    const auto& tables = deepep_tables();
    const auto like = std::find_if(tables.begin(), tables.end(), [&](const DeepEpTable& t) { return t.gpu == gpu; });
    if (like == tables.end()) {
      fitted.push_back({"not used: " + gpu, own.size()});
      continue;
    }
    const std::string path = out + "/" + gpu + ".json";
    write_text_file(path, json_of(calibrate_deepep(own, *like)));
    fitted.push_back({path, own.size()});
  }
  return fitted;
}

}  // namespace

bool are_network_rows(const std::vector<std::string>& files) {
  if (files.empty() || files.front().size() < 4 || files.front().substr(files.front().size() - 4) != ".csv")
    return false;
  const CsvTable t = CsvTable::read(files.front());
  return is_deepep_table(t) || is_collective_table(t);
}

void calibrate_network_rows(const std::vector<std::string>& files, const std::string& out, bool json) {
  std::vector<CollectiveRow> collectives;
  std::vector<DeepEpRow> exchanges;
  for (const std::string& path : files) {
    const CsvTable t = CsvTable::read(path);
    if (is_deepep_table(t)) {
      const auto rows = read_deepep_rows(t);
      exchanges.insert(exchanges.end(), rows.begin(), rows.end());
    } else if (is_collective_table(t)) {
      const auto rows = read_collective_rows(t);
      collectives.insert(collectives.end(), rows.begin(), rows.end());
    } else {
      throw InputError(path, "its header is neither of collective rows nor of DeepEP rows");
    }
  }
  if (!collectives.empty() && !exchanges.empty())
    throw InputError(files.front(),
                     "collective rows and DeepEP rows make tables of different folders: calibrate them apart");
  if (collectives.empty() && exchanges.empty()) throw InputError(files.front(), "holds no rows");
  const auto fitted =
      collectives.empty() ? calibrate_deepep_rows(exchanges, out) : calibrate_collective_rows(collectives, out);
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Fitted& f : fitted) list.push_back({{"file", f.file}, {"rows", f.rows}});
    return print_json({{"written", out}, {"tables", list}});
  }
  for (const Fitted& f : fitted) std::printf("%-48s %zu rows\n", f.file.c_str(), f.rows);
}

}  // namespace shardplan
