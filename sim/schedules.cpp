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
    ScheduleRow{"gpipe", "Huang et al. 2019, arXiv 1811.06965", 1, true, false, refuse_one_chunk, gpipe_order},
    ScheduleRow{"1f1b", "PipeDream-Flush: Narayanan et al. 2021, arXiv 2006.09503; DAPPLE, arXiv 2007.01045", 1, true,
                false, refuse_one_chunk, one_f_one_b_order},
    ScheduleRow{"interleaved-1f1b", "Narayanan et al. 2021, arXiv 2104.04473, section 2.2; order as Megatron-LM", 2,
                false, false, refuse_interleaved, interleaved_order},
};

}  // namespace

std::span<const ScheduleRow> schedules() { return kRows; }

const ScheduleRow& find_schedule(std::string_view name) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : kRows) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
  }
  throw InputError("--schedule", "unknown schedule \"" + std::string(name) + "\"" + did_you_mean(name, names));
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
