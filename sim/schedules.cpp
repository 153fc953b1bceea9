#include "sim/schedules.hpp"

#include <array>
#include <vector>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "sim/schedule_rows.hpp"

namespace shardplan {
namespace {

constexpr std::int64_t kMostPasses = 20'000'000;  // about 2 GB of order, index and nodes

constexpr std::array kRows = {
    ScheduleRow{"gpipe", "Huang et al. 2019, arXiv 1811.06965", Placement::loop, 1, true, false, refuse_one_chunk,
                gpipe_order},
    ScheduleRow{"1f1b", "PipeDream-Flush: Narayanan et al. 2021, arXiv 2006.09503; DAPPLE, arXiv 2007.01045",
                Placement::loop, 1, true, false, refuse_one_chunk, one_f_one_b_order},
    ScheduleRow{"interleaved-1f1b", "Narayanan et al. 2021, arXiv 2104.04473, section 2.2; order as Megatron-LM",
                Placement::loop, 2, false, false, refuse_interleaved, interleaved_order},
    ScheduleRow{"interleaved-free",
                "Llama 3, arXiv 2407.21783, section 3.3.2: free number of consecutive micro-batches", Placement::loop,
                2, false, false, refuse_interleaved, interleaved_free_order},
    ScheduleRow{"looped-bfs", "Lamy-Poirier 2022, arXiv 2211.05953; PyTorch ScheduleLoopedBFS", Placement::loop, 2,
                false, false, refuse_looped_bfs, looped_bfs_order},
    ScheduleRow{"zb-h1", "Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1",
                Placement::loop, 1, true, true, refuse_one_chunk, zb_h1_order},
    ScheduleRow{"zb-h2", "Qi et al. 2023, arXiv 2401.10241, section 2.2", Placement::loop, 1, true, true,
                refuse_one_chunk, zb_h2_order},
    ScheduleRow{"interleaved-zb", "PyTorch ScheduleInterleavedZeroBubble (ZB1P with chunks)", Placement::loop, 2, false,
                true, refuse_interleaved_zb, interleaved_zb_order},
    ScheduleRow{"zb-v", "Qi et al. 2023, arXiv 2401.10241, section 6", Placement::v_shape, 2, true, true,
                refuse_two_chunks, zb_v_order},
    ScheduleRow{"v-half", "Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
                Placement::v_shape, 2, true, true, refuse_two_chunks, v_half_order},
    ScheduleRow{"v-min", "Qi et al. 2024, arXiv 2405.15362", Placement::v_shape, 2, true, true, refuse_two_chunks,
                v_min_order},
    ScheduleRow{"1f1b-v", "Qi et al. 2024, arXiv 2405.15362, appendix: V-shaped with a whole backward",
                Placement::v_shape, 2, true, false, refuse_two_chunks, one_f_one_b_v_order},
    ScheduleRow{"zb-auto", "heuristic of Qi et al. 2023, arXiv 2401.10241, section 3, then a search of ours",
                Placement::loop, 1, true, true, refuse_zb_auto, zb_auto_order},
    ScheduleRow{"dualpipe", "DeepSeek-V3, arXiv 2412.19437; deepseek-ai/DualPipe dualpipe.py", Placement::bidirectional,
                2, true, true, refuse_dualpipe, dualpipe_order},
    ScheduleRow{"dualpipe-v", "Sea AI Lab, DualPipe cut in half; deepseek-ai/DualPipe dualpipev.py", Placement::v_shape,
                2, true, true, refuse_dualpipe_v, dualpipe_v_order},
    ScheduleRow{"chimera", "Li and Hoefler 2021, arXiv 2107.06925", Placement::bidirectional, 2, true, false,
                refuse_chimera, chimera_order},
};

}  // namespace

std::span<const ScheduleRow> schedules() { return kRows; }

const ScheduleRow* schedule_named(std::string_view name) {
  for (const ScheduleRow& row : kRows)
    if (row.name == name) return &row;
  return nullptr;
}

const ScheduleRow& find_schedule(std::string_view name) {
  if (const ScheduleRow* row = schedule_named(name)) return *row;
  std::vector<std::string> names;
  for (const ScheduleRow& row : kRows) names.emplace_back(row.name);
  throw InputError("--schedule", "unknown schedule \"" + std::string(name) + "\"" + did_you_mean_or_list(name, names));
}

Refusal refuse_size(const ScheduleQuestion& q, int chunks) {
  if (q.ranks < 1) return "needs at least one stage";
  if (q.microbatches < 1) return "needs at least one micro-batch";
  if (q.chunks < 1) return "needs at least one chunk a rank";
  if (chunks > 0 && q.chunks != chunks) {
    return "always has " + std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks") + " a rank, not " +
           std::to_string(q.chunks);
  }
  const std::int64_t each = std::int64_t{q.chunks} * q.microbatches;
  if (each > kMostPasses || each * q.ranks > kMostPasses / 3) {
    return "more than " + std::to_string(kMostPasses) + " passes are not replayed";
  }
  return std::nullopt;
}

Refusal refuse_one_chunk(const ScheduleQuestion& q) { return refuse_size(q, 1); }
Refusal refuse_two_chunks(const ScheduleQuestion& q) { return refuse_size(q, 2); }

}  // namespace shardplan
