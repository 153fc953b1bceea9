#include "hardware/kernel_tables.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/suggest.hpp"

namespace shardplan {

namespace {

constexpr const char* kSchema = "shardplan-kernels/1";

KernelClass parse_class(const Field& field) {
  const std::string text = field.text();
  for (std::size_t i = 0; i < kKernelClassNames.size(); ++i) {
    if (kKernelClassNames[i] == text) return static_cast<KernelClass>(i);
  }
  field.fail("unknown kernel class \"" + text + "\"");
}

LogGrid parse_grid(const Field& field, bool ratios) {
  std::vector<GridAxis> axes;
  std::size_t count = 1;
  const Field list = field.at("axes");
  if (list.size() > LogGrid::kMostAxes || list.size() == 0) list.fail("1 to 5 axes");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field axis = list.item(i);
    axis.allow_only({"name", "nodes"});
    GridAxis parsed{axis.at("name").text(), axis.at("nodes").numbers()};
    if (parsed.nodes.empty()) axis.fail("an axis needs nodes");
    for (std::size_t j = 0; j < parsed.nodes.size(); ++j) {
      if (!(parsed.nodes[j] > (j == 0 ? 0 : parsed.nodes[j - 1])))
        axis.at("nodes").fail("nodes must be positive and ascend");
    }
    count *= parsed.nodes.size();
    axes.push_back(std::move(parsed));
  }
  const Field list_of_values = field.at(ratios ? "ratios" : "microseconds");
  std::vector<double> logs = list_of_values.numbers();
  if (logs.size() != count) list_of_values.fail("needs " + std::to_string(count) + " numbers, one a node");
  for (double& value : logs) {
    if (!(value > 0)) list_of_values.fail("values must be positive");
    value = std::log(ratios ? value : value * 1e-6);
  }
  return LogGrid(std::move(axes), std::move(logs));
}

KernelTable parse_table(const Field& field) {
  field.allow_only({"kernel", "variant", "dtype", "kv_dtype", "library", "source", "date", "peak_flops",
                    "hbm_bytes_per_second", "form", "axes", "microseconds", "ratios", "scale", "bands", "left_out",
                    "note"});
  KernelTable table;
  table.kernel = parse_class(field.at("kernel"));
  if (const auto variant = field.find("variant")) table.variant = variant->text();
  table.type = parse_data_type(field.at("dtype").text(), field.at("dtype").where());
  if (const auto kv = field.find("kv_dtype")) table.kv_type = parse_data_type(kv->text(), kv->where());
  table.library = field.at("library").text();
  table.source = field.at("source").text();
  table.date = field.at("date").text();
  table.rates = {field.at("peak_flops").positive(), field.at("hbm_bytes_per_second").positive()};
  const Field form = field.at("form");
  form.allow_only({"compute", "memory", "fixed_us", "exponent", "local", "routed"});
  table.form = {form.at("compute").positive(),
                form.at("memory").positive(),
                form.at("fixed_us").number() * 1e-6,
                form.at("exponent").positive(),
                form.has("local") ? form.at("local").number() : 0,
                form.has("routed") ? form.at("routed").number() : 0};
  table.ratios = field.has("ratios");
  if (field.has("axes")) table.grid = parse_grid(field, table.ratios);
  if (const auto scale = field.find("scale")) table.scale = scale->positive();
  const Field bands = field.at("bands");
  for (std::size_t i = 0; i < bands.size(); ++i) {
    const std::vector<double> band = bands.item(i).numbers();
    if (band.size() != 3) bands.item(i).fail("a band is [up to microseconds, low factor, high factor]");
    table.bands.push_back({band[0] * 1e-6, band[1], band[2]});
  }
  if (table.bands.empty()) bands.fail("needs at least one band");
  if (const auto left = field.find("left_out")) {
    table.left_out = {static_cast<int>(left->at("n").count()), left->at("mape").number(),
                      left->at("coverage_80").number()};
  }
  return table;
}

double rounded(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return std::strtod(text, nullptr);
}

nlohmann::ordered_json json_of(const KernelTable& table) {
  nlohmann::ordered_json out;
  out["kernel"] = kKernelClassNames[static_cast<std::size_t>(table.kernel)];
  if (!table.variant.empty()) out["variant"] = table.variant;
  out["dtype"] = data_type_name(table.type);
  if (table.kernel == KernelClass::attention) out["kv_dtype"] = data_type_name(table.kv_type);
  out["library"] = table.library;
  out["source"] = table.source;
  out["date"] = table.date;
  out["peak_flops"] = table.rates.peak;
  out["hbm_bytes_per_second"] = table.rates.bandwidth;
  out["form"] = {{"compute", rounded(table.form.compute, 4)},
                 {"memory", rounded(table.form.memory, 4)},
                 {"fixed_us", rounded(table.form.fixed * 1e6, 4)},
                 {"exponent", rounded(table.form.exponent, 4)}};
  if (table.kernel == KernelClass::experts) {
    out["form"]["local"] = rounded(table.form.local, 4);
    out["form"]["routed"] = rounded(table.form.routed, 4);
  }
  if (!table.grid.empty()) {
    auto& axes = out["axes"] = nlohmann::ordered_json::array();
    for (const GridAxis& axis : table.grid.axes()) axes.push_back({{"name", axis.name}, {"nodes", axis.nodes}});
    auto& values = out[table.ratios ? "ratios" : "microseconds"] = nlohmann::ordered_json::array();
    for (const double log : table.grid.values()) values.push_back(rounded(std::exp(log) * (table.ratios ? 1 : 1e6), 4));
  }
  if (table.scale != 1) out["scale"] = rounded(table.scale, 4);
  auto& bands = out["bands"] = nlohmann::ordered_json::array();
  for (const ErrorBand& band : table.bands) {
    bands.push_back({rounded(band.up_to * 1e6, 4), rounded(band.low, 4), rounded(band.high, 4)});
  }
  out["left_out"] = {{"n", table.left_out.n},
                     {"mape", rounded(table.left_out.mape, 3)},
                     {"coverage_80", rounded(table.left_out.coverage_80, 3)}};
  return out;
}

/// One line a member of a table, so that a change of a fit reads well in a diff.
void write_table(std::string& text, const nlohmann::ordered_json& table) {
  text += "    {";
  bool first = true;
  for (const auto& [key, value] : table.items()) {
    text += (first ? "" : ",\n     ") + nlohmann::ordered_json(key).dump() + ": " + value.dump();
    first = false;
  }
  text += "}";
}

std::vector<KernelTables> load_folder(std::string_view folder) {
  std::vector<KernelTables> all;
  for (const EmbeddedFile& file : hardware_data()) {
    if (file.name.rfind(folder, 0) == 0)
      all.push_back(parse_kernel_tables(file.text, "hardware/" + std::string(file.name)));
  }
  return all;
}

const KernelTables* named(const std::vector<KernelTables>& all, std::string_view name) {
  for (const KernelTables& tables : all) {
    if (tables.name == name) return &tables;
  }
  return nullptr;
}

const std::vector<KernelTables>& builtin() {
  static const std::vector<KernelTables> all = load_folder("data/kernels/");
  return all;
}

}  // namespace

