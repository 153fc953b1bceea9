#include "layouts/memory_rank.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <string_view>

namespace shardplan {

using enum MemoryTerm;

/// Adds up terms; keeps the lines where someone asked for them.
struct MemoryLedger {
  std::array<double, kMemoryTerms> terms{};
  std::vector<MemoryLine>* lines = nullptr;

  void add(MemoryTerm term, std::string_view what, double bytes) {
    if (bytes <= 0) return;
    terms[static_cast<std::size_t>(term)] += bytes;
    if (lines != nullptr) lines->push_back({term, std::string(what), bytes});
  }
  double total() const { return std::accumulate(terms.begin(), terms.end(), 0.0); }
};

namespace {

constexpr double kIds = 8;  // bytes of a token id
constexpr std::array<std::string_view, 4> kInstantNames = {"layer backward", "loss", "head gradient",
                                                           "embedding gradient"};

}  // namespace

RankHoldings::RankHoldings(const MemoryQuestion& q, int stage, const std::vector<StageSlice>& slices)
    : q_(q), stage_(stage) {
  const Layout& l = q.layout;
  int seen = 0;  // layers of this rank so far, in chunk order
  for (int c = 0; c < l.slices_per_rank(); ++c) {
    const StageSlice& s = slices[static_cast<std::size_t>(l.slice_of(stage, c))];
    std::vector<HeldLayer> held;
    const auto hold = [&](int kind) {
      HeldLayer h{kind, l.recompute == Recompute::full && (l.recompute_layers == 0 || seen < l.recompute_layers),
                  l.offload_activation_layers < 0 || seen < l.offload_activation_layers};
      ++seen;
      held.push_back(h);
    };
    for (int i = 0; i < s.layers; ++i) hold(q.kind_of[static_cast<std::size_t>(s.first_layer + i)]);
    for (int i = 0; i < s.mtp_layers; ++i) hold(q.mtp_kind_of[static_cast<std::size_t>(i)]);
    has_mtp_ = has_mtp_ || s.mtp_layers > 0;
    if (s.embedding) embedding_chunk_ = c;
    if (s.head) head_chunk_ = c;
    if (s.head) losses_ = 1 + static_cast<int>(q.mtp_kind_of.size());
    double kept = 0, waiting = 0;
    RankWeights weights;
    for (const HeldLayer& h : held) {
      const LayerKind& k = q.kinds[static_cast<std::size_t>(h.kind)];
      kept += layer_bytes(h);
      waiting += k.activations.waiting;
      weights += k.weights;
      unit_ = std::max(unit_, k.weights.dense + k.weights.experts);
      workspace_ = std::max(workspace_, k.activations.workspace);
      recomputed_ = std::max(recomputed_, h.full ? k.activations.all - k.activations.input : k.activations.recomputed);
    }
    layers_ += weights;
    kept_.push_back(kept);
    waiting_.push_back(waiting);
    elements_.push_back(weights.dense + weights.experts);
    chunks_.push_back(std::move(held));
  }
  has_head_ = head_chunk_ >= 0;
  // An MTP layer reads the embedding again: its stage holds a copy where it has none.
  has_embedding_ = embedding_chunk_ >= 0;
  const bool reads_embedding = has_embedding_ || has_mtp_;
  const bool shared = q.model.tied_embeddings && reads_embedding && has_head_;
  end_elements_ =
      (reads_embedding ? q.ends.embedding : 0) + (has_head_ ? q.ends.final_norm + (shared ? 0 : q.ends.head) : 0);
}

double RankHoldings::layer_bytes(const HeldLayer& h) const {
  const LayerActivations& a = q_.kinds[static_cast<std::size_t>(h.kind)].activations;
  if (h.offloaded) return 0;
  return h.full ? a.input : a.kept;
}

double RankHoldings::embedding_temporary() const {
  return has_embedding_ && q_.makes_temporaries() ? kHalfBytes * q_.ends.embedding : 0;
}

void RankHoldings::states(MemoryLedger& out) const {
  const Layout& l = q_.layout;
  const Recipe& r = q_.recipe;
  const int zero = l.zero_stage(), copies = l.parameter_copies();
  const double dense_cut = static_cast<double>(l.dense_shard_ranks()) * copies,
               expert_cut = static_cast<double>(l.expert_shard_ranks()) * copies;
  const double dense = layers_.dense + end_elements_, experts = layers_.experts, gradient = q_.gradient_bytes();
  const auto add = [&](MemoryTerm term, double bytes, bool sharded, std::string_view dense_name,
                       std::string_view expert_name) {
    out.add(term, dense_name, dense * bytes / (sharded ? dense_cut : 1));
    out.add(term, expert_name, experts * bytes / (sharded ? expert_cut : 1));
  };
  add(weights, r.weight, zero >= 3, "dense weights", "expert weights");
  add(gradients, gradient, zero >= 2, "dense gradients", "expert gradients");
  if (!l.offload_optimizer) {
    add(optimizer, r.optimizer, zero >= 1 && r.shards_optimizer, "dense master weights and moments",
        "expert master weights and moments");
  }
  if (zero == 2) gradient_buffers(out, gradient);
}

/// zero2 reduce-scatters a chunk's gradients when its round of micro-batches ends (interleaved schedules), else a
/// layer's after each micro-batch; one buffer is filled while the other is sent.
void RankHoldings::gradient_buffers(MemoryLedger& out, double bytes) const {
  const bool by_chunk = q_.layout.placement() == Placement::loop && q_.layout.vpp > 1;
  const double largest = by_chunk ? *std::max_element(elements_.begin(), elements_.end()) : unit_;
  const double ends = has_embedding_ ? q_.ends.embedding : (has_head_ ? q_.ends.head : 0);
  const double first = std::max(largest, by_chunk ? 0 : ends);
  out.add(gradients, by_chunk ? "two chunks of unreduced gradients" : "two layers of unreduced gradients",
          (first + largest) * bytes);
}

void RankHoldings::chunk_activations(MemoryLedger& out, int chunk, double alive, double waiting) const {
  if (out.lines == nullptr) {
    out.add(activations, "",
            alive * kept_[static_cast<std::size_t>(chunk)] + waiting * waiting_[static_cast<std::size_t>(chunk)]);
    return;
  }
  for (const HeldLayer& h : chunks_[static_cast<std::size_t>(chunk)]) {
    const LayerKind& k = q_.kinds[static_cast<std::size_t>(h.kind)];
    if (h.offloaded) continue;
    if (h.full) {
      out.add(activations, "layer inputs (full recomputation)", alive * k.activations.input);
      continue;
    }
    const unsigned modules = recomputed_modules(q_.layout);
    double listed = 0;
    for (const SavedTensor& t : saved_tensors(q_.activation, *k.layer)) {
      if ((t.dropped_by & modules) != 0) continue;
      out.add(activations, std::string(t.part) + ": " + std::string(t.name), alive * t.bytes);
      listed += t.bytes;
    }
    out.add(activations, k.mtp ? "joined inputs of MTP layers" : "kept matrix products",
            alive * (k.activations.kept - listed));
  }
  out.add(activations, "kept for weight gradients", waiting * waiting_[static_cast<std::size_t>(chunk)]);
}

void RankHoldings::layer_moment(MemoryLedger& out) const {
  out.add(workspace, "gradients inside a layer's backward pass", workspace_);
  if (q_.makes_temporaries() && !q_.options.traits.weight_gradient_copies) {
    double largest = 0;
    for (const auto& chunk : chunks_)
      for (const HeldLayer& h : chunk)
        largest = std::max(largest, q_.kinds[static_cast<std::size_t>(h.kind)].weights.largest);
    out.add(workspace, "16-bit weight gradient of one matrix", kHalfBytes * largest);
  }
}

void RankHoldings::head_moment(MemoryLedger& out, Instant instant) const {
  const MemoryTraits& t = q_.options.traits;
  const bool at_loss = instant == Instant::loss;
  out.add(logits, at_loss ? "logits and loss" : "gradient of the logits",
          q_.logits() * (at_loss ? t.loss_peak : t.head_gradient));
  // Under sequence parallelism the head's input is gathered; its gradient exists whole before it is scattered.
  const double whole = q_.whole_bytes();
  out.add(workspace, "head input gathered", q_.activation.sp ? whole : 0);
  if (at_loss) return;
  out.add(workspace, "gradient of the head input", whole);
  if (q_.makes_temporaries()) out.add(workspace, "16-bit weight gradient of the head", kHalfBytes * q_.ends.head);
}

/// zero3: weights of a unit (`wrap` layers; the embedding; norm and head) are gathered in 16 bits before use,
/// `prefetch` units ahead; their gradients exist whole in 16 bits and, while they are reduce-scattered, in the type of
/// the reduction.
void RankHoldings::gathered(MemoryLedger& out, Instant instant) const {
  const Layout& l = q_.layout;
  if (l.zero_stage() < 3) return;
  const double ahead = l.prefetch.value_or(1), weight = q_.recipe.gathered;
  const double reduced = l.grad_reduce_fp32.value_or(q_.gradient_bytes() > kHalfBytes) ? 4 : kHalfBytes;
  const bool keeps = l.reshard.has_value() && !*l.reshard;
  const double all = layers_.dense + layers_.experts;
  const double unit = std::min(all, unit_ * l.wrap.value_or(1));
  const double layers = keeps ? all : unit * std::min(1 + ahead, std::max(1.0, unit > 0 ? all / unit : 1));
  const double head = has_head_ ? q_.ends.head + q_.ends.final_norm : 0;
  if (instant == Instant::layer) {
    out.add(MemoryTerm::gathered, "weights of gathered layers", layers * weight);
    out.add(MemoryTerm::gathered, "unsharded gradients of a unit", unit * (q_.activation.width + reduced));
  } else if (instant == Instant::embedding_gradient) {
    out.add(MemoryTerm::gathered, "embedding gathered, its gradient unsharded",
            q_.ends.embedding * (weight + q_.activation.width + reduced));
  } else {
    out.add(MemoryTerm::gathered, "weights of gathered layers",
            keeps ? all * weight : unit * weight * std::min(ahead, 1.0));
    out.add(MemoryTerm::gathered, "head gathered", head * weight);
    if (instant == Instant::head_gradient)
      out.add(MemoryTerm::gathered, "unsharded gradient of the head", head * (q_.activation.width + reduced));
  }
}

/// What stays for the whole step.
void RankHoldings::steady(MemoryLedger& out) const {
  const MemoryTraits& t = q_.options.traits;
  states(out);
  if (q_.options.rates != Rates::datasheet) out.add(buffers, "workspaces of libraries", t.fixed_buffers);
  if (q_.layout.pp > 1) out.add(buffers, "pipeline messages", 2 * q_.sequence_bytes());
  if (t.weight_gradient_copies && q_.makes_temporaries()) {
    std::vector<bool> seen(q_.kinds.size(), false);
    double elements = 0;
    for (const auto& chunk : chunks_) {
      for (const HeldLayer& h : chunk) {
        if (!seen[static_cast<std::size_t>(h.kind)])
          elements += q_.kinds[static_cast<std::size_t>(h.kind)].weights.distinct;
        seen[static_cast<std::size_t>(h.kind)] = true;
      }
    }
    out.add(buffers, "one 16-bit gradient of each distinct matrix", kHalfBytes * elements);
  }
  if (q_.layout.offload_activation_layers != 0) {
    double largest = 0;
    for (const LayerKind& k : q_.kinds) largest = std::max(largest, k.activations.kept);
    out.add(buffers, "two layers on their way to the host", 2 * largest);
  }
}

void RankHoldings::moment(MemoryLedger& out, const Moment& m, Instant instant) const {
  for (int c = 0; c < static_cast<int>(chunks_.size()); ++c) {
    // At the embedding's gradient the layers of that micro-batch are done.
    const int done = instant == Instant::embedding_gradient && c == embedding_chunk_ ? 1 : 0;
    chunk_activations(out, c, m.alive[static_cast<std::size_t>(c)] - done, m.waiting[static_cast<std::size_t>(c)]);
  }
  if (has_embedding_) {
    const double alive = m.alive[static_cast<std::size_t>(embedding_chunk_)];
    const double mask = q_.options.traits.activation.dropout ? q_.sequence_bytes() / q_.activation.width : 0;
    out.add(embedding, "token ids and dropout mask", alive * (kIds * q_.activation.tokens + mask));
    if (instant == Instant::embedding_gradient)
      out.add(embedding, "16-bit gradient of the embedding", embedding_temporary());
  }
  if (has_head_) {
    const double alive = m.alive[static_cast<std::size_t>(head_chunk_)];
    const double now = instant == Instant::loss || instant == Instant::head_gradient ? 1 : 0;
    const double inputs =
        2 * q_.sequence_bytes() + 4 * q_.activation.tokens / (q_.activation.sp ? q_.activation.tp : 1);
    out.add(activations, "inputs of final norm and head", (alive - 1 + now) * inputs * losses_);
    // Losses that have been made and not yet differentiated: of other micro-batches, and of the main loss beside an MTP
    // layer's.
    const double others = std::max(0.0, (alive - 1) * losses_ + now * (losses_ - 1));
    out.add(logits, "logits kept for the backward pass", others * q_.logits() * q_.options.traits.loss_kept);
  }
  if (instant == Instant::layer) {
    out.add(activations, "one layer recomputed", recomputed_);
    layer_moment(out);
  } else if (instant != Instant::embedding_gradient) {
    head_moment(out, instant);
  }
  gathered(out, instant);
}

/// What the allocator keeps beyond live tensors: blocks of other moments whose sizes nothing reuses at this one, and
/// the stack's constant and share.
void RankHoldings::slack(MemoryLedger& out, Instant instant) const {
  if (q_.options.rates == Rates::datasheet) return;
  const MemoryTraits& t = q_.options.traits;
  if (instant != Instant::embedding_gradient)
    out.add(MemoryTerm::slack, "block of the embedding's gradient", embedding_temporary());
  if (instant != Instant::layer)
    out.add(MemoryTerm::slack, "blocks of layers' backward passes", workspace_ + recomputed_);
  out.add(MemoryTerm::slack, "allocator, constant", t.slack_bytes);
  double moving = 0;
  for (const MemoryTerm term : {activations, logits, MemoryTerm::gathered, workspace})
    moving += out.terms[static_cast<std::size_t>(term)];
  out.add(MemoryTerm::slack, "allocator, share of what comes and goes", t.slack_fraction * moving);
  out.add(context, "driver, kernels and NCCL", t.context_bytes);
}

bool RankHoldings::possible(const Moment& m, Instant instant) const {
  switch (instant) {
    case Instant::layer:
      return true;
    case Instant::embedding_gradient:
      return has_embedding_ && m.alive[static_cast<std::size_t>(embedding_chunk_)] > 0;
    default:
      return has_head_ && m.alive[static_cast<std::size_t>(head_chunk_)] > 0;
  }
}

RankHoldings::Best RankHoldings::best(const std::vector<Moment>& moments) const {
  Best out;
  for (const Moment& m : moments) {
    for (const Instant i : {Instant::layer, Instant::loss, Instant::head_gradient, Instant::embedding_gradient}) {
      if (!possible(m, i)) continue;
      MemoryLedger ledger;
      moment(ledger, m, i);
      if (ledger.total() > out.total) out = Best{m, i, ledger.total()};
    }
  }
  return out;
}

RankMemory RankHoldings::peak(const std::vector<Moment>& moments) const {
  const Best b = best(moments);
  MemoryLedger ledger;
  steady(ledger);
  moment(ledger, b.moment, b.instant);
  slack(ledger, b.instant);
  RankMemory out;
  out.stage = stage_;
  out.terms = ledger.terms;
  out.moment = kInstantNames[static_cast<std::size_t>(b.instant)];
  for (const Moment& m : moments) out.peak_chunks = std::max(out.peak_chunks, m.total());
  out.peak_microbatches = static_cast<double>(out.peak_chunks) / q_.layout.slices_per_rank();
  return out;
}

void RankHoldings::explain(const std::vector<Moment>& moments, std::vector<MemoryLine>& lines) const {
  const Best b = best(moments);
  MemoryLedger ledger;
  std::vector<MemoryLine> all;
  ledger.lines = &all;
  steady(ledger);
  moment(ledger, b.moment, b.instant);
  slack(ledger, b.instant);
  for (const MemoryLine& line : all) {  // the same tensor of many layers is one line
    const auto same = std::find_if(lines.begin(), lines.end(),
                                   [&](const MemoryLine& x) { return x.term == line.term && x.what == line.what; });
    if (same == lines.end()) {
      lines.push_back(line);
    } else {
      same->bytes += line.bytes;
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const MemoryLine& a, const MemoryLine& b) { return a.term < b.term; });
}

}  // namespace shardplan
