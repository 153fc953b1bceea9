// One rank of the executor as a process of Open MPI; `shardplan measure --backend cpu --transport mpi` starts it:
//   mpirun -n 2 shardplan_mpi_ranks measure FILE [quick]   messages and steps, as a measuring file
//   mpirun -n 4 shardplan_mpi_ranks digest                 small steps: gradients, messages and bytes, a line each
//   mpirun -n 2 shardplan_mpi_ranks lose                   a step one of whose messages is lost: an error, not a hang
#include <mpi.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/measure/cpu_jobs.hpp"
#include "hardware/measure/executor.hpp"
#include "hardware/measure/rank_digest.hpp"
#include "hardware/measure_mpi/mpi_transport.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

constexpr double kPatience = 60, kShortPatience = 2;  // seconds

RankTransportMaker transport_of(double patience_s) {
  return [=](std::vector<ChannelEnds> channels, int ranks, bool) {
    return make_mpi_transport(std::move(channels), ranks, patience_s);
  };
}

int own_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// A step's time is that of its last rank.
void over_all_processes(std::vector<StepJob>& jobs) {
  for (StepJob& job : jobs) {
    job.run = [run = job.run] {
      double own = run(), last = 0;
      MPI_Allreduce(&own, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      return last;
    };
  }
}

void measure(const std::string& path, bool quick) {
  const RankTransportMaker maker = transport_of(kPatience);
  std::vector<StepJob> exchanges = exchange_jobs(quick, maker, "Open MPI"), steps = step_jobs(maker);
  over_all_processes(exchanges);
  over_all_processes(steps);
  for (int pass = 0; pass < (quick ? 3 : 8); ++pass) {
    run_steps(exchanges, quick ? 2 : 4);
    run_steps(steps, quick ? 2 : 4);
  }
  if (own_rank() != 0) return;
  MeasuringFile file;
  file.tool = {{"name", "shardplan"}};
  file.device = {{"name", "host-cpu"}};
  for (std::vector<StepJob>* jobs : {&exchanges, &steps}) {
    for (StepJob& job : *jobs) {
      job.point.words["transport"] = "Open MPI";
      set_samples(job.point, std::move(job.samples), true);
      file.points.push_back(std::move(job.point));
    }
  }
  write_text_file(path, measuring_text(file));
}

void digest() {
  int processes = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  std::vector<StepDigest> steps = digest_steps(processes, transport_of(kPatience));
  for (StepDigest& s : steps) {
    MPI_Allreduce(MPI_IN_PLACE, &s.gradients, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);  // modulo 2^64
    MPI_Allreduce(MPI_IN_PLACE, &s.messages, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &s.bytes, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  }
  if (own_rank() == 0) std::printf("%s", text_of(steps).c_str());
}

void lose() {
  ScheduleQuestion q;
  q.ranks = 2;
  q.microbatches = 4;
  ExecutorOptions options;
  options.shape = {6, 8, 12};
  options.drop_message = 2 * 2;  // stage 0, micro-batch 2, its activation
  options.transport = transport_of(kShortPatience);
  PipelineExecutor(find_schedule("1f1b").order(q), options).step();
}

int run(const std::vector<std::string>& words) {
  if (words.size() >= 2 && words[0] == "measure") return measure(words[1], words.size() > 2), 0;
  if (words.size() == 1 && words[0] == "digest") return digest(), 0;
  if (words.size() == 1 && words[0] == "lose") return lose(), 0;
  throw InputError("shardplan_mpi_ranks", "expected measure FILE [quick], digest or lose");
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &threads);  // a rank's thread, while the first one waits
  try {
    const int status = run({argv + 1, argv + argc});
    MPI_Finalize();
    return status;
  } catch (const InputError& e) {
    std::fprintf(stderr, "error: %s: %s\n", e.where().c_str(), e.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
  }
  MPI_Abort(MPI_COMM_WORLD, 2);  // the others may wait for this one
  return 2;
}
