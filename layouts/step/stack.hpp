#pragma once
// What a software stack does with a layout: which work it fuses, what it hides, and what it costs the host. Data in
// layouts/data/stacks.json; the few fitted constants carry their unit there.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/field.hpp"
#include "hardware/kernels.hpp"
#include "layouts/layout.hpp"

namespace shardplan {

/// How element-wise work is run: one kernel an operator, fused by hand-written kernels, by a compiler, or plainly: one
/// loop an operator, nothing kept in FP32 beside.
enum class Elementwise { eager, fused, compiled, plain };

/// Constants of a software stack, fitted on measured steps (see `validate --constants`); neutral values where none was.
struct StackConstants {
  double kernel_launch_s = 15e-6;  // host seconds from one operator to the next; of all stacks of one host_code
  double step_s = 5e-3;            // host seconds a step that nothing hides: data loading, clip norm, scaler, logging
  double compute_factor = 1;       // device seconds of this stack over the kernel tables' (layouts, casts, gaps)
  double release_factor = 1;       // device seconds of the release over the stack's other releases'
  double pass_s = 0;               // seconds on the critical path of each pipeline pass: bookkeeping of a chunk
  double residual_sd = 0.08;       // spread of ln(measured / predicted) on dense rows left out of a fit
  double residual_sd_host = 0.10;  // the same where the host's launches hold the step
  double residual_sd_moe = 0.20;   // and with experts
  int fit_rows = 0;                // that the spreads stand on; 0 = priors
};

/// Constants of a machine. Sustained factors: seconds of matrix kernels in a hot training step over tabled seconds.
/// What slows 16-bit products (power limit, heat) slows all kernels of the tensor cores: the factors of narrower
/// products and of fused attention are over that of 16-bit products, so one precision's runs tell of the others.
struct MachineConstants {
  double bf16 = 1;
  double fp8 = 1, fp8_row = 1, fp4 = 1;                  // over bf16
  std::array<double, 7> attention{1, 1, 1, 1, 1, 1, 1};  // by AttentionLibrary, over bf16; unfused: of its traffic
  // Seconds of collectives between nodes of this fabric over the network model's. Neutral: 1.2, the geometric mean over
  // the fabrics fitted: collectives of a step share links and hosts that a benchmark has for itself.
  double network_factor = 1.2;
  double domain_factor = 1;  // of collectives inside a node of this machine over the network model's
  // NICs that a group with some, not all, of a node's GPUs uses of each member after its first; 1 = all. Rings that
  // enter a node at one GPU and leave it at another under a different PCIe switch reach only part of both NICs.
  double strided_nics = 1;
  double host_factor = 1;       // host seconds of an operator on this GPU\'s hosts over those of its host code
  double message_s = 1e-3;      // fixed seconds of one pipeline message between nodes
  bool network_fitted = false;  // network_factor on a measured run
  bool gpu_fitted = false;      // a rate of this GPU on several measured runs; else the kernel tables' sustained maxima
};
/// Least measured runs for a stack to have a factor of its own.
inline constexpr int kRunsOfAStack = 5;
/// all: fitted on every question of the measured runs, what predictions use. half: on half of them, what the error on
/// the other half is reported with.
enum class ConstantSet { all, half };
MachineConstants machine_constants(const Cluster&, const KernelModel&, ConstantSet = ConstantSet::all);
/// What stands in where nothing was fitted: the kernel tables' sustained rates, networks as modelled.
MachineConstants unfitted_machine_constants(const Gpu&, const KernelModel&);
/// The data file of the fitted constants.
Field step_constants_document(ConstantSet);
/// "infiniband-400": kind of network and Gbit/s a GPU, the name under which its constants are kept.
std::string fabric_key(const Cluster&);
/// The GPU whose kernel tables this one uses.
std::string family_key(const Gpu&);

struct Stack {
  std::string name;
  std::string source;
  std::string framework;  // megatron | pytorch | deepspeed | nanotron
  std::string host_code;  // stacks whose operators the same Python issues share a kernel_launch_s, kept by this name
  Elementwise elementwise = Elementwise::fused;
  AttentionLibrary attention = AttentionLibrary::unspecified;
  bool attention_dropout = false;    // unfused attention with dropout on the scores
  double loss_bytes_per_logit = 14;  // memory traffic of cross-entropy, forward and backward together
  bool fp32_accumulate = true;       // weight gradients accumulate into FP32 inside the GEMM
  double grad_reduce_bytes = 4;      // bytes an element of the data-parallel reduction
  bool overlap_grad_reduce = true;   // buckets under the last micro-batch's backward
  bool overlap_param_gather = true;  // ZeRO 1-2: gathers under the next step's forward
  double bucket_bytes = 160e6;       // of a gradient bucket
  bool async_tp_backward = true;     // reduction of a column-parallel input gradient under its weight-gradient GEMM
  TpOverlap tp_overlap = TpOverlap::none;
  bool p2p_slices = false;       // pipeline messages sent as 1/tp slices (scatter-gather) without sequence parallelism
  bool p2p_overlap = true;       // sends do not hold the compute stream
  bool p2p_copies = false;       // ranks copy messages in and out themselves, inside their passes: no time between
  bool balances_stages = false;  // splits by the blocks' computation, the output head's included, not by layers
  ContextParallel cp_by = ContextParallel::ring;
  int fsdp_prefetch = 1;
  bool cuda_graphs = false;  // whole iteration or layers captured: no host launch time
  double optimizer_bytes_per_parameter =
      30;                              // HBM traffic: gradient 4, master and moments read and written 24, weight 2
  bool sequence_parallel = true;       // where a row does not say
  bool overlap_sharded_reduce = true;  // false: under ZeRO 1 gradients are reduced after the backward pass
  double broadcast_root_s =
      0;  // > 0: ZeRO 1 gathers by one broadcast a rank, each with so many seconds beyond its bytes
  double gather_slice_s =
      0;  // > 0: ZeRO 1 gathers handle each tensor's slice of each rank by itself, so long on the host
  std::vector<std::string> schedules;           // that `plan` may search
  std::vector<int> zero_stages;                 // that `plan` may search
  TpOverlap plan_tp_overlap = TpOverlap::none;  // that `plan` takes: what the stack offers and hides most with
  std::vector<Transport> plan_transports{Transport::nccl};  // of the experts' exchange, that `plan` may search
  std::vector<EpOverlap> plan_ep_overlaps{EpOverlap::none};
  StackConstants constants;
  std::string release;                     // "26.06"; empty: none stated
  std::map<std::string, double> releases;  // release_factor of those that were fitted

