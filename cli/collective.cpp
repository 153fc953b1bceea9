// shardplan collective: seconds of one collective, and the table that nccl-tests would print.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/collective_traffic.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "hardware/collective_rows.hpp"
#include "hardware/collectives.hpp"

namespace shardplan {

namespace {

struct Options {
  std::string op, bytes, ranks, ranks_per_node, cluster, dtype = "bf16";
  std::string rates = "calibrated", network = "table", algorithm, traffic, format = "text";
  std::string least = "8", most = "16 GiB", factor = "2";
};

/// The question after its texts were read.
struct Question {
  Collective op = Collective::all_reduce;
  DataType type = DataType::bf16;
  GroupShape shape;
  NcclSettings settings;
  int ranks_per_node = 0;
};

void add_options(CLI::App& verb, Options& o) {
  verb.add_option("--op", o.op,
                  "all-reduce, all-gather, reduce-scatter, broadcast, all-to-all, all-to-allv or send-recv");
  verb.add_option("--ranks", o.ranks, "ranks of the group");
  verb.add_option("--ranks-per-node", o.ranks_per_node, "members on each board (default: all of its GPUs)");
  verb.add_option("--cluster", o.cluster, "GPU name, named cluster or file");
  verb.add_option("--dtype", o.dtype, "bf16, fp16, fp32, fp8 or int8 (default bf16)");
  verb.add_option("--rates", o.rates, "calibrated or datasheet")->check(CLI::IsMember({"calibrated", "datasheet"}));
  verb.add_option("--network", o.network, "fidelity: table, bound or flows")
      ->check(CLI::IsMember({"table", "bound", "flows"}));
  verb.add_option("--algorithm", o.algorithm, "what NCCL_ALGO forces (default: NCCL's choice)")
      ->check(CLI::IsMember({"ring", "tree", "nvls-tree"}));
  add_format_option(verb, o.format);
}

std::string given(const std::string& text, const char* option) {
  if (text.empty()) throw InputError(option, "is required");
  return text;
}

int small_count(const std::string& text, const char* option, int most) {
  const std::int64_t n = parse_count(text, option);
  if (n < 1 || n > most) throw InputError(option, "must be in 1 .. " + std::to_string(most));
  return static_cast<int>(n);
}

Fidelity fidelity_of(const std::string& word) {
  return word == "bound" ? Fidelity::bound : word == "flows" ? Fidelity::flows : Fidelity::table;
}

NetworkModel model_of(const Options& o) {
  return NetworkModel(load_cluster(given(o.cluster, "--cluster")),
                      o.rates == "datasheet" ? Rates::datasheet : Rates::calibrated, fidelity_of(o.network));
}

Question question_of(const Options& o, const Cluster& cluster) {
  Question q;
  const auto op = collective_of(given(o.op, "--op"));
  if (!op) {
    const std::vector<std::string> names = {"all-reduce", "all-gather",  "reduce-scatter", "broadcast",
                                            "all-to-all", "all-to-allv", "send-recv"};
    throw InputError("--op", "\"" + o.op + "\" is no collective" + did_you_mean_or_list(o.op, names));
  }
  q.op = *op;
  const auto type = nccl_type(o.dtype);
  if (!type) throw InputError("--dtype", "\"" + o.dtype + "\" is not one of bf16, fp16, fp32, fp8, int8");
  q.type = *type;
  const int ranks = small_count(given(o.ranks, "--ranks"), "--ranks", 1 << 22);
  if (ranks < 2) throw InputError("--ranks", "one rank has nobody to exchange with: needs 2 or more");
  if (q.op == Collective::send_recv && ranks != 2) throw InputError("--ranks", "send-recv is between 2 ranks");
  q.ranks_per_node = o.ranks_per_node.empty() ? std::min(ranks, cluster.node.gpus)
                                              : small_count(o.ranks_per_node, "--ranks-per-node", cluster.node.gpus);
  q.shape = group_shape(cluster, ranks, q.ranks_per_node);
  q.settings.algorithm = o.algorithm;
  return q;
}

nlohmann::ordered_json json_of(const CollectivePrice& p, double bytes) {
  return {{"bytes", bytes},
          {"time_s", p.price.seconds},
          {"low_s", p.price.low},
          {"high_s", p.price.high},
          {"algbw", p.price.seconds > 0 ? bytes / p.price.seconds : 0},
          {"busbw", p.bus_bytes_per_second},
          {"algorithm", p.algorithm},
          {"protocol", p.protocol},
          {"basis", basis_name(p.price.basis)}};
}

nlohmann::ordered_json head_json(const Options& o, const Question& q, const NetworkModel& m) {
  return {{"op", collective_name(q.op)},
          {"cluster", m.cluster().name},
          {"ranks", q.shape.ranks},
          {"ranks_per_node", q.ranks_per_node},
          {"ranks_per_domain", q.shape.ranks_per_domain},
          {"nics_per_domain", q.shape.crosses() ? q.shape.nics_per_domain : 0},
          {"dtype", data_type_name(q.type)},
          {"rates", o.rates},
          {"fidelity", o.network},
          {"sms_held", m.sms_held(q.op, q.shape)}};
}

/// "8", "0.5": a number of things that may be a share.
std::string count_text(double value) {
  return value == std::round(value) ? text_of_count(std::llround(value)) : text_of_number(value, 3);
}

void print_head(const Options& o, const Question& q, const NetworkModel& m) {
  std::printf("%s among %d ranks of %s, %s", std::string(collective_name(q.op)).c_str(), q.shape.ranks,
              m.cluster().name.c_str(), std::string(data_type_name(q.type)).c_str());
  if (q.shape.crosses()) {
    std::printf("; %d members in a domain with %s of its NICs at %s", q.shape.ranks_per_domain,
                count_text(q.shape.nics_per_domain).c_str(),
                text_of_bytes_per_second(m.cluster().node.nic_bytes_per_second.value).c_str());
  } else {
    std::printf("; all in one domain");
  }
  std::printf("\nrates: %s, network: %s; bytes as nccl-tests counts them, intervals hold 80 %%\n", o.rates.c_str(),
              o.network.c_str());
}

void run_traffic(const Options& o) {
  const Cluster cluster = load_cluster(given(o.cluster, "--cluster"));
  TrafficQuestion q{o.traffic, o.ranks};
  if (!o.ranks_per_node.empty()) {
    q.ranks_per_node = small_count(o.ranks_per_node, "--ranks-per-node", cluster.node.gpus);
  }
  if (!o.bytes.empty()) throw InputError("--bytes", "an all-to-allv takes its bytes from --traffic");
  q.rates = o.rates == "datasheet" ? Rates::datasheet : Rates::calibrated;
  q.fidelity = fidelity_of(o.network);
  q.format = o.format;
  print_all_to_allv(cluster, q);
}

void run_one(const Options& o) {
  if (o.op == "all-to-allv") return run_traffic(o);
  if (!o.traffic.empty()) throw InputError("--traffic", "only --op all-to-allv takes a matrix");
  const NetworkModel m = model_of(o);
  const Question q = question_of(o, m.cluster());
  const double bytes = parse_bytes(given(o.bytes, "--bytes"), "--bytes");
  const CollectivePrice p = m.collective(q.op, bytes, q.shape, q.type, q.settings);
  if (o.format == "json") {
    auto out = head_json(o, q, m);
    out.update(json_of(p, bytes));
    return print_json(out);
  }
  print_head(o, q, m);
  std::printf("time       %s  (%s .. %s)\n", text_of_seconds(p.price.seconds).c_str(),
              text_of_seconds(p.price.low).c_str(), text_of_seconds(p.price.high).c_str());
  std::printf("algbw      %s\nbusbw      %s\n",
              text_of_bytes_per_second(p.price.seconds > 0 ? bytes / p.price.seconds : 0).c_str(),
              text_of_bytes_per_second(p.bus_bytes_per_second).c_str());
  std::printf("algorithm  %s, protocol %s, holds %s SMs\nbasis      %s\n", p.algorithm, p.protocol,
              count_text(m.sms_held(q.op, q.shape)).c_str(), std::string(basis_name(p.price.basis)).c_str());
}

std::vector<double> sweep_sizes(const Options& o) {
  const double least = parse_bytes(o.least, "--min"), most = parse_bytes(o.most, "--max"),
               factor = parse_number(o.factor, "--factor");
  if (!(least > 0) || most < least) throw InputError("--min", "must be above 0 and at most --max");
  if (!(factor > 1.0009)) throw InputError("--factor", "must be above 1.001");
  std::vector<double> out;
  for (double bytes = least; bytes <= most * (1 + 1e-12); bytes *= factor) out.push_back(bytes);
  return out;
}

void run_sweep(const Options& o) {
  const NetworkModel m = model_of(o);
  const Question q = question_of(o, m.cluster());
  const auto sizes = sweep_sizes(o);
  if (o.format == "json") {
    auto out = head_json(o, q, m);
    out["points"] = nlohmann::ordered_json::array();
    for (const double bytes : sizes)
      out["points"].push_back(json_of(m.collective(q.op, bytes, q.shape, q.type, q.settings), bytes));
    return print_json(out);
  }
  print_head(o, q, m);
  std::printf("#%12s %12s %11s %11s %9s %9s  %-9s %-7s %s\n", "size", "time", "low", "high", "algbw", "busbw",
              "algorithm", "proto", "basis");
  std::printf("#%12s %12s %11s %11s %9s %9s\n", "(B)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)");
  for (const double bytes : sizes) {
    const CollectivePrice p = m.collective(q.op, bytes, q.shape, q.type, q.settings);
    std::printf(" %12.0f %12.2f %11.2f %11.2f %9.2f %9.2f  %-9s %-7s %s\n", bytes, p.price.seconds * 1e6,
                p.price.low * 1e6, p.price.high * 1e6, p.price.seconds > 0 ? bytes / p.price.seconds * 1e-9 : 0,
                p.bus_bytes_per_second * 1e-9, p.algorithm, p.protocol, std::string(basis_name(p.price.basis)).c_str());
  }
}

}  // namespace

void add_collective(CLI::App& app) {
  auto one = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("collective", "Seconds of one collective among a group of ranks");
  add_options(*verb, *one);
  verb->add_option("--bytes", one->bytes, "as nccl-tests counts them: \"1 GiB\", \"25 MB\"");
  verb->add_option("--traffic", one->traffic,
                   "all-to-allv: bytes from rank to rank, as nccl-tests' alltoallv reads them");
  verb->footer("Example:\n  shardplan collective --op all-reduce --bytes '1 GiB' --ranks 16 --cluster dgx-h100");

  auto many = std::make_shared<Options>();
  CLI::App* sweep = verb->add_subcommand("sweep", "The table that nccl-tests would print");
  add_options(*sweep, *many);
  sweep->add_option("--min", many->least, "smallest size (default 8 bytes)");
  sweep->add_option("--max", many->most, "largest size (default 16 GiB)");
  sweep->add_option("--factor", many->factor, "from one size to the next (default 2)");
  sweep->footer("Example:\n  shardplan collective sweep --op all-reduce --ranks 8 --cluster h100-sxm --min '1 MiB'");
  sweep->callback([many] { run_sweep(*many); });
  verb->callback([one, sweep] {
    if (!sweep->parsed()) run_one(*one);
  });
}

}  // namespace shardplan
