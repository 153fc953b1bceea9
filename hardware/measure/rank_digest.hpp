#pragma once
// Small steps of every kind over a transport, as numbers that must be the same over any other.
#include <cstdint>
#include <string>
#include <vector>

#include "hardware/measure/transport.hpp"

namespace shardplan {

/// Of the ranks of this process alone: the counts and the digests of all processes add up.
struct StepDigest {
  std::string step;  // "zb-h1, 2 ranks, 4 micro-batches, 2 replicas"
  std::uint64_t gradients = 0;
  std::int64_t messages = 0, bytes = 0;  // sent to other ranks, all-reduces included
};

/// GPipe, 1F1B, interleaved, ZB-H1, a data-parallel and an expert step on at most `ranks` ranks (at least 2).
std::vector<StepDigest> digest_steps(int ranks, const RankTransportMaker&);

/// One line a step.
std::string text_of(const std::vector<StepDigest>&);

}  // namespace shardplan