DataType parse_data_type(std::string_view text, const std::string& where) {
  struct Alias {
    std::string_view name;
    DataType type;
  };
  constexpr std::array<Alias, 8> aliases{{{"bfloat16", DataType::bf16},
                                          {"float16", DataType::fp16},
                                          {"half", DataType::fp16},
                                          {"float32", DataType::fp32},
                                          {"fp8_block", DataType::fp8_block},
                                          {"fp8_row", DataType::fp8_row},
                                          {"fp8-tensor", DataType::fp8},
                                          {"fp8_e4m3", DataType::fp8}}};
  for (std::size_t i = 0; i < kDataTypeNames.size(); ++i) {
    if (kDataTypeNames[i] == text) return static_cast<DataType>(i);
  }
  for (const Alias& alias : aliases) {
    if (alias.name == text) return alias.type;
  }
  const std::vector<std::string> names(kDataTypeNames.begin(), kDataTypeNames.end());
  throw InputError(where, "unknown data type \"" + std::string(text.substr(0, 40)) + "\"" + did_you_mean(text, names));
}

const KernelTable* KernelTables::find(KernelClass kernel, DataType type, std::string_view library,
                                      std::string_view variant, std::optional<DataType> kv) const {
  for (const KernelTable& table : tables) {
    if (table.kernel == kernel && table.type == type && (library.empty() || table.library == library) &&
        (variant.empty() || table.variant == variant) && (!kv || table.kv_type == *kv)) {
      return &table;
    }
  }
  return nullptr;
}

