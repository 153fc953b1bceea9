#include "hardware/import_nccl.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/errors.hpp"

namespace shardplan {

namespace {

// NVLS adds in the switch: busbw goes up to 107 % of the links (H200, 481 of 450 GB/s). A little more is left for
// clocks.
constexpr double kAboveLinks = 1.15;
constexpr double kFastestLinks = 900e9;  // NVLink 5, per direction: where the GPU is not known
constexpr double kOutlier = 2.5;         // times the next larger message: a first call's warm-up, or a hiccup
constexpr int kMostRanks = 1 << 20;

std::string decimal(double v, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, v);
  return text;
}

/// nccl-tests prints two digits behind the point below 1,000 GB/s, fewer above: half a unit of the last.
double rounding(double gigabytes) { return gigabytes < 1000 ? 0.005 : gigabytes < 10000 ? 0.05 : 0.5; }

/// 1 for ratios of (n-1)/n, 2 for 2(n-1)/n, 0 where the ratio is 1 whatever n.
double ratio_scale(Collective op) {
  if (op == Collective::all_reduce) return 2;
  if (op == Collective::all_gather || op == Collective::reduce_scatter || op == Collective::all_to_all) return 1;
  return 0;
}

struct Ratio {
  double least = 0, most = 1e9;  // what rounding allows, over all rows
};

template <class Visit>
void each_half(const NcclTestsLog& log, const Visit& visit) {
  for (const NcclTestsRow& row : log.rows) {
    if (!row.unused.empty()) continue;
    for (const auto& half : {row.out_of_place, row.in_place}) {
      if (half && half->algbw > 0 && half->busbw > 0) visit(row, *half);
    }
  }
}

Ratio ratio_of(const NcclTestsLog& log) {
  Ratio r;
  each_half(log, [&](const NcclTestsRow&, const NcclTestsHalf& h) {
    const double a = h.algbw * 1e-9, b = h.busbw * 1e-9, da = rounding(a), db = rounding(b);
    if (a < 20 * da) return;  // too few digits to tell anything
    const double low = (b - db) / (a + da), high = (b + db) / (a - da);
    // Published tables carry a slip now and then: a row that contradicts the others is passed over.
    if (low > r.most || high < r.least) return;
    r.least = std::max(r.least, low);
    r.most = std::min(r.most, high);
  });
  return r;
}

void infer_ranks(NcclTestsLog& log) {
  const auto op = collective_of(log.op);
  const double scale = op ? ratio_scale(*op) : 0;
  const Ratio r = ratio_of(log);
  if (scale == 0 || !(r.least > 0)) return;
  const auto ranks = [&](double ratio) { return 1 / std::max(1e-9, 1 - ratio / scale); };
  if (r.least >= scale) return;
  const double low = ranks(r.least), high = r.most >= scale ? kMostRanks : ranks(r.most);
  log.table_ranks_least = std::max(2, static_cast<int>(std::ceil(low - 1e-6)));
  log.table_ranks_most = static_cast<int>(std::min<double>(kMostRanks, std::floor(high + 1e-6)));
  if (log.table_ranks_least > log.table_ranks_most) {
    log.flags.push_back("busbw / algbw is of no whole number of ranks (" + decimal(low, 1) + " to " + decimal(high, 1) +
                        ")");
    log.table_ranks_least = log.table_ranks_most = 0;
    return;
  }
  const bool header_fits = log.header_ranks >= log.table_ranks_least && log.header_ranks <= log.table_ranks_most;
  // Of what rounding allows, the header's number; else a multiple of eight; else the middle.
  int guess = (log.table_ranks_least + log.table_ranks_most) / 2;
  if (const int eight = log.table_ranks_most / 8 * 8; eight >= log.table_ranks_least && eight > 0) guess = eight;
  log.table_ranks = header_fits ? log.header_ranks : guess;
  if (log.table_ranks_most > 2 * log.table_ranks_least && !header_fits) log.table_ranks = 0;
}

/// Without a program's name: a ratio above 1 is an all-reduce's alone; the file's name helps with the rest.
void infer_operation(NcclTestsLog& log, const NcclTestsHints& hints) {
  if (!hints.op.empty()) {
    log.op = hints.op;
    return;
  }
  if (!log.op.empty()) return;
  const Ratio r = ratio_of(log);
  std::string name;
  for (const char c : log.name.substr(log.name.rfind('/') + 1)) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (r.least > 1.001) log.op = "all_reduce";
  for (const char* word : {"all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast"}) {
    std::string squeezed = word;
    std::erase(squeezed, '_');
    if (log.op.empty() && name.find(squeezed) != std::string::npos) log.op = word;
  }
  if (!log.op.empty()) log.flags.push_back("the operation is not named in the log: taken as " + log.op);
}

void mark_rows(NcclTestsLog& log) {
  for (NcclTestsRow& row : log.rows) {
    const auto& h = row.out_of_place ? row.out_of_place : row.in_place;
    if (row.bytes == 0)
      row.unused = "size 0";
    else if (!h || !(h->seconds > 0))
      row.unused = "no time";
    else if ((row.out_of_place && row.out_of_place->wrong.value_or(0) > 0) ||
             (row.in_place && row.in_place->wrong.value_or(0) > 0)) {
      row.unused = "wrong results";
    }
  }
  for (std::size_t i = 0; i + 1 < log.rows.size(); ++i) {
    NcclTestsRow &a = log.rows[i], &b = log.rows[i + 1];
    if (!a.unused.empty() || !b.unused.empty() || !a.out_of_place || !b.out_of_place || b.bytes < a.bytes) continue;
    if (a.out_of_place->seconds > kOutlier * b.out_of_place->seconds) {
      a.unused = "takes " + decimal(a.out_of_place->seconds / b.out_of_place->seconds, 1) +
                 " times as long as the next larger message";
    }
  }
  int unused = 0;
  for (const NcclTestsRow& row : log.rows) unused += !row.unused.empty();
  if (unused > 0)
    log.flags.push_back(std::to_string(unused) + " rows are not used (warm-up, hiccup, size 0 or wrong results)");
}

/// Bytes over time must be the algorithm bandwidth that the row prints.
void hold_times_to_bandwidth(NcclTestsLog& log) {
  int off = 0, all = 0;
  each_half(log, [&](const NcclTestsRow& row, const NcclTestsHalf& h) {
    const double a = h.algbw * 1e-9;
    if (a < 1) return;
    ++all;
    off += std::abs(row.bytes / h.seconds / h.algbw - 1) > 0.02 + rounding(a) / a;
  });
  if (all == 0 || off == 0) return;
  log.flags.push_back(std::to_string(off) + " of " + std::to_string(all) + " figures: bytes / time is not algbw");
  if (2 * off > all) log.refused = "times and bandwidths do not belong together";
}

double link_rate(const NcclTestsLog& log, const NcclTestsHints& hints) {
  CollectiveRow row;
  row.gpu = hints.gpu.empty() ? log.gpu : hints.gpu;
  try {
    const double rate = cluster_of(row).gpu.nvlink_bytes_per_second.value;
    if (rate > 0) return rate;
  } catch (const InputError&) {
    return kFastestLinks;  // a name without a data file ("NVIDIA Graphics Device")
  }
  return kFastestLinks;
}

void hold_to_links(NcclTestsLog& log, const NcclTestsHints& hints) {
  const double limit = kAboveLinks * link_rate(log, hints);
  double worst = 0;
  for (const NcclTestsRow& row : log.rows) {
    if (row.out_of_place) worst = std::max(worst, row.out_of_place->busbw);
  }
  if (worst > limit) {
    log.refused = "bus bandwidth of " + decimal(worst * 1e-9, 0) + " GB/s is above what the links carry (" +
                  decimal(limit * 1e-9, 0) + " GB/s): a copy inside one GPU, or a wrong unit";
    return;
  }
  int dropped = 0;
  for (NcclTestsRow& row : log.rows) {
    if (row.in_place && row.in_place->busbw > limit) {
      row.in_place.reset();
      ++dropped;
    }
  }
  if (dropped > 0)
    log.flags.push_back(std::to_string(dropped) + " in-place figures are above what the links carry and were dropped");
}

void hold_to_header(NcclTestsLog& log, const NcclTestsHints& hints) {
  const auto held = [&](int said, const std::string& who) {
    if (said <= 0 || log.table_ranks_least == 0 || (said >= log.table_ranks_least && said <= log.table_ranks_most))
      return;
    const std::string range =
        log.table_ranks_least == log.table_ranks_most
            ? std::to_string(log.table_ranks_least)
            : std::to_string(log.table_ranks_least) + " to " + std::to_string(log.table_ranks_most);
    log.flags.push_back(who + " " + std::to_string(said) + " ranks, busbw / algbw of the table " + range +
                        ": they do not belong together; the table's are taken");
  };
  held(log.header_ranks, "the header says");
  held(hints.ranks, "you say");
  double largest = 0;
  for (const NcclTestsRow& row : log.rows) largest = std::max(largest, row.bytes);
  if (log.header_most_bytes > 0 && largest > log.header_most_bytes) {
    log.flags.push_back("rows go to " + decimal(largest, 0) + " bytes, the header's maxBytes is " +
                        decimal(log.header_most_bytes, 0));
  }
  if (log.header_most_bytes > 0 && !log.rows.empty() && 2 * largest <= log.header_most_bytes) {
    log.flags.push_back("the run ends at " + decimal(largest, 0) + " bytes, before the header's maxBytes of " +
                        decimal(log.header_most_bytes, 0));
  }
}

}  // namespace

