#pragma once
// The sequence in which an interleaved rank takes its chunks: groups of g micro-batches, chunk by chunk.
#include <vector>

namespace shardplan {

struct ChunkTurn {
  int microbatch = 0;
  int chunk = 0;
};

/// Groups of `group` micro-batches (the last may be smaller): chunk 0 of all of the group, chunk 1, ... Forward order;
/// the k-th backward turn is that of the mirrored chunk, chunks - 1 - chunk.
std::vector<ChunkTurn> interleaved_turns(int microbatches, int chunks, int group);

}  // namespace shardplan
