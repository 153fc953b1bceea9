#pragma once
// Experts to GPUs: contiguous, or with redundant copies of the popular ones so that the busiest GPU has least to do
// (what DeepSeek calls EPLB, github.com/deepseek-ai/EPLB). Copies of one expert share its load evenly.
#include <cstdint>
#include <span>
#include <vector>

namespace shardplan {

struct ExpertPlacement {
  std::vector<std::vector<std::int32_t>> on_gpu;  // experts of each GPU, ascending; a copy is listed where it sits
  std::vector<std::int32_t> copies;               // by expert, at least 1

  int gpus() const { return static_cast<int>(on_gpu.size()); }
  std::int64_t physical() const;
};

/// Expert i on GPU i G / N: floor or ceil of N / G on each.
ExpertPlacement place_contiguous(std::int64_t experts, int gpus);

/// `redundant` more copies, then packing so that the busiest GPU is least loaded. GPUs hold floor or ceil of
/// (experts + redundant) / gpus. Copies go one by one to the expert with the largest load per copy, which minimises the
/// largest load per copy; packing is largest first onto the least loaded GPU with room, then moves and swaps that lower
/// the busiest GPU until none does. An expert has at most one copy on a GPU while it has no more copies than there are
/// GPUs.
ExpertPlacement place_balanced(std::span<const double> loads, int gpus, std::int64_t redundant);

/// The hierarchical policy for group-limited routing: groups of experts are packed onto nodes first (each node the same
/// number), copies are made and packed within each node, so that a group's tokens stay on one node. InputError where
/// groups or copies do not divide by nodes.
ExpertPlacement place_hierarchical(std::span<const double> loads, int gpus, std::int64_t redundant, int groups,
                                   int nodes);

/// Load of each GPU, in the unit of `loads`.
std::vector<double> gpu_loads(const ExpertPlacement&, std::span<const double> loads);

/// No packing of these copies has a less loaded busiest GPU (unit of `loads`): the largest of
/// - the mean over GPUs;
/// - for the m largest copies: either two of them share a GPU, or m GPUs hold them with the m (s - 1) smallest copies
/// at best
///   (s = slots of a GPU), and the busiest of those is at least their mean;
/// - of the c G + 1 largest copies, c + 1 share a GPU.
/// Leaves out other choices of copies: a bound on the packing, not on the replication.
double busiest_gpu_bound(const ExpertPlacement&, std::span<const double> loads);

}  // namespace shardplan
