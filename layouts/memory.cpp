#include "layouts/memory.hpp"

#include <algorithm>
#include <numeric>

#include "layouts/memory_question.hpp"
#include "layouts/memory_rank.hpp"

namespace shardplan {

namespace {

MemoryShortfall shortfall_of(const RankMemory& r, double capacity) {
  const auto largest = std::max_element(r.terms.begin(), r.terms.end());
  return {r.stage, static_cast<MemoryTerm>(largest - r.terms.begin()), r.device() - capacity};
}

template <class Figure>
double largest_of(const std::vector<RankMemory>& ranks, Figure figure) {
  double out = 0;
  for (const RankMemory& r : ranks) out = std::max(out, figure(r));
  return out;
}

}  // namespace

double RankMemory::device() const { return std::accumulate(terms.begin(), terms.end(), 0.0); }
double RankMemory::reserved() const { return device() - of(MemoryTerm::context); }
double RankMemory::allocated() const { return reserved() - of(MemoryTerm::slack); }

double MemoryReport::peak_allocated() const {
  return largest_of(ranks, [](const RankMemory& r) { return r.allocated(); });
}
double MemoryReport::peak_reserved() const {
  return largest_of(ranks, [](const RankMemory& r) { return r.reserved(); });
}

MemoryReport memory_of(const Model& m, const Cluster& c, const Layout& l, const Workload& w, const MemoryOptions& o,
                       const std::vector<StageSlice>& slices, const InFlight& flight, double enough) {
  const MemoryQuestion q(m, l, w, o);
  MemoryReport out;
  out.recipe = q.recipe.name;
  out.capacity_bytes = c.gpu.capacity_bytes(o.rates == Rates::datasheet);
  out.ranks.reserve(static_cast<std::size_t>(l.pp));
  for (int r = 0; r < l.pp; ++r) {
    out.ranks.push_back(RankHoldings(q, r, slices).peak(flight.ranks[static_cast<std::size_t>(r)]));
    if (out.ranks.back().device() > out.ranks[static_cast<std::size_t>(out.peak_rank)].device()) out.peak_rank = r;
    if (out.peak_bytes() > enough) break;
  }
  out.fits = out.peak_bytes() <= out.capacity_bytes;
  if (!out.fits) out.shortfall = shortfall_of(out.ranks[static_cast<std::size_t>(out.peak_rank)], out.capacity_bytes);
  return out;
}

MemoryReport memory_of(const Model& m, const Cluster& c, const Layout& l, const Workload& w, const MemoryOptions& o) {
  return memory_of(m, c, l, w, o, split_stages(l, m), in_flight(l, microbatches(l, w)));
}

std::vector<MemoryLine> explain_memory(const Model& m, const Cluster&, const Layout& l, const Workload& w,
                                       const MemoryOptions& o, int rank) {
  const MemoryQuestion q(m, l, w, o);
  std::vector<MemoryLine> lines;
  const InFlight flight = in_flight(l, microbatches(l, w));
  RankHoldings(q, rank, split_stages(l, m)).explain(flight.ranks[static_cast<std::size_t>(rank)], lines);
  return lines;
}

}  // namespace shardplan
