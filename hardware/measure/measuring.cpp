#include "hardware/measure/measuring.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/measure/sha256.hpp"

namespace shardplan {
namespace {

using nlohmann::ordered_json;

ordered_json point_json(const MeasuredPoint& p) {
  ordered_json params = ordered_json::object();
  for (const auto& [name, value] : p.numbers) params[name] = value;
  for (const auto& [name, value] : p.words) params[name] = value;
  ordered_json out = {{"kernel", p.kernel},    {"params", params},    {"flops", p.flops},
                      {"bytes", p.bytes},      {"n", p.time.n},       {"median_s", p.time.median},
                      {"mean_s", p.time.mean}, {"p10_s", p.time.p10}, {"p90_s", p.time.p90},
                      {"min_s", p.time.min},   {"mad_s", p.time.mad}};
  if (!p.samples.empty()) out["samples_s"] = p.samples;
  out["state"] = p.state;
  out["flags"] = p.flags;
  return out;
}

std::string points_hash(const std::vector<MeasuredPoint>& points) {
  ordered_json list = ordered_json::array();
  for (const MeasuredPoint& p : points) list.push_back(point_json(p));
  return sha256(list.dump());
}

void check_schema(const Field& file) {
  const Field field = file.at("schema");
  const std::string schema = field.text();
  const std::string family = "shardplan-measure/";
  if (schema.rfind(family, 0) != 0)
    field.fail("expected \"" + std::string(kMeasureSchema) + "\", got " + field.shown());
  const std::string version = schema.substr(family.size());
  if (version != "1" && version.rfind("1.", 0) != 0)
    field.fail("this program reads version 1 of measuring files, this one is version " + version);
}

std::map<std::string, std::string> read_words(const Field& file, const char* key) {
  std::map<std::string, std::string> out;
  if (const auto object = file.find(key)) {
    for (const std::string& name : object->keys()) out[name] = object->at(name).text();
  }
  return out;
}

std::map<std::string, double> read_numbers(const Field& object) {
  std::map<std::string, double> out;
  for (const std::string& name : object.keys()) out[name] = object.at(name).number();
  return out;
}

SampleSummary read_summary(const Field& f, bool imported) {
  SampleSummary t;
  t.n = static_cast<int>(f.at("n").count(1, 1000000000));
  if (!imported && t.n < kFewestSamples)
    f.at("n").fail("too few samples: " + std::to_string(t.n) + ", at least " + std::to_string(kFewestSamples) +
                   " are needed");
  t.median = f.at("median_s").positive();
  t.mean = f.at("mean_s").positive();
  t.p10 = f.at("p10_s").positive();
  t.p90 = f.at("p90_s").positive();
  t.min = f.at("min_s").positive();
  t.mad = f.at("mad_s").number();
  if (t.mad < 0) f.at("mad_s").fail("must not be negative");
  if (!(t.min <= t.p10 && t.p10 <= t.median && t.median <= t.p90))
    f.fail("quantiles out of order: min <= p10 <= median <= p90 does not hold");
  return t;
}

MeasuredPoint read_point(const Field& f, bool imported) {
  f.allow_only({"kernel", "params", "flops", "bytes", "n", "median_s", "mean_s", "p10_s", "p90_s", "min_s", "mad_s",
                "samples_s", "state", "flags"});
  MeasuredPoint p;
  p.kernel = f.at("kernel").text();
  const Field params = f.at("params");
  for (const std::string& name : params.keys()) {
    const Field value = params.at(name);
    if (value.is_string())
      p.words[name] = value.text();
    else
      p.numbers[name] = value.number();
  }
  p.flops = f.at("flops").number();
  p.bytes = f.at("bytes").number();
  if (p.flops < 0 || p.bytes < 0) f.fail("flops and bytes must not be negative");
  p.time = read_summary(f, imported);
  if (const auto samples = f.find("samples_s")) {
    p.samples = samples->numbers();
    for (std::size_t i = 0; i < p.samples.size(); ++i) samples->item(i).positive();
    if (p.samples.size() != static_cast<std::size_t>(p.time.n))
      samples->fail("has " + std::to_string(p.samples.size()) + " samples, n says " + std::to_string(p.time.n));
  }
  p.state = f.at("state").text();
  if (p.state != "hot" && p.state != "cold" && p.state != "graph")
    f.at("state").fail("expected hot, cold or graph, got " + f.at("state").shown());
  const Field flags = f.at("flags");
  for (std::size_t i = 0; i < flags.size(); ++i) p.flags.push_back(flags.item(i).text());
  return p;
}

void collect_warnings(MeasuringFile& file, const std::string& name) {
  std::size_t noisy = 0, other = 0;
  for (const MeasuredPoint& p : file.points) {
    if (p.flagged("noisy"))
      ++noisy;
    else if (!p.flags.empty())
      ++other;
  }
  if (noisy > 0)
    file.warnings.push_back(name + ": " + std::to_string(noisy) + " of " + std::to_string(file.points.size()) +
                            " points are noisy (p90 > 1.5 p10)");
  if (other > 0) file.warnings.push_back(name + ": " + std::to_string(other) + " points carry other flags");
  if (file.source_kind == "measured" && !file.source_sha256.empty() && points_hash(file.points) != file.source_sha256)
    file.warnings.push_back(name + ": the points were changed after they were measured (sha256 differs)");
}

}  // namespace

double MeasuredPoint::number(const std::string& name) const {
  const auto at = numbers.find(name);
  return at == numbers.end() ? 0 : at->second;
}

std::string MeasuredPoint::word(const std::string& name) const {
  const auto at = words.find(name);
  return at == words.end() ? "" : at->second;
}

bool MeasuredPoint::flagged(const std::string& flag) const {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

void set_samples(MeasuredPoint& p, std::vector<double> seconds, bool keep) {
  p.time = summarise(seconds);
  if (p.time.p90 > 1.5 * p.time.p10) p.flags.push_back("noisy");
  if (keep) p.samples = std::move(seconds);
}

MeasuringFile parse_measuring(std::string_view text, const std::string& name) {
  const Field f = Field::parse(text, name);
  if (!f.is_object()) f.fail("expected an object, got " + f.shown());
  check_schema(f);
  f.allow_only({"schema", "tool", "device", "method", "environment", "source", "points"});
  MeasuringFile file;
  file.tool = read_words(f, "tool");
  file.device = read_words(f, "device");
  file.method = read_words(f, "method");
  const Field environment = f.at("environment");
  environment.allow_only({"before", "after"});
  file.before = read_numbers(environment.at("before"));
  file.after = read_numbers(environment.at("after"));
  const Field source = f.at("source");
  source.allow_only({"kind", "path", "sha256"});
  file.source_kind = source.at("kind").text();
  file.source_path = source.at("path").text();
  file.source_sha256 = source.at("sha256").text();
  const Field points = f.at("points");
  if (points.size() == 0) points.fail("no points: nothing was measured");
  for (std::size_t i = 0; i < points.size(); ++i)
    file.points.push_back(read_point(points.item(i), file.source_kind != "measured"));
  collect_warnings(file, name);
  return file;
}

MeasuringFile read_measuring(const std::string& path) { return parse_measuring(read_text_file(path), path); }

std::string measuring_text(const MeasuringFile& file) {
  ordered_json points = ordered_json::array();
  for (const MeasuredPoint& p : file.points) points.push_back(point_json(p));
  const std::string hash = file.source_kind == "measured" ? points_hash(file.points) : file.source_sha256;
  const ordered_json out = {{"schema", kMeasureSchema},
                            {"tool", file.tool},
                            {"device", file.device},
                            {"method", file.method},
                            {"environment", {{"before", file.before}, {"after", file.after}}},
                            {"source", {{"kind", file.source_kind}, {"path", file.source_path}, {"sha256", hash}}},
                            {"points", points}};
  return out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace shardplan
