// Ranks as processes of Open MPI against ranks as threads: the same bits, messages and bytes; a lost message is an
// error. Small, because a machine with fewer cores than ranks lets them wait for one another.
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "hardware/measure/mpi_ranks.hpp"
#include "hardware/measure/rank_digest.hpp"
#include "tests/run_program.hpp"
#include "tests/scratch.hpp"

using namespace shardplan;

TEST_CASE("steps on Open MPI's processes give the gradients, messages and bytes of steps on threads", "[measure]") {
  constexpr int kRanks = 4;
  CHECK(mpi_helper().empty() == !SHARDPLAN_BUILDS_MPI);
  const std::string command = mpi_command(kRanks);
  if (command.empty()) {
    std::printf("Open MPI ranks: skipped: no MPI\n");
    return;
  }
  const std::string threads = text_of(digest_steps(kRanks, make_mailbox));
  const Answer mpi = run_line("timeout 120 " + command + " digest");
  CHECK(mpi.code == 0);
  CHECK(mpi.text == threads);
  std::printf("Open MPI ranks: 6 steps on %d processes, gradients, messages and bytes equal the threads'\n", kRanks);
}

TEST_CASE("a message that Open MPI's ranks lose is an error, not a hang", "[measure]") {
  const std::string command = mpi_command(2);
  if (command.empty()) return;  // said above
  const Answer lost = run_line("timeout 120 " + command + " lose");
  INFO(lost.text);
  CHECK(lost.code == 2);
  // Rank 1 waits for what was lost, rank 0 for the answer to it: whoever has waited long enough says so and ends both.
  const auto says = [&](const char* what) {
    return lost.text.find(std::string("error: schedule: the step is stuck: ") + what) != std::string::npos;
  };
  CHECK((says("rank 1 waits for the activation of micro-batch 2 from stage 0") ||
         says("rank 0 waits for the gradient of micro-batch 2 from stage 1")));
}

TEST_CASE("measuring with MPI ranks that were not built exits 3 and says how to build them") {
  if (!mpi_helper().empty()) return;  // tested above
  const Answer answer = run("measure --backend cpu --quick --transport mpi --out x.json");
  CHECK(answer.code == 3);
  CHECK(answer.text.find("error: --transport mpi: this build has no MPI ranks: install libopenmpi-dev") == 0);
}
