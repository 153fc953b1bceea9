#include "layouts/ranks.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace shardplan {

namespace {

/// Mixed-radix numbering of ranks, innermost axis first.
struct Mesh {
  std::array<int, 4> size{}, stride{};  // by Axis
  std::array<Axis, 4> order{};

  explicit Mesh(const Layout& l) {
    size = {l.tp, l.cp, l.dp, l.pp};
    order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
    if (l.order.size() == 4) std::copy(l.order.begin(), l.order.end(), order.begin());
    int step = 1;
    for (const Axis a : order) {
      stride[index(a)] = step;
      step *= size[index(a)];
    }
  }
  static std::size_t index(Axis a) { return static_cast<std::size_t>(a); }
  int at(int rank, Axis a) const { return rank / stride[index(a)] % size[index(a)]; }
  int base(int rank, Axis a) const { return rank - at(rank, a) * stride[index(a)]; }

  /// Ranks that differ from `rank` only in the named axes, in the mesh's order.
  std::vector<int> span(int rank, std::initializer_list<Axis> axes) const {
    std::vector<int> out = {rank};
    for (const Axis a : axes) out.front() = base(out.front(), a);
    for (const Axis a : order) {
      if (std::find(axes.begin(), axes.end(), a) == axes.end()) continue;
      const std::size_t inner = out.size();
      out.reserve(inner * size[index(a)]);
      for (int i = 1; i < size[index(a)]; ++i)
        for (std::size_t k = 0; k < inner; ++k) out.push_back(out[k] + i * stride[index(a)]);
    }
    return out;
  }
};

/// Every `step`-th member from `first`, `count` of them.
std::vector<int> every(const std::vector<int>& all, std::size_t first, std::size_t step, std::size_t count) {
  std::vector<int> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) out.push_back(all[first + i * step]);
  return out;
}

std::size_t place_in(const std::vector<int>& all, int rank) {
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), rank) - all.begin());
}

/// `part` neighbours of `all` around the rank, or the ranks that hold the same place in every such part.
std::vector<int> part_of(const std::vector<int>& all, int rank, std::size_t part, bool replicas) {
  const std::size_t i = place_in(all, rank);
  return replicas ? every(all, i % part, part, all.size() / part) : every(all, i - i % part, 1, part);
}

/// etp innermost, then ep, then edp over the ranks of a pipeline stage; `i` = place of the rank in it.
std::vector<int> expert_group(const Layout& l, RankGroup kind, const std::vector<int>& stage, std::size_t i) {
  const std::size_t etp = l.etp, ep = l.ep, inner = etp * ep;
  if (kind == RankGroup::etp) return every(stage, i - i % etp, 1, etp);
  if (kind == RankGroup::ep) return every(stage, i - i % inner + i % etp, etp, ep);
  std::vector<int> edp = every(stage, i % inner, inner, stage.size() / inner);
  if (kind == RankGroup::edp) return edp;
  const auto part = static_cast<std::size_t>(l.expert_shard_ranks());
  return part_of(edp, stage[i], part, kind == RankGroup::expert_replicas);
}

GroupShape shape_of(const std::vector<int>& members, int domain, double nics_per_gpu) {
  std::vector<int> domains;
  domains.reserve(members.size());
  for (const int r : members) domains.push_back(r / domain);
  std::sort(domains.begin(), domains.end());
  int most = 0, run = 0;
  for (std::size_t i = 0; i < domains.size(); ++i) {
    run = i > 0 && domains[i] == domains[i - 1] ? run + 1 : 1;
    most = std::max(most, run);
  }
  GroupShape out;
  out.ranks = static_cast<int>(members.size());
  out.ranks_per_domain = most;
  out.nics_per_domain = most * nics_per_gpu;
  return out;
}

}  // namespace

