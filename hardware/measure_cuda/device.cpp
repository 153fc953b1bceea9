#include "hardware/measure_cuda/device.hpp"

#include <dlfcn.h>

#include <cstdio>

#include "hardware/measure_cuda/check.hpp"

namespace shardplan::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, 0), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void require_device() {
  int driver = 0, runtime = 0, devices = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver && driver == 0)
    throw DeviceMissing("no NVIDIA driver on this machine (libcuda.so.1 was not found; CUDA runtime " +
                        version_text(runtime) + ")");
  if (status == cudaErrorInsufficientDriver)
    throw DeviceMissing("the NVIDIA driver supports CUDA " + version_text(driver) + ", this plug-in needs " +
                        version_text(runtime));
  if (status == cudaErrorNoDevice || (status == cudaSuccess && devices == 0))
    throw DeviceMissing("an NVIDIA driver is installed but no GPU is visible");
  if (status != cudaSuccess)
    throw DeviceMissing(std::string("the CUDA runtime does not start: ") + cudaGetErrorString(status));
  check(cudaSetDevice(0), "cudaSetDevice");
}

DeviceFacts device_facts() {
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, 0), "cudaGetDeviceProperties");
  DeviceFacts facts;
  facts.name = prop.name;
  char uuid[48];
  const auto byte = [&](int i) { return static_cast<unsigned char>(prop.uuid.bytes[i]); };
  int at = std::snprintf(uuid, sizeof uuid, "GPU-");
  for (int i = 0; i < 16; ++i) {
    at += std::snprintf(uuid + at, sizeof uuid - static_cast<std::size_t>(at), "%s%02x",
                        i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", byte(i));
  }
  facts.uuid = uuid;
  facts.sms = prop.multiProcessorCount;
  facts.compute_capability = prop.major * 10 + prop.minor;
  facts.l2_bytes = prop.l2CacheSize;
  facts.memory_bytes = static_cast<std::int64_t>(prop.totalGlobalMem);
  facts.clock_mhz = attribute(cudaDevAttrClockRate) / 1000;
  return facts;
}

std::map<std::string, std::string> device_words() {
  const DeviceFacts facts = device_facts();
  int driver = 0, runtime = 0, nccl = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  ncclGetVersion(&nccl);
  return {{"name", facts.name},
          {"uuid", facts.uuid},
          {"sms", std::to_string(facts.sms)},
          {"compute_capability", std::to_string(facts.compute_capability)},
          {"l2_bytes", std::to_string(facts.l2_bytes)},
          {"memory_bytes", std::to_string(facts.memory_bytes)},
          {"driver_cuda", version_text(driver)},
          {"runtime_cuda", version_text(runtime)},
          {"cublaslt", std::to_string(cublasLtGetVersion())},
          {"nccl", std::to_string(nccl)}};
}

// nvmlReturn_t is an int, 0 = success; nvmlDevice_t a pointer.
DeviceMonitor::DeviceMonitor() {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlInit_v2"));
  const auto by_bus =
      reinterpret_cast<int (*)(const char*, void**)>(dlsym(library_, "nvmlDeviceGetHandleByPciBusId_v2"));
  char bus[32] = {};
  if (init == nullptr || by_bus == nullptr || init() != 0) return;
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, 0) != cudaSuccess || by_bus(bus, &device_) != 0) device_ = nullptr;
}

DeviceMonitor::~DeviceMonitor() {
  if (library_ == nullptr) return;
  if (const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlShutdown"))) shutdown();
  dlclose(library_);
}

/// Functions of the shape (device, [int,] unsigned*). argument < 0: without the int. Negative answer = not there.
double DeviceMonitor::read(const char* function, int argument) const {
  if (device_ == nullptr) return -1;
  void* symbol = dlsym(library_, function);
  if (symbol == nullptr) return -1;
  unsigned value = 0;
  const int status = argument < 0 ? reinterpret_cast<int (*)(void*, unsigned*)>(symbol)(device_, &value)
                                  : reinterpret_cast<int (*)(void*, int, unsigned*)>(symbol)(device_, argument, &value);
  return status == 0 ? value : -1;
}

double DeviceMonitor::sm_mhz() const {
  const double mhz = read("nvmlDeviceGetClockInfo", 1);  // NVML_CLOCK_SM
  return mhz < 0 ? 0 : mhz;
}

std::map<std::string, double> DeviceMonitor::state() const {
  std::map<std::string, double> out;
  const auto put = [&](const char* name, double value, double scale) {
    if (value >= 0) out[name] = value * scale;
  };
  put("sm_mhz", read("nvmlDeviceGetClockInfo", 1), 1);
  put("memory_mhz", read("nvmlDeviceGetClockInfo", 2), 1);
  put("power_w", read("nvmlDeviceGetPowerUsage", -1), 1e-3);
  put("power_limit_w", read("nvmlDeviceGetEnforcedPowerLimit", -1), 1e-3);
  put("temperature_c", read("nvmlDeviceGetTemperature", 0), 1);
  if (device_ != nullptr) {
    unsigned long long reasons = 0;
    const auto get = reinterpret_cast<int (*)(void*, unsigned long long*)>(
        dlsym(library_, "nvmlDeviceGetCurrentClocksThrottleReasons"));
    if (get != nullptr && get(device_, &reasons) == 0) out["throttle_reasons"] = static_cast<double>(reasons);
  }
  return out;
}

}  // namespace shardplan::cuda
