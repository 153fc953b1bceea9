#include "hardware/measure/mpi_ranks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/measure/rank_threads.hpp"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

bool on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (std::size_t at = 0; at <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    if (end > at && access((folders.substr(at, end - at) + "/" + program).c_str(), X_OK) == 0) return true;
    at = end + 1;
  }
  return false;
}

/// For a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// A file that is gone when this is.
struct Temporary {
  std::string path = (fs::temp_directory_path() / "shardplan_mpi_XXXXXX").string();
  Temporary() {
    const int file = mkstemp(path.data());
    if (file < 0) throw InputError(path, "cannot be written");
    close(file);
  }
  ~Temporary() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
};

}  // namespace

std::string mpi_helper() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path helper = self.parent_path() / "shardplan_mpi_ranks";
  return !error && access(helper.c_str(), X_OK) == 0 ? helper.string() : "";
}

std::string mpi_command(int processes) {
  const std::string helper = mpi_helper();
  if (helper.empty() || !on_path("mpirun")) return "";
  // Open MPI refuses root and more processes than cores unless told; ranks pin themselves.
  return std::string("mpirun ") + (geteuid() == 0 ? "--allow-run-as-root " : "") +
         "--oversubscribe --bind-to none -n " + std::to_string(processes) + " " + quoted(helper);
}

std::vector<MeasuredPoint> measure_mpi_ranks(bool quick) {
  if (mpi_helper().empty())
    throw UnavailableError("--transport mpi",
                           "this build has no MPI ranks: install libopenmpi-dev and openmpi-bin, and configure with "
                           "-DSHARDPLAN_MPI=ON (or use --transport threads)");
  const std::string command = mpi_command(usable_cores() >= 4 ? 4 : 2);
  if (command.empty()) throw UnavailableError("--transport mpi", "mpirun is not on the PATH (Debian: openmpi-bin)");
  const Temporary out;
  const int status = std::system((command + " measure " + quoted(out.path) + (quick ? " quick" : "")).c_str());
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw UnavailableError("--transport mpi", "the ranks failed: " + command);
  return read_measuring(out.path).points;
}

}  // namespace shardplan
