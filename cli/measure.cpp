// shardplan measure: times real work on this machine, imports what others measured, makes cluster files of both.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/csv.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/measure_calibrate_rows.hpp"
#include "cli/measure_import.hpp"
#include "cli/measure_import_topo.hpp"
#include "cli/measure_steps.hpp"
#include "cli/output.hpp"
#include "hardware/calibrate_kernels.hpp"
#include "hardware/flows.hpp"
#include "hardware/measure/calibrate.hpp"
#include "hardware/measure/cpu_backend.hpp"
#include "hardware/measure/cuda_plugin.hpp"
#include "hardware/measure/import_files.hpp"
#include "hardware/measure/measuring.hpp"

namespace shardplan {
namespace {

constexpr const char* kTables = "tables.json";

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

struct Options {
  std::string backend, out, traffic, transport = "threads", seconds, format = "text";
  bool quick = false;
  std::vector<std::string> only;
};

struct CalibrateOptions {
  std::string date = "not stated";
  std::vector<std::string> files;
  std::string cluster, out, format = "text";
};

void print_points(const MeasuringFile& file, const std::string& out, const std::string& format) {
  if (format == "json") {
    print_json({{"written", out}, {"points", file.points.size()}, {"device", file.device}});
    return;
  }
  std::map<std::string, int> kinds;
  for (const MeasuredPoint& p : file.points) ++kinds[p.kernel];
  std::printf("measured %zu points:", file.points.size());
  for (const auto& [kind, n] : kinds) std::printf(" %s %d", kind.c_str(), n);
  std::printf("\nwritten to %s\n", out.c_str());
  if (const auto notes = file.method.find("notes"); notes != file.method.end() && !notes->second.empty())
    std::printf("notes: %s\n", notes->second.c_str());
}

/// The matrix of an all-to-allv as rows.
std::vector<std::vector<double>> traffic_rows(const std::string& path) {
  std::vector<std::vector<double>> rows;
  if (path.empty()) return rows;
  const TrafficMatrix matrix = read_traffic_matrix(path);
  for (std::int64_t s = 0; s < matrix.ranks; ++s) {
    rows.emplace_back();
    for (std::int64_t d = 0; d < matrix.ranks; ++d) rows.back().push_back(matrix.at(s, d));
  }
  return rows;
}

/// Options that the chosen backend does not have are refused, not ignored.
void check_backend(const Options& o) {
  const bool cpu = o.backend == "cpu";
  if (cpu && !o.only.empty())
    throw InputError("--only", "is for --backend cuda: the cpu backend measures all its parts");
  if (cpu && !o.traffic.empty()) throw InputError("--traffic", "is for --backend cuda");
  if (cpu && !o.seconds.empty()) throw InputError("--seconds", "is for --backend cuda");
  if (!cpu && o.transport != "threads") throw InputError("--transport", "is for --backend cpu");
}

void measure(const Options& o) {
  if (o.backend.empty())
    throw InputError("--backend", "is required: cpu or cuda (or one of the verbs import, calibrate)");
  if (o.out.empty()) throw InputError("--out", "is required: the measuring file to write");
  check_backend(o);
  const std::string arguments =
      "measure --backend " + o.backend + (o.quick ? " --quick" : "") + (o.transport == "mpi" ? " --transport mpi" : "");
  const double seconds = o.seconds.empty() ? 0 : parse_number(o.seconds, "--seconds");
  if (!o.seconds.empty() && !(seconds >= 1 && seconds <= 1e5))
    throw InputError("--seconds", "out of range: 1 to 100000");
  MeasuringFile file = o.backend == "cpu"
                           ? measure_cpu({o.quick, true, o.transport == "mpi", arguments})
                           : measure_cuda({o.quick, seconds, o.only, arguments, traffic_rows(o.traffic)});
  write_text_file(o.out, measuring_text(file));
  print_points(file, o.out, o.format);
}

nlohmann::ordered_json calibration_json(const Calibration& c, const std::vector<SimulatedStep>& simulated,
                                        const CalibrateOptions& o) {
  nlohmann::ordered_json tables = nlohmann::ordered_json::array(), steps = nlohmann::ordered_json::array();
  for (const auto& t : c.tables)
    tables.push_back({{"table", t.table}, {"points", t.points}, {"leave_one_out", t.leave_one_out}});
  for (std::size_t i = 0; i < c.steps.size(); ++i) {
    const StepComparison& s = c.steps[i];
    nlohmann::ordered_json step = {
        {"step", s.step}, {"measured_s", s.measured}, {"predicted_s", s.predicted}, {"error", s.error()}};
    step["simulated_s"] = simulated[i].seconds;
    step["simulated_error"] = simulated[i].seconds / s.measured - 1;
    step["command"] = simulated[i].command;
    steps.push_back(std::move(step));
  }
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const KernelComparison& k : c.kernels)
    kernels.push_back({{"group", k.group},
                       {"points", k.n},
                       {"throttled", k.throttled},
                       {"median_error", k.median_error},
                       {"median_absolute_error", k.median_absolute},
                       {"worst_absolute_error", k.worst}});
  return {{"written", o.out}, {"cluster", o.cluster}, {"tables", tables},
          {"steps", steps},   {"kernels", kernels},   {"notes", c.notes}};
}

/// Virtual seconds (compute measured, waiting computed) against the file's own kernels and copies put together, and
/// against the verb simulate.
void print_steps(const Calibration& c, const std::vector<SimulatedStep>& simulated) {
  if (c.steps.empty()) return;
  std::printf("\n%-44s %10s %20s %20s\n", "step (virtual: waiting computed)", "measured", "its parts, added",
              "simulate");
  std::string command;
  for (std::size_t i = 0; i < c.steps.size(); ++i) {
    const StepComparison& s = c.steps[i];
    const double seconds = simulated[i].seconds;
    std::printf("%-44s %10s %10s %+7.1f %% %10s %+7.1f %%\n", s.step.c_str(), text_of_seconds(s.measured).c_str(),
                text_of_seconds(s.predicted).c_str(), 100 * s.error(), text_of_seconds(seconds).c_str(),
                100 * (seconds / s.measured - 1));
    if (command.empty()) command = simulated[i].command;
  }
  if (!command.empty()) std::printf("the first of them again:\n  %s\n", command.c_str());
}

void print_calibration(const Calibration& c, const std::vector<SimulatedStep>& simulated, const CalibrateOptions& o) {
  if (!c.tables.empty()) std::printf("%-28s %7s   mean error of a point left out\n", "table", "points");
  for (const auto& t : c.tables)
    std::printf("%-28s %7zu   %s\n", t.table.c_str(), t.points, text_of_percent(t.leave_one_out).c_str());
  print_steps(c, simulated);
  if (!c.kernels.empty())
    std::printf("\n%-36s %6s %10s %10s %10s   (predicted by %s over measured)\n", "kernels", "points", "median",
                "|median|", "worst", o.cluster.c_str());
  for (const KernelComparison& k : c.kernels) {
    std::printf("%-36s %6d %+8.1f %% %8.1f %% %8.1f %%", k.group.c_str(), k.n, 100 * k.median_error,
                100 * k.median_absolute, 100 * k.worst);
    std::printf(k.throttled > 0 ? "   %d throttled, left out\n" : "\n", k.throttled);
  }
  for (const std::string& note : c.notes) std::printf("note: %s\n", note.c_str());
  std::printf("\nwritten to %s%s\n", o.out.c_str(),
              c.tables_text.empty() ? "" : (", its tables to " + path_beside(o.out, kTables)).c_str());
}

bool is_csv(const std::string& path) { return path.size() > 4 && path.substr(path.size() - 4) == ".csv"; }

/// Measured kernels in CSV files: tables of the cluster's GPU. Rows of other GPUs are left out.
void calibrate_from_rows(const CalibrateOptions& o) {
  const Gpu gpu = load_cluster(o.cluster).gpu;
  std::vector<KernelRow> rows;
  std::size_t others = 0;
  for (const std::string& path : o.files) {
    if (!is_csv(path)) throw InputError(path, "kernel rows (CSV) and measuring files cannot be mixed in one call");
    for (KernelRow& row : read_kernel_rows(CsvTable::read(path))) {
      if (is_gpu_name(row.gpu, gpu.name)) {
        rows.push_back(std::move(row));
      } else {
        ++others;
      }
    }
  }
  if (rows.empty()) throw InputError(o.files.front(), "no row was measured on " + gpu.name);
  if (others > 0) print_warning(std::to_string(others) + " rows of other GPUs than " + gpu.name + " are not used");
  KernelCalibration how;
  how.date = o.date;
  const KernelTables tables = calibrate_kernels(rows, gpu, how);
  write_text_file(o.out, kernel_tables_text(tables));
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  if (o.format == "text")
    std::printf("%-20s %-10s %-16s %-16s %6s  %s\n", "kernel", "dtype", "library", "variant", "rows",
                "mean error of rows left out");
  for (const KernelTable& t : tables.tables) {
    if (t.left_out.n == 0) continue;
    const std::string kernel(kKernelClassNames[static_cast<std::size_t>(t.kernel)]), type(data_type_name(t.type));
    json.push_back({{"kernel", kernel},
                    {"dtype", type},
                    {"library", t.library},
                    {"variant", t.variant},
                    {"n", t.left_out.n},
                    {"mape", t.left_out.mape},
                    {"coverage_80", t.left_out.coverage_80}});
    if (o.format == "text") {
      std::printf("%-20s %-10s %-16s %-16s %6d  %s\n", kernel.c_str(), type.c_str(), t.library.c_str(),
                  t.variant.c_str(), t.left_out.n, text_of_percent(t.left_out.mape).c_str());
    }
  }
  if (o.format == "json") return print_json({{"out", o.out}, {"tables", json}});
  std::printf("\nwritten to %s; a GPU file's \"calibration\" may name it\n", o.out.c_str());
}

void calibrate(const CalibrateOptions& o) {
  if (are_network_rows(o.files)) return calibrate_network_rows(o.files, o.out, o.format == "json");
  if (o.cluster.empty()) throw InputError("--cluster", "is required, but for collective and DeepEP rows");
  if (is_csv(o.files.front())) return calibrate_from_rows(o);
  std::vector<MeasuringFile> files;
  for (const std::string& path : o.files) {
    files.push_back(read_measuring(path));
    for (const std::string& warning : files.back().warnings) print_warning(warning);
  }
  // Tables lie beside the cluster file, which names them as seen from there.
  const std::string tables = path_beside(o.out, kTables);
  const Calibration c = calibrate_cluster(files, o.cluster, file_name(tables));
  if (!c.tables_text.empty()) write_text_file(tables, c.tables_text);
  write_text_file(o.out, c.cluster);
  std::vector<SimulatedStep> simulated;
  if (!c.steps.empty()) simulated = simulate_measured_steps(files, o.out);
  if (o.format == "json")
    print_json(calibration_json(c, simulated, o));
  else
    print_calibration(c, simulated, o);
}

struct ImportOptions {
  std::string file, out, format = "text";
};

void import_trace(const ImportOptions& o) {
  const MeasuringFile file = measuring_of_trace(o.file);
  write_text_file(o.out, measuring_text(file));
  print_points(file, o.out, o.format);
}

void add_import(CLI::App& measure_verb) {
  CLI::App* verb = measure_verb.add_subcommand("import", "Reads what others measured");
  verb->require_subcommand(1);
  add_import_nccl_tests(*verb);
  add_import_topo(*verb);
  CLI::App* trace =
      verb->add_subcommand("trace", "A Kineto, Chrome or nsys trace: durations by kernel class (see also compare)");
  auto o = std::make_shared<ImportOptions>();
  trace
      ->add_option("file", o->file,
                   "the trace, as torch.profiler writes it (JSON or .gz), or an nsys report (--type sqlite)")
      ->required();
  trace->add_option("--out", o->out, "the measuring file to write")->required();
  add_format_option(*trace, o->format);
  trace->footer("Example:\n  shardplan measure import trace trace.json --out kernels.json");
  trace->callback([o] { import_trace(*o); });
}

void add_calibrate(CLI::App& measure_verb) {
  CLI::App* verb = measure_verb.add_subcommand(
      "calibrate", "Makes a cluster file of measuring files, or tables of kernel, collective and DeepEP rows (CSV)");
  auto o = std::make_shared<CalibrateOptions>();
  verb->add_option("files", o->files, "measuring files (JSON), or rows as validate takes them (CSV)")->required();
  verb->add_option("--cluster", o->cluster,
                   "whose figures stand where nothing was measured (not for collective and DeepEP rows)");
  verb->add_option("--out", o->out,
                   "the cluster file, the table file, or the folder of tables of collective and DeepEP rows")
      ->required();
  verb->add_option("--date", o->date, "of the measurements, kept in kernel tables");
  add_format_option(*verb, o->format);
  verb->footer("Example:\n  shardplan measure calibrate cpu.json --cluster host-cpu --out host.json");
  verb->callback([o] { calibrate(*o); });
}

}  // namespace

