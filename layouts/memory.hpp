#pragma once
// Memory per pipeline rank from tensors and their lifetimes.
//
// The simple story: states (weights, gradients, optimizer) + activations of the micro-batches in flight. What it omits,
// and this file keeps as named terms: logits and loss where the head is, gathered units of zero3, the gradients alive
// for a moment of the backward pass, buffers of the stack, what the allocator holds beyond live tensors, and the
// context of driver and NCCL. The report shows the moment at which the sum is largest.
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/kernels.hpp"
#include "layouts/activations.hpp"
#include "layouts/in_flight.hpp"
#include "layouts/layout.hpp"
#include "layouts/recipes.hpp"
#include "models/model.hpp"

namespace shardplan {

/// embedding: token ids, dropout mask and the matrix-sized gradient of the input embedding (its states are in weights,
/// gradients and optimizer). workspace: gradients and gathered tensors alive for a moment. buffers: kept for the whole
/// step. slack: held by the allocator but not live. context: outside the allocator.
enum class MemoryTerm {
  weights,
  gradients,
  optimizer,
  activations,
  logits,
  embedding,
  gathered,
  workspace,
  buffers,
  slack,
  context
};
inline constexpr std::size_t kMemoryTerms = 11;
inline constexpr std::array<std::string_view, kMemoryTerms> kMemoryTermNames = {
    "weights",  "gradients", "optimizer", "activations", "logits", "embedding",
    "gathered", "workspace", "buffers",   "slack",       "context"};
constexpr std::string_view term_name(MemoryTerm t) { return kMemoryTermNames[static_cast<std::size_t>(t)]; }

/// What a software stack adds to the tensors that the arithmetic needs. Data with sources:
/// layouts/data/memory_stacks.json.
struct MemoryTraits {
  std::string name;
  std::string source;
  std::string recipe = "megatron";
  std::string recipe_fp16;  // in FP16 runs, where it differs
  ActivationTraits activation;
  std::int64_t vocab_multiple = 128;        // vocabulary padded to this x tp; 0 = not padded
  double loss_kept = 2;                     // bytes a logit from the loss's forward to its backward pass
  double loss_peak = 2;                     // bytes a logit alive at the loss's worst moment (kept included)
  double head_gradient = 2;                 // bytes a logit alive while the head's weight gradient is made
  bool weight_gradient_copies = true;       // one 16-bit gradient-shaped dummy of each distinct matrix stays allocated
  double fixed_buffers = 32 * 1048576.0;    // bytes: workspaces of libraries and the like
  bool gradients_follow_reduction = false;  // the gradient buffer has the type of the reduction (grad-reduce=)
  bool cp_ulysses = false;                  // context parallelism by all-to-all where the layout does not say
  bool reports_first_rank = false;          // its logs print the memory of the first pipeline rank
  double slack_bytes = 0;                   // allocator: constant part
  double slack_fraction = 0;                // and a share of what comes and goes (activations, logits, workspace)
  double context_bytes = 0;                 // driver, kernels and NCCL
};
/// InputError(where) with "did you mean". `month` (202412; 0 = the newest) picks what an older release did.
MemoryTraits memory_traits(const std::string& stack, const std::string& where = "--stack", int month = 0);

struct MemoryOptions {
  std::string recipe;               // "" = the stack's
  Rates rates = Rates::calibrated;  // datasheet: the label's capacity, no slack, workspace of libraries or context
  MemoryTraits traits;
  double load = 1;    // routed tokens of the busiest rank over the mean
  int redundant = 0;  // further copies of experts, spread over the expert-parallel ranks: weights and their states
};

/// The recipe asked for, or the stack's own.
const Recipe& recipe_of(const MemoryOptions&, const Workload&);

struct RankMemory {
  int stage = 0;
  std::array<double, kMemoryTerms> terms{};  // bytes at the moment of the peak
  std::string_view moment;                   // what runs at the peak: layer backward | loss | head gradient | ...
  double peak_microbatches = 0;              // whole-rank micro-batches in flight: chunks / chunks of the rank
  int peak_chunks = 0;

  double of(MemoryTerm t) const { return terms[static_cast<std::size_t>(t)]; }
  double allocated() const;  // all but slack and context
  double reserved() const;   // all but context
  double device() const;     // all
  double states() const { return of(MemoryTerm::weights) + of(MemoryTerm::gradients) + of(MemoryTerm::optimizer); }
};

struct MemoryShortfall {
  int rank = 0;
  MemoryTerm term = MemoryTerm::activations;  // the largest term of that rank
  double bytes = 0;                           // over the capacity
};

struct MemoryReport {
  std::string recipe;
  std::vector<RankMemory> ranks;
  double capacity_bytes = 0;
  int peak_rank = 0;  // largest device()
  bool fits = false;
  std::optional<MemoryShortfall> shortfall;  // where it does not fit

  double peak_bytes() const { return ranks[static_cast<std::size_t>(peak_rank)].device(); }
  double peak_allocated() const;
  double peak_reserved() const;
};

/// Memory of a legal layout (refuse_layout said nothing). `slices` and `flight` are split_stages and in_flight of the
/// same layout: callers that ask often keep them. Ranks after the first that holds more than `enough` bytes are not
/// looked at: a search need not know by how much they are over.
MemoryReport memory_of(const Model&, const Cluster&, const Layout&, const Workload&, const MemoryOptions&,
                       const std::vector<StageSlice>& slices, const InFlight& flight,
                       double enough = std::numeric_limits<double>::infinity());
MemoryReport memory_of(const Model&, const Cluster&, const Layout&, const Workload&, const MemoryOptions&);

/// One line of an explanation: a class of tensors on one rank at its peak.
struct MemoryLine {
  MemoryTerm term = MemoryTerm::weights;
  std::string what;
  double bytes = 0;
};
/// The lines of one rank; by term they add up to its terms.
std::vector<MemoryLine> explain_memory(const Model&, const Cluster&, const Layout&, const Workload&,
                                       const MemoryOptions&, int rank);

}  // namespace shardplan
