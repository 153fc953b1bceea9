#pragma once
// Ring all-reduce over a transport: n - 1 steps of reduce-scatter, n - 1 of all-gather, each moving 1/n of the buffer.
#include <cstdint>
#include <span>
#include <vector>

#include "hardware/measure/rank_threads.hpp"
#include "hardware/measure/transport.hpp"

namespace shardplan {

/// Message lengths of one member's 2 (n - 1) sends, in floats; its channels must be consecutive in this order.
std::vector<std::int64_t> ring_channel_floats(int members, int member, std::int64_t floats);

/// Adds the channels of a ring of these ranks to `channels`; returns each member's first one.
std::vector<int> add_ring_channels(std::vector<ChannelEnds>& channels, std::span<const int> ranks, std::int64_t floats);

/// Sums `data` over the members, in place. rank: the thread's in the transport; first_channel[i]: member i's first
/// channel.
void ring_all_reduce(RankTransport&, int rank, int member, std::span<const int> first_channel, std::span<float> data,
                     RankClock&);

}  // namespace shardplan
