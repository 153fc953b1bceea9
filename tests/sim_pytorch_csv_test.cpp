#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "sim/pytorch_csv.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

PassTimes unit_times(const Order& order) {
  PassTimes t;
  t.forward.assign(order.stages(), 1);
  t.input_grad.assign(order.stages(), 1);
  t.weight_grad.assign(order.stages(), 1);
  return t;
}

std::string error_of(const std::string& csv) {
  try {
    parse_pytorch_csv(csv, "f.csv");
  } catch (const InputError& e) {
    return e.where() + ": " + e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a schedule written as CSV and read back replays the same", "[sim]") {
  for (const ScheduleRow& row : schedules()) {
    ScheduleQuestion q;
    q.ranks = 4;
    q.microbatches = 8;
    q.chunks = row.default_chunks;
    const Order order = row.order(q);
    INFO(row.name);
    if (order.parameter_copies > 1) {
      CHECK_THROWS_AS(pytorch_csv(order, CsvKind::compute_only), InputError);
      continue;
    }
    const Replay expected = replay(order, unit_times(order));
    for (const CsvKind kind : {CsvKind::compute_only, CsvKind::compute_comms}) {
      const Order back = parse_pytorch_csv(pytorch_csv(order, kind), "f.csv");
      const Replay r = replay(back, unit_times(back));
      CHECK(r.makespan == expected.makespan);
      CHECK(r.max_stage_window == expected.max_stage_window);
      CHECK(pytorch_csv(back, kind) == pytorch_csv(order, kind));
    }
  }
}

TEST_CASE("two ranks, four stages: all forwards, then the second chunk's backward first", "[sim]") {
  // Shape of torchtitan's tests/assets/custom_schedule.csv, written out here by rule.
  std::string csv;
  for (int r = 0; r < 2; ++r) {
    std::string row;
    const auto add = [&](int stage, const char* kind, int k) {
      row += (row.empty() ? "" : ",") + std::to_string(stage) + kind + std::to_string(k);
    };
    for (int k = 0; k < 8; ++k) add(r, "F", k);
    for (int k = 0; k < 8; ++k) add(r + 2, "F", k);
    for (int k = 0; k < 2; ++k) add(r + 2, "I", k), add(r + 2, "W", k);
    for (int k = 0; k < 6; ++k) {
      add(r, "I", k), add(r, "W", k);
      add(r + 2, "I", k + 2), add(r + 2, "W", k + 2);
    }
    for (int k = 6; k < 8; ++k) add(r, "I", k), add(r, "W", k);
    csv += row + "\n";
  }
  const Order order = parse_pytorch_csv(csv, "f.csv");
  const Replay r = replay(order, unit_times(order));
  CHECK(r.makespan == 50);
  CHECK(r.ranks[0].busy == 48);
  CHECK(r.ranks[0].peak_chunks_until_input_grad == 16);
}

TEST_CASE("PyTorch's lowering: messages stand right after their pass, receives where the sender was placed", "[sim]") {
  ScheduleQuestion q;
  q.ranks = 2;
  q.microbatches = 4;
  q.chunks = 2;
  const std::string csv = pytorch_csv(find_schedule("interleaved-1f1b").order(q), CsvKind::compute_comms);
  const std::string row = csv.substr(0, csv.find('\n'));
  CHECK(row.find("0UNSHARD,2UNSHARD,0F0,0SEND_F0,2RECV_F0,0F1,0SEND_F1,2RECV_F1,2F0,2SEND_F0") == 0);
  const std::string tail = "2REDUCE_GRAD,2RESHARD,0RECV_B2,0B2,0RECV_B3,0B3,0REDUCE_GRAD,0RESHARD";
  CHECK(row.substr(row.size() - tail.size()) == tail);
  q.chunks = 2;
  CHECK(pytorch_csv(find_schedule("dualpipe-v").order(q), CsvKind::compute_only)
            .find("0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,"
                  "0I2,0W2,0I3,0W3\n") == 0);
}

TEST_CASE("idle slots and blanks around cells are read, garbage is refused with its place", "[sim]") {
  const std::string good = "0F0, 0F1 ,,,0B0,,0B1\n,1F0,1B0,1F1,,1B1\n";
  CHECK(error_of(good).empty());
  CHECK(error_of("0F0garbage,0B0\n") == "f.csv: row 1, cell 1: \"0F0garbage\": \"garbage\" is left over");
  CHECK(error_of("0F0,0OVERLAP_F_B\n").find("f.csv: row 1, cell 2: ") == 0);
  CHECK(error_of("0F0,0X1\n").find("expected F, I, W, B") != std::string::npos);
  CHECK(error_of("0F0,0I0\n") == "schedule: the pass 0W0 is missing");
  CHECK(error_of("0B0,0F0\n") == "schedule: 0B0 stands before its forward pass");
  CHECK(error_of("0F0,0B0\n0F1,0B1\n") == "f.csv: stage 0 stands on rank 0 and on rank 1");
  CHECK(error_of("0F0,0SEND_F0,,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n").find("cell 3: an empty cell") !=
        std::string::npos);
  CHECK(error_of("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") == "f.csv: row 1: 0SEND_F0 is missing");
  CHECK(error_of("").find("no pass") != std::string::npos);
  CHECK(error_of("99999999F0\n").find("too large") != std::string::npos);
}

TEST_CASE("PyTorch's own 1F1B list, off by one on the last rank, is refused", "[sim]") {
  // Schedule1F1B._get_pipeline_order at 00722e64: the last rank runs F1 .. F8 instead of F0 .. F7.
  ScheduleQuestion q;
  q.ranks = 4;
  q.microbatches = 8;
  std::string csv = pytorch_csv(find_schedule("1f1b").order(q), CsvKind::compute_only);
  for (int k = 7; k >= 0; --k) {
    const std::string from = "3F" + std::to_string(k), to = "3F" + std::to_string(k + 1);
    csv.replace(csv.find(from), from.size(), to);
  }
  CHECK_FALSE(error_of(csv).empty());
}