std::vector<int> group_members(const Layout& l, RankGroup kind, int rank) {
  const Mesh mesh(l);
  switch (kind) {
    case RankGroup::tp:
      return mesh.span(rank, {Axis::tp});
    case RankGroup::cp:
      return mesh.span(rank, {Axis::cp});
    case RankGroup::dp:
      return mesh.span(rank, {Axis::dp});
    case RankGroup::pp:
      return mesh.span(rank, {Axis::pp});
    case RankGroup::tp_cp:
      return mesh.span(rank, {Axis::tp, Axis::cp});
    case RankGroup::dense:
    case RankGroup::dense_replicas:
      return part_of(mesh.span(rank, {Axis::dp, Axis::cp}), rank, static_cast<std::size_t>(l.dense_shard_ranks()),
                     kind == RankGroup::dense_replicas);
    case RankGroup::pp_neighbours: {
      if (mesh.at(rank, Axis::pp) + 1 == l.pp) return {rank};
      return {rank, rank + mesh.stride[Mesh::index(Axis::pp)]};
    }
    default: {
      const std::vector<int> stage = mesh.span(rank, {Axis::tp, Axis::cp, Axis::dp});
      return expert_group(l, kind, stage, place_in(stage, rank));
    }
  }
}

RankPlace place_of(const Layout& l, int rank) {
  const Mesh mesh(l);
  return {mesh.at(rank, Axis::tp), mesh.at(rank, Axis::cp), mesh.at(rank, Axis::dp), mesh.at(rank, Axis::pp)};
}

int rank_at(const Layout& l, const RankPlace& p) {
  const Mesh mesh(l);
  const auto part = [&](Axis a, int at) { return at * mesh.stride[Mesh::index(a)]; };
  return part(Axis::tp, p.tp) + part(Axis::cp, p.cp) + part(Axis::dp, p.dp) + part(Axis::pp, p.pp);
}

int domain_gpus(const Cluster& c, std::int64_t gpus) {
  const int domain = std::max(1, c.node.nvlink_domain);
  if (gpus <= domain || gpus % domain == 0) return domain;
  const int board = std::clamp(c.node.gpus, 1, domain);
  for (int used = domain / board * board; used > board; used -= board)
    if (gpus % used == 0) return used;
  return domain > board ? board * (domain / board) : domain;
}

namespace {

/// Axes that the groups of a kind lie in; every other axis moves them as a whole.
std::vector<Axis> axes_of(RankGroup kind) {
  switch (kind) {
    case RankGroup::tp:
      return {Axis::tp};
    case RankGroup::cp:
      return {Axis::cp};
    case RankGroup::dp:
      return {Axis::dp};
    case RankGroup::pp:
    case RankGroup::pp_neighbours:
      return {Axis::pp};
    case RankGroup::tp_cp:
      return {Axis::tp, Axis::cp};
    case RankGroup::dense:
    case RankGroup::dense_replicas:
      return {Axis::dp, Axis::cp};
    default:
      return {Axis::tp, Axis::cp, Axis::dp};
  }
}

/// Where a block of the kind's axes can start inside a domain: sums of the other axes' steps.
std::vector<int> starts_of(const Layout& l, const std::vector<Axis>& axes, int domain) {
  const Mesh mesh(l);
  std::vector<bool> reached(static_cast<std::size_t>(domain), false);
  reached[0] = true;
  for (const Axis a : mesh.order) {
    if (std::find(axes.begin(), axes.end(), a) != axes.end()) continue;
    const std::vector<bool> before = reached;
    const int step = mesh.stride[Mesh::index(a)] % domain, count = std::min(mesh.size[Mesh::index(a)], domain);
    for (int from = 0; from < domain; ++from)
      for (int i = 1; before[static_cast<std::size_t>(from)] && i < count; ++i)
        reached[static_cast<std::size_t>((from + i * step) % domain)] = true;
  }
  std::vector<int> out;
  for (int at = 0; at < domain; ++at)
    if (reached[static_cast<std::size_t>(at)]) out.push_back(at);
  return out;
}

/// All groups of the kind inside the block of its axes that starts at rank 0.
std::vector<std::vector<int>> groups_in_block(const Layout& l, RankGroup kind) {
  const Mesh mesh(l);
  std::vector<std::vector<int>> out;
  if (kind == RankGroup::pp_neighbours) {
    const int step = mesh.stride[Mesh::index(Axis::pp)];
    for (int i = 0; i + 1 < l.pp; ++i) out.push_back({i * step, (i + 1) * step});
    if (out.empty()) out.push_back({0});
    return out;
  }
  const bool expert = axes_of(kind).size() == 3, dense = axes_of(kind).front() == Axis::dp && axes_of(kind).size() == 2;
  if (!expert && !dense) return {group_members(l, kind, 0)};
  const std::vector<int> block =
      expert ? mesh.span(0, {Axis::tp, Axis::cp, Axis::dp}) : mesh.span(0, {Axis::dp, Axis::cp});
  std::vector<bool> seen(static_cast<std::size_t>(l.gpus()), false);
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (seen[static_cast<std::size_t>(block[i])]) continue;
    out.push_back(expert ? expert_group(l, kind, block, i)
                         : part_of(block, block[i], static_cast<std::size_t>(l.dense_shard_ranks()),
                                   kind == RankGroup::dense_replicas));
    for (const int member : out.back()) seen[static_cast<std::size_t>(member)] = true;
  }
  return out;
}

