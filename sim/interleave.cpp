#include "sim/interleave.hpp"

#include <algorithm>

namespace shardplan {

std::vector<ChunkTurn> interleaved_turns(int microbatches, int chunks, int group) {
  std::vector<ChunkTurn> turns;
  turns.reserve(static_cast<std::size_t>(microbatches) * chunks);
  for (int first = 0; first < microbatches; first += group) {
    const int last = std::min(microbatches, first + group);
    for (int c = 0; c < chunks; ++c) {
      for (int k = first; k < last; ++k) turns.push_back({k, c});
    }
  }
  return turns;
}

}  // namespace shardplan
