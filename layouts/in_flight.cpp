#include "layouts/in_flight.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "sim/schedules.hpp"
#include "sim/steady.hpp"

namespace shardplan {

namespace {

bool covers(const std::vector<int>& a, const std::vector<int>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] < b[i]) return false;
  return true;
}
bool covers(const Moment& a, const Moment& b) { return covers(a.alive, b.alive) && covers(a.waiting, b.waiting); }

/// Keeps `now` unless another moment covers it, and drops those that it covers.
void note(std::vector<Moment>& kept, const Moment& now) {
  for (const Moment& k : kept)
    if (covers(k, now)) return;
  std::erase_if(kept, [&](const Moment& k) { return covers(now, k); });
  kept.push_back(now);
}

Moment empty_moment(int chunks) {
  return Moment{std::vector<int>(static_cast<std::size_t>(chunks), 0),
                std::vector<int>(static_cast<std::size_t>(chunks), 0)};
}

/// min(m, p - r + more) of the only chunk on every rank r (1F1B), or m (GPipe): facts of both schedules for any m and
/// p.
InFlight counted(const Layout& l, std::int64_t microbatches, bool all, int more = 0) {
  InFlight out;
  for (int r = 0; r < l.pp; ++r) {
    Moment moment = empty_moment(1);
    moment.alive[0] = static_cast<int>(all ? microbatches : std::min<std::int64_t>(microbatches, l.pp - r + more));
    out.ranks.push_back({moment});
  }
  return out;
}

std::vector<Moment> walk(const std::vector<Pass>& passes, const std::vector<int>& chunk_of, int chunks) {
  std::vector<Moment> kept;
  Moment now = empty_moment(chunks);
  const auto begin_forward = [&](int stage) {
    ++now.alive[chunk_of[stage]];
    note(kept, now);
  };
  for (const Pass& p : passes) {
    switch (p.kind) {
      case PassKind::forward:
        begin_forward(p.stage);
        break;
      case PassKind::backward:
        --now.alive[chunk_of[p.stage]];
        break;
      case PassKind::input_grad:
        --now.alive[chunk_of[p.stage]];
        ++now.waiting[chunk_of[p.stage]];
        note(kept, now);
        break;
      case PassKind::weight_grad:
        --now.waiting[chunk_of[p.stage]];
        break;
      case PassKind::overlapped:
        begin_forward(p.stage);
        --now.alive[chunk_of[p.stage2]];
        break;
    }
  }
  return kept;
}

}  // namespace

int Moment::total() const { return std::accumulate(alive.begin(), alive.end(), 0); }

int InFlight::peak_alive(int rank) const {
  int most = 0;
  for (const Moment& m : ranks[rank]) most = std::max(most, m.total());
  return most;
}

InFlight in_flight_of(const Order& order, const Layout& l) {
  const int chunks = l.slices_per_rank();
  InFlight out;
  for (int r = 0; r < order.ranks; ++r) {
    // A stage's chunk is the one of this rank that holds the same slice of the model.
    std::vector<int> chunk_of(static_cast<std::size_t>(order.stages()), 0);
    for (int s = 0; s < order.stages(); ++s) {
      for (int c = 0; c < chunks; ++c)
        if (order.rank_of_stage[s] == r && order.layer_slot[s] == l.slice_of(r, c)) chunk_of[s] = c;
    }
    out.ranks.push_back(walk(order.passes[r], chunk_of, chunks));
  }
  return out;
}

InFlight in_flight(const Layout& l, std::int64_t microbatches) {
  const std::string name = l.schedule_name();
  // A pair of passes holds both micro-batches while it runs.
  const bool paired = l.ep_overlap == EpOverlap::batch_1f1b;
  if (name == "1f1b") return counted(l, microbatches, false, paired ? 1 : 0);
  if (name == "gpipe") return counted(l, microbatches, true);
  const ScheduleRow& row = find_schedule(name);
  ScheduleQuestion q;
  q.ranks = l.pp;
  q.microbatches = static_cast<int>(microbatches);
  q.chunks = l.slices_per_rank();
  q.group = l.group;
  q.overlap_pairs = paired;
  if (const auto reason = row.refuse(q)) throw InputError("schedule", *reason);
  // A steady state repeats its moments: one period of it shows them all.
  const ShortStep step = short_step(q);
  const Order order = row.order(step.question);
  return in_flight_of(step.periods == 0 || steady_order(order, step.period) ? order : row.order(q), l);
}

std::string in_flight_key(const Layout& l, std::int64_t microbatches) {
  return l.schedule_name() + "/" + std::to_string(l.pp) + "/" + std::to_string(l.slices_per_rank()) + "/" +
         std::to_string(l.group) + "/" + std::to_string(microbatches) +
         (l.ep_overlap == EpOverlap::batch_1f1b ? "/pairs" : "");
}

}  // namespace shardplan
