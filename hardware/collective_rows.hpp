#pragma once
// Measured collectives as rows: nccl-tests results with where they were taken, and the question that each row asks of
// the model.
#include <string>
#include <vector>

#include "hardware/collective_nccl.hpp"
#include "hardware/collectives.hpp"

namespace shardplan {

class CsvTable;

struct CollectiveRow {
  std::string dataset, gpu, net, op, dtype, nccl, place, env;  // as the file writes them
  int gpus_per_node = 8, nodes = 1, ranks = 1;
  double bytes = 0;
  double seconds = 0;
};

/// The data set of rows that a measuring file of this program gives: whole ladders of one machine.
inline constexpr std::string_view kMeasuredHere = "measured";

/// Columns dataset, gpu, gpus_per_node, nodes, ranks, net, op, dtype, bytes, time_us and, where present, place, nccl,
/// env.
std::vector<CollectiveRow> read_collective_rows(const CsvTable&);

/// "all_reduce", "all-reduce", "AllReduce" ...; nothing for words that are none.
std::optional<Collective> collective_of(std::string_view word);
std::string_view collective_name(Collective);  // "all-reduce"
/// NCCL's type words: half, float, bfloat16, int8, uint8, fp8_e4m3 ... and this program's.
std::optional<DataType> nccl_type(std::string_view word);

/// The cluster that a row was measured on: its GPU, and the fabric that `net` describes ("IB NDR 8x400G", "EFA v2
/// 32x100G", "TCPXO 8x200G", "NVL72 x2 + IB 400G/GPU"). InputError says what is not known.
Cluster cluster_of(const CollectiveRow&);
/// NCCL_ALGO, NCCL_NVLS_ENABLE and NCCL_PROTO in `env`.
NcclSettings settings_of(const CollectiveRow&);
GroupShape shape_of(const CollectiveRow&, const Cluster&);

}  // namespace shardplan
