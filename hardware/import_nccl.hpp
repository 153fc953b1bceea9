#pragma once
// nccl-tests output as rows. Text of every version (with and without the root column, with the error column of releases
// before 2.12, with per-iteration columns), behind the prefixes of mpirun ("[1,0]<stdout>:") and srun -l ("0: "), in
// markdown tables, between NCCL INFO lines, with or without a header; and the report of -J (JSON).
//
// The number of ranks is worked out from busbw / algbw (2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter
// and all-to-all) and held against the header's device list. A log whose figures cannot be true is refused; a row that
// must not be used says why.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/collective_rows.hpp"

namespace shardplan {

struct NcclTestsHalf {
  double seconds = 0, algbw = 0, busbw = 0;  // bytes/s
  std::optional<double> wrong;               // absent: N/A, or the error column of old releases
};

struct NcclTestsRow {
  double bytes = 0, count = 0;
  std::string type, redop;
  std::optional<NcclTestsHalf> out_of_place, in_place;
  std::string unused;  // why the row must not be used; "" = it may
};

struct NcclTestsLog {
  std::string name;
  std::string op;        // "all_reduce" ...; "" = not known
  std::string gpu;       // as the device list names it
  std::string nccl;      // version of the library
  int header_ranks = 0;  // 0 = no device list
  int header_nodes = 0;
  // From busbw / algbw: the whole numbers that its rounding allows, 0 = the ratio tells nothing (send-recv, few
  // digits).
  int table_ranks = 0, table_ranks_least = 0, table_ranks_most = 0;
  double header_most_bytes = 0;
  bool complete = false;  // the closing lines were there
  std::vector<NcclTestsRow> rows;
  std::vector<std::string> flags;  // what is odd, for people
  std::string refused;             // why nothing of it may be used; "" = usable

  int ranks() const { return table_ranks > 0 ? table_ranks : header_ranks; }
};

/// What the user knows better than the log; "" and 0 = nothing.
struct NcclTestsHints {
  std::string op, gpu, net;
  int ranks = 0, nodes = 0, gpus_per_node = 8;
};

/// Never throws for odd content: that is what flags and `refused` are for. InputError only where a JSON report has
/// broken syntax.
NcclTestsLog import_nccl_tests(std::string_view text, const std::string& name, const NcclTestsHints& = {});

/// The rows that may be used, as collectives.csv has them: one each out of place and in place. Empty where the log is
/// refused.
std::vector<CollectiveRow> collective_rows(const NcclTestsLog&, const NcclTestsHints&);
std::string csv_of(const std::vector<CollectiveRow>&, const std::string& source);

// Parts, for the two readers.
void read_nccl_tests_text(std::string_view text, NcclTestsLog&);
void read_nccl_tests_json(std::string_view text, NcclTestsLog&);
/// Operation, ranks and plausibility from what was read.
void judge_nccl_tests(NcclTestsLog&, const NcclTestsHints&);

}  // namespace shardplan
