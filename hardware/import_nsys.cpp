#include "hardware/import_nsys.hpp"

#include "base/errors.hpp"
#if SHARDPLAN_SQLITE
#include <sqlite3.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>
#endif

namespace shardplan {

bool is_sqlite(std::string_view bytes) { return bytes.starts_with(std::string_view("SQLite format 3\0", 16)); }

#if SHARDPLAN_SQLITE
namespace {

/// One report, opened for reading.
class Report {
 public:
  explicit Report(const std::string& path) : path_(path) {
    sqlite3* raw = nullptr;
    const int status = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READONLY, nullptr);
    db_.reset(raw);
    if (status != SQLITE_OK) throw InputError(path, "is no SQLite file that can be read");
  }

  /// Calls `row` with the statement on every row of the answer.
  void each(const std::string& sql, const std::function<void(sqlite3_stmt*)>& row) const {
    sqlite3_stmt* raw = nullptr;
    const int prepared = sqlite3_prepare_v2(db_.get(), sql.c_str(), -1, &raw, nullptr);
    const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
    if (prepared != SQLITE_OK) fail();
    for (;;) {
      const int status = sqlite3_step(raw);
      if (status == SQLITE_DONE) return;
      if (status != SQLITE_ROW) fail();
      row(raw);
    }
  }
  bool has(const std::string& table) const {
    bool found = false;
    each("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '" + table + "'", [&](auto*) { found = true; });
    return found;
  }

 private:
  [[noreturn]] void fail() const {
    throw InputError(path_,
                     std::string("is no report of nsys that this program understands: ") + sqlite3_errmsg(db_.get()));
  }
  std::string path_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> db_{nullptr, sqlite3_close};
};

std::string text_at(sqlite3_stmt* row, int column) {
  const unsigned char* text = sqlite3_column_text(row, column);
  return text == nullptr ? "" : reinterpret_cast<const char*>(text);
}

double seconds_at(sqlite3_stmt* row, int column) {
  return 1e-9 * static_cast<double>(sqlite3_column_int64(row, column));
}

struct Activity {
  const char* table;
  const char* name;  // of the operation, as SQL
  const char* joined;
  const char* fixed_class;  // "" = by name
};
constexpr Activity kActivities[] = {
    {"CUPTI_ACTIVITY_KIND_KERNEL", "COALESCE(s.value, '')", " LEFT JOIN StringIds s ON s.id = a.demangledName", ""},
    {"CUPTI_ACTIVITY_KIND_MEMCPY", "'memcpy'", "", "copy"},
    {"CUPTI_ACTIVITY_KIND_MEMSET", "'memset'", "", "memset"},
};

void read_ranges(const Report& report, ProfilerTrace& trace) {
  if (!report.has("NVTX_EVENTS")) return;
  report.each(
      "SELECT n.start, n.end, COALESCE(s.value, n.text, '') FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = "
      "n.textId "
      "WHERE n.eventType = 59 AND n.end IS NOT NULL ORDER BY n.start, n.end DESC",
      [&](sqlite3_stmt* row) { trace.phases.push_back({text_at(row, 2), seconds_at(row, 0), seconds_at(row, 1)}); });
}

std::unordered_map<std::int64_t, double> read_launches(const Report& report) {
  std::unordered_map<std::int64_t, double> launches;
  if (!report.has("CUPTI_ACTIVITY_KIND_RUNTIME")) return launches;
  report.each("SELECT correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME",
              [&](sqlite3_stmt* row) { launches[sqlite3_column_int64(row, 0)] = seconds_at(row, 1); });
  return launches;
}

void read_operations(const Report& report, std::int64_t device, ProfilerTrace& trace) {
  const auto launches = read_launches(report);
  for (const Activity& a : kActivities) {
    if (!report.has(a.table)) continue;
    report.each(std::string("SELECT a.start, a.end, a.streamId, a.correlationId, ") + a.name + " FROM " + a.table +
                    " a" + a.joined + " WHERE a.deviceId = " + std::to_string(device),
                [&](sqlite3_stmt* row) {
                  TraceOp op;
                  op.start = seconds_at(row, 0);
                  op.end = seconds_at(row, 1);
                  op.stream = static_cast<int>(sqlite3_column_int64(row, 2));
                  op.name = text_at(row, 4);
                  op.kernel_class = a.fixed_class[0] != '\0' ? a.fixed_class : std::string(kernel_class_of(op.name));
                  op.communication = is_communication(op.kernel_class);
                  const auto launch = launches.find(sqlite3_column_int64(row, 3));
                  if (launch != launches.end()) op.phase = phase_at(trace.phases, launch->second);
                  if (op.end >= op.start) trace.ops.push_back(std::move(op));
                });
  }
  std::stable_sort(trace.ops.begin(), trace.ops.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
}

}  // namespace

ProfilerTrace read_nsys(const std::string& path) {
  const Report report(path);
  if (!report.has("CUPTI_ACTIVITY_KIND_KERNEL") || !report.has("StringIds"))
    throw InputError(path, "holds no GPU kernels: it is no export of nsys (--type sqlite), or CUDA was not traced");
  std::vector<std::int64_t> devices;
  report.each("SELECT DISTINCT deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY deviceId",
              [&](sqlite3_stmt* row) { devices.push_back(sqlite3_column_int64(row, 0)); });
  if (devices.empty()) throw InputError(path, "holds no GPU kernels: CUDA was not traced");
  ProfilerTrace trace;
  trace.name = path.substr(path.find_last_of('/') + 1);
  if (report.has("TARGET_INFO_GPU")) {
    report.each("SELECT name FROM TARGET_INFO_GPU LIMIT 1", [&](sqlite3_stmt* row) { trace.device = text_at(row, 0); });
  }
  if (devices.size() > 1)
    trace.device +=
        " (GPU " + std::to_string(devices.front()) + ", the first of " + std::to_string(devices.size()) + ")";
  read_ranges(report, trace);
  read_operations(report, devices.front(), trace);
  return trace;
}
#else
ProfilerTrace read_nsys(const std::string& path) {
  throw InputError(path, "is an SQLite file, and this program was built without SQLite (libsqlite3-dev)");
}
#endif

}  // namespace shardplan