KernelTables parse_kernel_tables(std::string_view text, const std::string& name) {
  const Field file = Field::parse(text, name);
  file.allow_only({"schema", "name", "launch_floor_us", "launch_source", "sustained", "passes", "alignments", "tables",
                   "collectives"});
  if (file.at("schema").text() != kSchema) file.at("schema").fail("expected \"" + std::string(kSchema) + "\"");
  KernelTables out;
  out.name = file.at("name").text();
  out.launch_floor = file.at("launch_floor_us").positive() * 1e-6;
  out.launch_source = file.at("launch_source").text();
  const auto each = [&](const char* key, auto&& read) {
    const auto list = file.find(key);
    for (std::size_t i = 0; list && i < list->size(); ++i) read(list->item(i));
  };
  each("sustained", [&](const Field& f) {
    out.sustained.push_back({parse_data_type(f.at("dtype").text(), f.at("dtype").where()), f.at("fraction").positive(),
                             f.at("source").text()});
  });
  each("passes", [&](const Field& f) {
    out.passes.push_back({f.at("pass").text(), f.at("factor").positive(), f.at("source").text()});
  });
  each("alignments", [&](const Field& f) {
    const auto batched = f.find("batched_factor");
    out.alignments.push_back({f.at("bytes").positive(), f.at("factor").positive(), f.at("source").text(),
                              batched ? batched->positive() : 0});
  });
  each("tables", [&](const Field& f) { out.tables.push_back(parse_table(f)); });
  return out;
}

std::string kernel_tables_text(const KernelTables& tables) {
  using nlohmann::ordered_json;
  std::string text = "{\n  \"schema\": \"" + std::string(kSchema) +
                     "\",\n  \"name\": " + ordered_json(tables.name).dump() +
                     ",\n  \"launch_floor_us\": " + ordered_json(rounded(tables.launch_floor * 1e6, 4)).dump() +
                     ",\n  \"launch_source\": " + ordered_json(tables.launch_source).dump();
  const auto list = [&](const char* key, const auto& rows, auto&& row_of) {
    text += ",\n  \"" + std::string(key) + "\": [";
    for (std::size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "\n    " : ",\n    ") + row_of(rows[i]).dump();
    text += rows.empty() ? "]" : "\n  ]";
  };
  list("sustained", tables.sustained, [](const auto& s) {
    return ordered_json{{"dtype", data_type_name(s.type)}, {"fraction", rounded(s.fraction, 4)}, {"source", s.source}};
  });
  list("passes", tables.passes, [](const auto& p) {
    return ordered_json{{"pass", p.pass}, {"factor", rounded(p.factor, 4)}, {"source", p.source}};
  });
  list("alignments", tables.alignments, [](const auto& a) {
    ordered_json row{{"bytes", a.bytes}, {"factor", rounded(a.factor, 4)}};
    if (a.batched > 0) row["batched_factor"] = rounded(a.batched, 4);
    row["source"] = a.source;
    return row;
  });
  text += ",\n  \"tables\": [\n";
  for (std::size_t i = 0; i < tables.tables.size(); ++i) {
    if (i > 0) text += ",\n";
    write_table(text, json_of(tables.tables[i]));
  }
  return text + "\n  ]\n}\n";
}

const KernelTables* builtin_kernel_tables(std::string_view calibration) { return named(builtin(), calibration); }

const KernelTables* published_kernel_figures(std::string_view gpu) {
  static const std::vector<KernelTables> all = load_folder("data/kernel_figures/");
  return named(all, gpu);
}

std::vector<std::string> builtin_kernel_table_names() {
  std::vector<std::string> names;
  for (const KernelTables& tables : builtin()) names.push_back(tables.name);
  return names;
}

}  // namespace shardplan
