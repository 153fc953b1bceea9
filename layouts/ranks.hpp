#pragma once
// Where the ranks of a layout sit: the members of every process group, and which part of it shares an NVLink domain.
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/collectives.hpp"
#include "layouts/layout.hpp"

namespace shardplan {

/// Groups of one rank. `dense` shards dense states (dp x cp ranks, or `shard` neighbours of them), `dense_replicas`
/// joins the equal shards of different groups (1 rank without `shard`); `expert` and `expert_replicas` are the same for
/// expert states.
enum class RankGroup {
  tp,
  cp,
  dp,
  pp,
  ep,
  etp,
  edp,
  dense,
  dense_replicas,
  expert,
  expert_replicas,
  tp_cp,
  pp_neighbours
};

/// Global ranks of the group of that kind that contains `rank`, in the group's own order. The layout must be legal.
/// Ranks are numbered by `order` (innermost first; tp-cp-dp-pp by default); ep runs innermost over the ranks of a
/// pipeline stage (tp, cp, dp in that order), after etp. pp_neighbours: `rank` and the rank of the next stage (itself
/// on the last).
std::vector<int> group_members(const Layout&, RankGroup, int rank);

/// Place of a rank in the mesh, and back.
struct RankPlace {
  int tp = 0, cp = 0, dp = 0, pp = 0;
};
RankPlace place_of(const Layout&, int rank);
int rank_at(const Layout&, const RankPlace&);

/// GPUs of one NVLink domain that a job of `gpus` GPUs uses: all, or where the job is larger than a domain and the
/// domain does not divide it, the largest number of whole boards that does (64 of the 72 of an NVL72).
int domain_gpus(const Cluster&, std::int64_t gpus);

/// The group's shape on this cluster: of all groups of the kind the one with the fewest members a domain (degrees that
/// do not divide a domain spread some groups over more domains than others, and the slowest holds all). NICs: those of
/// the GPUs that are members (one NIC a GPU: a group with 1 member a node has 1 NIC).
GroupShape group_shape(const Layout&, const Cluster&, RankGroup);

/// Whether the message from pipeline rank i to rank i + 1 (the last: to rank 0, where chunks go round) leaves the
/// NVLink domain, by i. Where replicas differ, whether any does: the slowest holds all at the gradient reduction.
std::vector<bool> crossing_hops(const Layout&, const Cluster&);

}  // namespace shardplan
