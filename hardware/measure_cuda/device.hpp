#pragma once
// The device: is it there, what is it, and in which state (clocks, power, temperature; never changed, only read).
#include <cstdint>
#include <map>
#include <string>

namespace shardplan::cuda {

/// Throws DeviceMissing with one sentence where there is no driver, a driver that is too old, or no GPU. Selects device
/// 0.
void require_device();

struct DeviceFacts {
  std::string name, uuid;
  int sms = 0, compute_capability = 0;  // 90 = 9.0
  std::int64_t l2_bytes = 0, memory_bytes = 0;
  int clock_mhz = 0;  // what the device calls its clock rate
};
DeviceFacts device_facts();
std::map<std::string, std::string> device_words();  // for the file: names and versions

/// libnvidia-ml at run time, with its own prototypes (its header is not part of the toolkit). Figures that it cannot
/// read are absent.
class DeviceMonitor {
 public:
  DeviceMonitor();
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

  /// sm_mhz, memory_mhz, power_w, temperature_c, throttle_reasons.
  std::map<std::string, double> state() const;
  /// SM clock in MHz, 0 = unknown.
  double sm_mhz() const;

 private:
  double read(const char* function, int argument) const;
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace shardplan::cuda
