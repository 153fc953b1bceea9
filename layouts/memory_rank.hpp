#pragma once
// What one pipeline rank holds, moment by moment of its step, and the moment at which it holds most.
#include <vector>

#include "layouts/in_flight.hpp"
#include "layouts/memory_question.hpp"

namespace shardplan {

struct MemoryLedger;

/// A layer as one rank holds it.
struct HeldLayer {
  int kind = 0;
  bool full = false;       // recomputed whole
  bool offloaded = false;  // its activations are on the host
};

/// One pipeline rank of a question, which it refers to.
class RankHoldings {
 public:
  RankHoldings(const MemoryQuestion& q, int stage, const std::vector<StageSlice>& slices);

  RankMemory peak(const std::vector<Moment>& moments) const;
  void explain(const std::vector<Moment>& moments, std::vector<MemoryLine>& lines) const;

 private:
  /// What runs while the micro-batches of a moment are in flight.
  enum class Instant { layer, loss, head_gradient, embedding_gradient };
  struct Best {
    Moment moment;
    Instant instant = Instant::layer;
    double total = -1;
  };
  Best best(const std::vector<Moment>& moments) const;
  void states(MemoryLedger&) const;
  void gradient_buffers(MemoryLedger&, double bytes) const;
  void steady(MemoryLedger&) const;
  void moment(MemoryLedger&, const Moment&, Instant) const;
  void chunk_activations(MemoryLedger&, int chunk, double alive, double waiting) const;
  void layer_moment(MemoryLedger&) const;
  void head_moment(MemoryLedger&, Instant) const;
  void gathered(MemoryLedger&, Instant) const;
  void slack(MemoryLedger&, Instant) const;
  bool possible(const Moment&, Instant) const;
  double layer_bytes(const HeldLayer& h) const;
  double embedding_temporary() const;

  const MemoryQuestion& q_;
  int stage_;
  std::vector<std::vector<HeldLayer>> chunks_;
  std::vector<double> kept_, waiting_, elements_;  // by chunk: bytes of one micro-batch; dense elements
  int embedding_chunk_ = -1, head_chunk_ = -1, losses_ = 1;
  bool has_embedding_ = false, has_head_ = false, has_mtp_ = false;
  RankWeights layers_;       // of all chunks
  double end_elements_ = 0;  // embedding, head and final norm
  double unit_ = 0;          // dense and expert elements of the largest layer
  double workspace_ = 0, recomputed_ = 0;
};

}  // namespace shardplan
