#pragma once
// DeepEP's kernels in one NVLink domain as functions of their constants; formulas in deepep.hpp. SI units throughout.
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

struct NormalKernel {
  double latency = 25e-6, latency_byte = 0.5e-9,
         latency_copy_byte = 0.1e-9;          // s, s per payload byte, per copy and byte
  double token = 50e-9, token_byte = 30e-12;  // s a token and channel, s a byte
  double copy = 10e-9, copy_byte = 10e-12;
  double other = 10e-9, other_byte = 15e-12;
  double link = 350e9;  // bytes/s
  double sharp = 4, join = 0.9;
};

struct LowLatencyKernel {
  double latency = 8e-6, latency_byte = 0.2e-9, expert = 50e-9, choice = 0.05e-6, choice_byte = 0.02e-9;
  double token = 0.5e-6, token_byte = 0.3e-9;
  double copy = 0.5e-6, copy_byte = 0.05e-9;
  double link = 300e9;
  double sharp = 3, join = 1.1;
};

/// What one kernel call moves.
struct KernelLoad {
  double tokens = 0;   // T
  double payload = 0;  // B, bytes a token
  double copies = 0;   // R: distinct destination ranks a token (normal)
  int top_k = 1, experts = 8, ranks = 8;
  double sms = 24;
};

/// The constants in the order of the files.
std::span<double NormalKernel::* const> members_of(const NormalKernel&);
std::span<double LowLatencyKernel::* const> members_of(const LowLatencyKernel&);

double normal_seconds(const NormalKernel&, const KernelLoad&);
double low_latency_seconds(const LowLatencyKernel&, const KernelLoad&);
/// SMs that a low-latency kernel keeps at work: one group of warps an expert, as few groups an SM as fit.
double low_latency_sms(int experts, double sms);

struct DeepEpTable {
  std::string gpu;
  std::string source;
  std::vector<std::string> serves;
  double sms = 132;                  // of the GPU
  double link_bytes_per_second = 0;  // datasheet
  NormalKernel dispatch, combine;
  LowLatencyKernel low_dispatch, low_combine;
  // Half-widths of the 80 % interval in log time, from rows left out.
  double normal_spread = 0.06, low_latency_spread = 0.06;
};

DeepEpTable read_deepep_table(std::string_view json, const std::string& name);
std::string json_of(const DeepEpTable&);
const std::vector<DeepEpTable>& deepep_tables();

/// Payload bytes of a token: dispatch values of `bytes` each, low latency with its 16-byte message head.
double deepep_payload(int hidden, double bytes_per_value, bool low_latency_dispatch);

}  // namespace shardplan
