#include "hardware/measure/cuda_plugin.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "hardware/measure_cuda/plugin_abi.hpp"

namespace shardplan {
namespace {

constexpr const char* kWhere = "--backend cuda";

/// The plug-in's functions; the library stays loaded to the end of the program (CUDA does not like to be unloaded).
struct Plugin {
  decltype(&shardplan_measure_run) run = nullptr;
  decltype(&shardplan_measure_free) free = nullptr;
  decltype(&shardplan_measure_versions) versions = nullptr;
};

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

Plugin load_plugin() {
  const std::string path = cuda_plugin_path();
  if (!std::filesystem::exists(path)) {
    throw UnavailableError(
        kWhere, "this build has no CUDA plug-in (" + std::filesystem::path(path).filename().string() +
                    " is not beside the program): configure with -DSHARDPLAN_CUDA=ON where the CUDA toolkit, "
                    "cuBLASLt and NCCL are installed, and build again");
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw UnavailableError(kWhere,
                           std::string("the CUDA plug-in does not load: ") + (why == nullptr ? "unknown reason" : why));
  }
  const auto abi = symbol<decltype(&shardplan_measure_abi)>(library, "shardplan_measure_abi");
  const Plugin plugin{symbol<decltype(&shardplan_measure_run)>(library, "shardplan_measure_run"),
                      symbol<decltype(&shardplan_measure_free)>(library, "shardplan_measure_free"),
                      symbol<decltype(&shardplan_measure_versions)>(library, "shardplan_measure_versions")};
  if (abi == nullptr || plugin.run == nullptr || plugin.free == nullptr || plugin.versions == nullptr ||
      abi() != SHARDPLAN_MEASURE_ABI)
    throw UnavailableError(kWhere, path + " belongs to another version of this program: build it again");
  return plugin;
}

}  // namespace

std::string cuda_plugin_path() {
  if (const char* given = std::getenv("SHARDPLAN_CUDA_PLUGIN"); given != nullptr && *given != '\0') return given;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "libshardplan_measure_cuda.so").string();
}

std::optional<std::string> cuda_plugin_versions() {
  try {
    return load_plugin().versions();
  } catch (const UnavailableError&) {
    return std::nullopt;
  }
}

MeasuringFile measure_cuda(const CudaBackendOptions& options) {
  const Plugin plugin = load_plugin();
  const nlohmann::json request = {{"quick", options.quick},
                                  {"seconds", options.seconds},
                                  {"only", options.only},
                                  {"arguments", options.arguments},
                                  {"traffic", options.traffic}};
  char* raw = nullptr;
  const int code = plugin.run(request.dump().c_str(), &raw);
  const std::unique_ptr<char, void (*)(char*)> answer(raw, plugin.free);
  const std::string text = answer == nullptr ? "the plug-in gave no answer" : answer.get();
  if (code == 3) throw UnavailableError(kWhere, text);
  if (code != 0) throw InputError(kWhere, text);
  return parse_measuring(text, "the CUDA plug-in's answer");
}

}  // namespace shardplan
