#pragma once
// A measuring file: what was measured, how, in which state of the machine. Schema "shardplan-measure/1", SI units.
//
//   {"schema":"shardplan-measure/1", "tool":{name: text}, "device":{name: text}, "method":{name: text},
//    "environment":{"before":{name: number}, "after":{name: number}}, "source":{"kind","path","sha256"},
//    "points":[{"kernel","params":{name: number or
//    text},"flops","bytes","n","median_s","mean_s","p10_s","p90_s","min_s",
//               "mad_s",
//               "samples_s":[...] (optional),"state":"hot|cold|graph","flags":["noisy","throttled","unverified",...]}]}
// source.kind: measured | nccl-tests | trace. sha256: of the imported file, or of the points where they were measured
// here, so that an edit shows.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hardware/measure/samples.hpp"

namespace shardplan {

inline constexpr const char* kMeasureSchema = "shardplan-measure/1";
inline constexpr int kFewestSamples = 5;

struct MeasuredPoint {
  std::string kernel;                        // gemm, copy, add, relu, send-recv, all-reduce, step, ...
  std::map<std::string, double> numbers;     // m, n, k, bytes, ranks, ...
  std::map<std::string, std::string> words;  // dtype, layout, schedule, ...
  double flops = 0, bytes = 0;  // of one execution; bytes = read + written, or of a collective as nccl-tests counts
  SampleSummary time;
  std::vector<double> samples;  // seconds; may be left out of a file
  std::string state = "hot";
  std::vector<std::string> flags;

  double number(const std::string& name) const;  // 0 where absent
  std::string word(const std::string& name) const;
  bool flagged(const std::string& flag) const;
};

/// Fills `time` and `samples`, flags "noisy" where p90 > 1.5 p10.
void set_samples(MeasuredPoint&, std::vector<double> seconds, bool keep);

struct MeasuringFile {
  std::map<std::string, std::string> tool, device, method;
  std::map<std::string, double> before, after;
  std::string source_kind = "measured", source_path, source_sha256;
  std::vector<MeasuredPoint> points;
  std::vector<std::string> warnings;  // of the reader: noisy points, an edited file; not written
};

/// InputError: another schema or an unknown major version, NaN, n < 5 (unless imported), median <= 0, quantiles out of
/// order, unknown members. Warns of flagged points and of points that no longer match their hash.
MeasuringFile parse_measuring(std::string_view text, const std::string& name);
MeasuringFile read_measuring(const std::string& path);
/// Members sorted by name, numbers at full precision; fills sha256 where the points were measured here.
std::string measuring_text(const MeasuringFile&);

}  // namespace shardplan