GroupShape shape_by_members(const Layout& l, RankGroup kind, int domain, double nics_per_gpu) {
  const int gpus = l.gpus();
  GroupShape worst = shape_of(group_members(l, kind, 0), domain, nics_per_gpu);
  if (gpus <= domain) return worst;
  const auto power_of_two = [](int n) { return (n & (n - 1)) == 0; };
  if (power_of_two(domain) && power_of_two(gpus)) {
    // Every degree divides a domain or is a multiple of it: only the edge of a domain can differ.
    const GroupShape other = shape_of(group_members(l, kind, domain - 1), domain, nics_per_gpu);
    return other.ranks == worst.ranks && other.ranks_per_domain < worst.ranks_per_domain ? other : worst;
  }
  const std::vector<int> starts = starts_of(l, axes_of(kind), domain);
  for (std::vector<int> group : groups_in_block(l, kind)) {
    int moved = 0;
    for (const int start : starts) {
      for (int& member : group) member += start - moved;
      moved = start;
      const GroupShape one = shape_of(group, domain, nics_per_gpu);
      if (one.ranks_per_domain < worst.ranks_per_domain || one.ranks > worst.ranks) worst = one;
    }
  }
  return worst;
}

}  // namespace

GroupShape group_shape(const Layout& l, const Cluster& c, RankGroup kind) {
  const int domain = domain_gpus(c, l.gpus());
  const double nics_per_gpu = c.node.gpus > 0 ? c.node.nics.value / c.node.gpus : 0;
  // Listing the members of a large group costs more than everything else about it, and a search asks again and again.
  using Key = std::tuple<int, int, int, int, int, int, int, std::vector<Axis>, int, double, RankGroup>;
  constexpr std::size_t kMost = 1u << 16;
  thread_local std::map<Key, GroupShape> known;
  const Key key{l.tp, l.cp, l.dp, l.pp, l.ep, l.etp, l.shard, l.order, domain, nics_per_gpu, kind};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMost) known.clear();
  return known[key] = shape_by_members(l, kind, domain, nics_per_gpu);
}

std::vector<bool> crossing_hops(const Layout& l, const Cluster& c) {
  const int domain = domain_gpus(c, l.gpus());
  std::vector<bool> out(static_cast<std::size_t>(l.pp), false);
  if (l.pp == 1 || l.gpus() <= domain) return out;
  const int step = Mesh(l).stride[Mesh::index(Axis::pp)];
  const std::vector<int> starts = starts_of(l, {Axis::pp}, domain);
  for (int rank = 0; rank < l.pp; ++rank) {
    const int next = (rank + 1) % l.pp;
    out[static_cast<std::size_t>(rank)] = std::any_of(starts.begin(), starts.end(), [&](int start) {
      return (start + rank * step) / domain != (start + next * step) / domain;
    });
  }
  return out;
}

}  // namespace shardplan