  /// "megatron-bridge 26.06".
  std::string shown() const { return release.empty() ? name : name + " " + release; }

  std::string built_in;  // whose memory figures it has: its own name, or of a stack from a file the base's

  bool runs_zero(int stage) const {
    return zero_stages.empty() || std::find(zero_stages.begin(), zero_stages.end(), stage) != zero_stages.end();
  }
};

/// One constant that can be fitted: where it belongs, its name, unit, starting value and range.
struct StackConstantRow {
  const char* name;
  const char* unit;
  double StackConstants::* member;
  double least, most;
  double spread;              // standard deviation of ln(value / neutral) expected before any measurement
  bool of_host_code = false;  // one for all stacks of a host_code
};
std::span<const StackConstantRow> stack_constant_rows();
/// Fitted for each release of a stack that has runs of several.
const StackConstantRow& release_constant_row();

enum class MachineScope { gpu, host, family, fabric };  // one GPU; its hosts; all GPUs of one calibration; one fabric
struct MachineConstantRow {
  std::string name;
  const char* unit;
  MachineScope scope;
  double& (*member)(MachineConstants&);
  double least, most;
  double spread;  // as above
};
std::span<const MachineConstantRow> machine_constant_rows();

/// A stack by name, or from a file with one object like those of data/stacks.json, whose `base` is a built-in stack;
/// InputError with "did you mean". `where` names the option.
Stack load_stack(const std::string& name, const std::string& where, ConstantSet = ConstantSet::all);
std::vector<std::string> stack_names();
/// Says which release of the stack runs; one that was not fitted is taken as the mean of the others.
void set_release(Stack&, const std::string& release);

}  // namespace shardplan