void add_measure(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("measure", "Times real kernels, messages and steps on this machine");
  auto o = std::make_shared<Options>();
  verb->add_option("--backend", o->backend, "cpu (always there) or cuda (a plug-in; exit 3 where it is not)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_option("--out", o->out, "the measuring file to write");
  verb->add_flag("--quick", o->quick, "fewer sizes and samples");
  verb->add_option("--only", o->only, "cuda: parts to measure (default all)")
      ->check(CLI::IsMember({"gemm", "memory", "launch", "contention", "collectives", "layer"}));
  verb->add_option("--seconds", o->seconds, "cuda: device time to aim at (default 240, quick 30)");
  verb->add_option("--traffic", o->traffic,
                   "cuda: bytes from rank to rank for the all-to-allv, a matrix as `collective --traffic` reads it");
  verb->add_option("--transport", o->transport,
                   "cpu: ranks are threads, or processes of Open MPI (mpi: a helper program that is built where MPI "
                   "is; exit 3 elsewhere)")
      ->check(CLI::IsMember({"threads", "mpi"}))
      ->default_str(o->transport);
  add_format_option(*verb, o->format);
  add_import(*verb);
  add_calibrate(*verb);
  verb->footer("Example:\n  shardplan measure --backend cpu --quick --out cpu.json");
  verb->callback([o, verb] {
    if (verb->get_subcommands().empty()) measure(*o);
  });
}

}  // namespace shardplan
