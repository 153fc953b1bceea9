// shardplan measure import nccl-tests: a log of nccl-tests as collective rows, or why it is refused.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/measure_import.hpp"
#include "cli/output.hpp"
#include "hardware/import_nccl.hpp"

namespace shardplan {

namespace {

struct Options {
  std::string file, out, op, gpu, net, ranks, nodes, gpus_per_node = "8", format = "text";
};

NcclTestsHints hints_of(const Options& o) {
  const auto whole = [](const std::string& text, const char* option) {
    if (text.empty()) return 0;
    const std::int64_t n = parse_count(text, option);
    if (n < 1 || n > (1 << 22)) throw InputError(option, "must be in 1 .. 4194304");
    return static_cast<int>(n);
  };
  if (!o.op.empty() && !collective_of(o.op)) throw InputError("--op", "\"" + o.op + "\" is no collective");
  return {o.op,
          o.gpu,
          o.net,
          whole(o.ranks, "--ranks"),
          whole(o.nodes, "--nodes"),
          whole(o.gpus_per_node, "--gpus-per-node")};
}

nlohmann::ordered_json json_of(const NcclTestsLog& log, std::size_t used, const std::string& written) {
  nlohmann::ordered_json unused = nlohmann::ordered_json::array();
  for (const NcclTestsRow& row : log.rows) {
    if (!row.unused.empty()) unused.push_back({{"bytes", row.bytes}, {"reason", row.unused}});
  }
  const auto or_null = [](int n) { return n > 0 ? nlohmann::ordered_json(n) : nlohmann::ordered_json(nullptr); };
  return {{"file", log.name},
          {"op", log.op},
          {"gpu", log.gpu},
          {"nccl", log.nccl},
          {"ranks", or_null(log.ranks())},
          {"ranks_of_header", or_null(log.header_ranks)},
          {"ranks_of_table", or_null(log.table_ranks)},
          {"rows", log.rows.size()},
          {"points", used},
          {"unused", unused},
          {"flags", log.flags},
          {"refused", log.refused.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(log.refused)},
          {"written", written.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(written)}};
}

void print_text(const NcclTestsLog& log, std::size_t used, const std::string& written) {
  std::printf("%s: %zu rows of %s", log.name.c_str(), log.rows.size(),
              log.op.empty() ? "an unknown operation" : log.op.c_str());
  if (log.ranks() > 0) std::printf(" among %d ranks", log.ranks());
  if (!log.gpu.empty()) std::printf(", %s", log.gpu.c_str());
  if (!log.nccl.empty()) std::printf(", NCCL %s", log.nccl.c_str());
  std::printf("\n");
  for (const std::string& flag : log.flags) std::printf("  note: %s\n", flag.c_str());
  for (const NcclTestsRow& row : log.rows) {
    if (!row.unused.empty()) std::printf("  not used: %s: %s\n", text_of_bytes(row.bytes).c_str(), row.unused.c_str());
  }
  if (!written.empty()) std::printf("%zu points written to %s\n", used, written.c_str());
}

void run(const Options& o) {
  const NcclTestsHints hints = hints_of(o);
  const NcclTestsLog log = import_nccl_tests(read_text_file(o.file), o.file, hints);
  const auto rows = collective_rows(log, hints);
  if (log.refused.empty() && !o.out.empty()) {
    if (log.ranks() == 0 && hints.ranks == 0)
      throw InputError("--ranks", "the log does not tell how many ranks took part");
    if (log.gpu.empty() && hints.gpu.empty()) throw InputError("--gpu", "the log does not name the GPU");
    write_text_file(o.out, csv_of(rows, o.file));
  }
  const std::string written = log.refused.empty() ? o.out : "";
  if (o.format == "json")
    print_json(json_of(log, rows.size(), written));
  else
    print_text(log, rows.size(), written);
  if (!log.refused.empty()) throw InputError(o.file, log.refused);
}

}  // namespace

void add_import_nccl_tests(CLI::App& import_verb) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = import_verb.add_subcommand(
      "nccl-tests", "Output of nccl-tests: text of any version and prefix, or the report of -J");
  verb->add_option("file", o->file, "the log")->required();
  verb->add_option("--out", o->out, "CSV of collective rows to write: input of validate and of measure calibrate");
  verb->add_option("--op", o->op, "the collective, where the log does not name it");
  verb->add_option("--gpu", o->gpu, "the GPU, where the log does not name it");
  verb->add_option("--net", o->net, "the network between nodes: \"IB NDR 8x400G\", \"EFA v2 32x100G\"");
  verb->add_option("--ranks", o->ranks, "ranks, held against the table");
  verb->add_option("--nodes", o->nodes, "nodes, where the log has no device list");
  verb->add_option("--gpus-per-node", o->gpus_per_node, "default 8");
  add_format_option(*verb, o->format);
  verb->footer("Example:\n  shardplan measure import nccl-tests all_reduce.log --net 'IB NDR 8x400G' --out rows.csv");
  verb->callback([o] { run(*o); });
}

}  // namespace shardplan
