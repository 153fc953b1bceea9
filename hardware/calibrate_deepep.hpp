#pragma once
// From measured rows of DeepEP's kernels (sglang's sweeps) to the tables of data/deepep.
#include <span>
#include <string>
#include <vector>

#include "hardware/deepep_kernel.hpp"

namespace shardplan {

class CsvTable;

struct DeepEpRow {
  std::string gpu;  // the built-in name; empty where there is none
  std::string device;
  int nodes = 1, hidden = 0, top_k = 1, experts = 8;
  double tokens = 0;
  bool low_latency = false;
  int dispatch_sms = 0, combine_sms = 0;  // normal kernels
  double dispatch_seconds = 0, combine_seconds = 0;
};

/// Columns device, node_num, hidden_size, num_token, num_topk, num_experts and either dispatch_sms,
/// dispatch_transmit_us, dispatch_notify_us (and the same of combine) or dispatch_avg_t_us and combine_avg_t_us.
bool is_deepep_table(const CsvTable&);
std::vector<DeepEpRow> read_deepep_rows(const CsvTable&);
/// Ranks on one node of that GPU in the sweeps: 8, 4 on boards of four.
int deepep_ranks(const DeepEpRow&);

/// The load of a row; `combine` chooses the direction.
KernelLoad load_of(const DeepEpRow&, bool combine, double gpu_sms);

/// Fits the kernels of one GPU to its one-node rows; a kernel without rows keeps the prior's constants.
DeepEpTable calibrate_deepep(std::span<const DeepEpRow>, const DeepEpTable& prior);

/// Predictions of rows (dispatch, combine) by constants that have not seen them: `folds` parts by a hash of the row's
/// shape.
struct LeftOutDeepEp {
  double dispatch = 0, combine = 0;
};
std::vector<LeftOutDeepEp> leave_out_deepep(std::span<const DeepEpRow>, int folds);

}  // namespace shardplan