void judge_nccl_tests(NcclTestsLog& log, const NcclTestsHints& hints) {
  if (log.rows.empty()) {
    log.refused = "holds no rows of results";
    return;
  }
  mark_rows(log);
  infer_operation(log, hints);
  infer_ranks(log);
  hold_to_header(log, hints);
  hold_times_to_bandwidth(log);
  if (log.refused.empty()) hold_to_links(log, hints);
  if (log.refused.empty() && !collective_of(log.op)) log.refused = "the operation is not known: name it (--op)";
}

NcclTestsLog import_nccl_tests(std::string_view text, const std::string& name, const NcclTestsHints& hints) {
  NcclTestsLog log;
  log.name = name;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{')
    read_nccl_tests_json(text, log);
  else
    read_nccl_tests_text(text, log);
  judge_nccl_tests(log, hints);
  return log;
}

std::vector<CollectiveRow> collective_rows(const NcclTestsLog& log, const NcclTestsHints& hints) {
  std::vector<CollectiveRow> out;
  if (!log.refused.empty()) return out;
  CollectiveRow r;
  r.dataset = log.name.substr(log.name.rfind('/') + 1);
  r.gpu = hints.gpu.empty() ? log.gpu : hints.gpu;
  r.net = hints.net;
  r.op = log.op;
  r.nccl = log.nccl;
  r.ranks = log.ranks() > 0 ? log.ranks() : hints.ranks;
  const bool header_holds = log.header_nodes > 0 && log.header_ranks == r.ranks;
  const int nodes = hints.nodes > 0 ? hints.nodes
                    : header_holds  ? log.header_nodes
                                    : (r.ranks + hints.gpus_per_node - 1) / hints.gpus_per_node;
  r.nodes = std::max(1, nodes);
  r.gpus_per_node = hints.gpus_per_node;
  for (const NcclTestsRow& row : log.rows) {
    if (!row.unused.empty()) continue;
    r.dtype = row.type;
    r.bytes = row.bytes;
    for (const auto& [half, place] :
         {std::pair(row.out_of_place, "out-of-place"), std::pair(row.in_place, "in-place")}) {
      if (!half || !(half->seconds > 0)) continue;
      r.place = place;
      r.seconds = half->seconds;
      out.push_back(r);
    }
  }
  return out;
}

std::string csv_of(const std::vector<CollectiveRow>& rows, const std::string& source) {
  const auto cell = [](const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
    return quoted + "\"";
  };
  std::string out =
      "dataset,gpu,gpus_per_node,nodes,ranks,net,op,dtype,bytes,time_us,algbw_gbs,busbw_gbs,place,nccl,env,source\n";
  for (const CollectiveRow& r : rows) {
    const auto op = collective_of(r.op);
    const double algbw = r.bytes / r.seconds * 1e-9;
    char figures[128];
    std::snprintf(figures, sizeof figures, "%.0f,%.6g,%.6g,%.6g", r.bytes, r.seconds * 1e6, algbw,
                  op ? algbw * bus_factor(*op, r.ranks) : algbw);
    out += cell(r.dataset) + "," + cell(r.gpu) + "," + std::to_string(r.gpus_per_node) + "," + std::to_string(r.nodes) +
           "," + std::to_string(r.ranks) + "," + cell(r.net) + "," + cell(r.op) + "," + cell(r.dtype) + "," + figures +
           "," + cell(r.place) + "," + cell(r.nccl) + "," + cell(r.env) + "," + cell(source) + "\n";
  }
  return out;
}

}  // namespace shardplan
