#include "layouts/memory.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "layouts/layer_weights.hpp"

namespace shardplan {

const Recipe& recipe_of(const MemoryOptions& o, const Workload& w) {
  if (!o.recipe.empty()) return find_recipe(o.recipe);
  // A stack's recipe of 16-bit weights has no meaning in FP32.
  if (w.precision == DataType::fp32 && find_recipe(o.traits.recipe).gathered < 4) return find_recipe("fp32");
  const bool half = w.precision == DataType::fp16 && !o.traits.recipe_fp16.empty();
  return find_recipe(half ? o.traits.recipe_fp16 : o.traits.recipe);
}

namespace {

using enum MemoryTerm;
constexpr double k16 = 2;   // bytes of a BF16 or FP16 element
constexpr double kIds = 8;  // bytes of a token id

double d(std::int64_t v) { return static_cast<double>(v); }

/// Adds up terms; keeps the lines where someone asked for them.
struct Ledger {
  std::array<double, kMemoryTerms> terms{};
  std::vector<MemoryLine>* lines = nullptr;

  void add(MemoryTerm term, std::string_view what, double bytes) {
    if (bytes <= 0) return;
    terms[static_cast<std::size_t>(term)] += bytes;
    if (lines != nullptr) lines->push_back({term, std::string(what), bytes});
  }
  double total() const { return std::accumulate(terms.begin(), terms.end(), 0.0); }
};

/// A kind of layer on this layout: weights of one rank and what it keeps.
struct Kind {
  const Layer* layer = nullptr;
  bool mtp = false;
  RankWeights weights;
  LayerActivations activations;
};

/// Everything that all ranks share.
struct Question {
  const Model& model;
  const Cluster& cluster;
  const Layout& layout;
  const Workload& workload;
  const MemoryOptions& options;
  const Recipe& recipe;
  ActivationQuestion activation;
  double vocab = 0;
  EndWeights ends;
  std::vector<Kind> kinds;
  std::vector<int> kind_of;  // by layer
  std::vector<int> mtp_kind_of;

  Question(const Model& m, const Cluster& c, const Layout& l, const Workload& w, const MemoryOptions& o);

  double gradient_bytes() const {
    if (layout.grad_accumulate_fp32) {
      return *layout.grad_accumulate_fp32 == recipe.accumulates_fp32 ? recipe.gradient
                                                                     : (*layout.grad_accumulate_fp32 ? 4 : k16);
    }
    const bool narrow = layout.grad_reduce_fp32.has_value() && !*layout.grad_reduce_fp32;
    return narrow && options.traits.gradients_follow_reduction ? k16 : recipe.gradient;
  }
  /// Gradients are made in 16 bits and added to an FP32 sum: a temporary of the matrix's size while the sum is made.
  bool makes_temporaries() const { return recipe.temporaries && gradient_bytes() > k16 && layout.zero_stage() < 3; }
  double sequence_bytes() const {  // one hidden state of a micro-batch, as sequence parallelism leaves it
    return activation.width * d(model.hidden) * activation.tokens / (activation.sp ? activation.tp : 1);
  }
  double whole_bytes() const { return activation.width * d(model.hidden) * activation.tokens; }
  /// Of one micro-batch on one rank, in elements of 16 bits: what the stacks' bytes a logit are for.
  double logits() const { return activation.tokens * vocab / layout.tp * activation.width / k16; }

 private:
  int kind(const Layer&, bool mtp);
};

Question::Question(const Model& m, const Cluster& c, const Layout& l, const Workload& w, const MemoryOptions& o)
    : model(m),
      cluster(c),
      layout(l),
      workload(w),
      options(o),
      recipe(recipe_of(o, w)),
      activation(activation_question(l, m, w, o.traits.activation, o.load)),
      vocab(padded_vocab(m, l.tp, o.traits.vocab_multiple)),
      ends(end_weights(m, l.tp, vocab)) {
  if (!l.cp_by) activation.ulysses = o.traits.cp_ulysses;
  kinds.reserve(4);
  kind_of.reserve(m.layers.size());
  for (const Layer& layer : m.layers) kind_of.push_back(kind(layer, false));
  for (const Layer& layer : m.mtp) mtp_kind_of.push_back(kind(layer, true));
}

int Question::kind(const Layer& layer, bool mtp) {
  // Layers of one kind mostly follow one another: look from the last kind back.
  for (int i = static_cast<int>(kinds.size()) - 1; i >= 0; --i)
    if (kinds[i].mtp == mtp && same_layer(*kinds[i].layer, layer)) return i;
  Kind k{&layer, mtp, layer_weights(model, layer, layout.tp, layout.ep, layout.etp),
         layer_activations(activation, layer, recomputed_modules(layout))};
  if (mtp) {
    k.weights += mtp_weights(model, layer, layout.tp, layout.ep, layout.etp);
    // The norms of both inputs and the joined input of the 2h -> h projection.
    const double joined = 4 * sequence_bytes();
    k.activations.all += joined;
    k.activations.kept += joined;
    k.activations.recomputed = k.activations.all - k.activations.kept;
  }
  if (layer.moe) k.weights.experts *= 1 + d(options.redundant) / d(layer.moe->experts);
  kinds.push_back(k);
  return static_cast<int>(kinds.size()) - 1;
}

/// A layer as one rank holds it.
struct Held {
  int kind = 0;
  bool full = false;       // recomputed whole
  bool offloaded = false;  // its activations are on the host
};

enum class Instant { layer, loss, head_gradient, embedding_gradient };
constexpr std::array<std::string_view, 4> kInstantNames = {"layer backward", "loss", "head gradient",
                                                           "embedding gradient"};

/// One pipeline rank.
class Rank {
 public:
  Rank(const Question& q, int stage, const std::vector<StageSlice>& slices);

  RankMemory peak(const std::vector<Moment>& moments) const;
  void explain(const std::vector<Moment>& moments, std::vector<MemoryLine>& lines) const;

 private:
  struct Best {
    Moment moment;
    Instant instant = Instant::layer;
    double total = -1;
  };
  Best best(const std::vector<Moment>& moments) const;
  void states(Ledger&) const;
  void gradient_buffers(Ledger&, double bytes) const;
  void steady(Ledger&) const;
  void moment(Ledger&, const Moment&, Instant) const;
  void chunk_activations(Ledger&, int chunk, double alive, double waiting) const;
  void recomputed_layer(Ledger&) const;
  void layer_moment(Ledger&) const;
  void head_moment(Ledger&, Instant) const;
  void gathered(Ledger&, Instant) const;
  void slack(Ledger&, Instant) const;
  bool possible(const Moment&, Instant) const;
  double layer_bytes(const Held& h) const;
  double embedding_temporary() const { return has_embedding_ && q_.makes_temporaries() ? k16 * q_.ends.embedding : 0; }

  const Question& q_;
  int stage_;
  std::vector<std::vector<Held>> chunks_;
  std::vector<double> kept_, waiting_, elements_;  // by chunk: bytes of one micro-batch; dense elements
  int embedding_chunk_ = -1, head_chunk_ = -1, losses_ = 1;
  bool has_embedding_ = false, has_head_ = false, has_mtp_ = false;
  RankWeights layers_;       // of all chunks
  double end_elements_ = 0;  // embedding, head and final norm
  double unit_ = 0;          // dense and expert elements of the largest layer
  double workspace_ = 0, recomputed_ = 0;
};

Rank::Rank(const Question& q, int stage, const std::vector<StageSlice>& slices) : q_(q), stage_(stage) {
  const Layout& l = q.layout;
  int seen = 0;  // layers of this rank so far, in chunk order
  for (int c = 0; c < l.slices_per_rank(); ++c) {
    const StageSlice& s = slices[static_cast<std::size_t>(l.slice_of(stage, c))];
    std::vector<Held> held;
    const auto hold = [&](int kind) {
      Held h{kind, l.recompute == Recompute::full && (l.recompute_layers == 0 || seen < l.recompute_layers),
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
    for (const Held& h : held) {
      const Kind& k = q.kinds[static_cast<std::size_t>(h.kind)];
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

double Rank::layer_bytes(const Held& h) const {
  const LayerActivations& a = q_.kinds[static_cast<std::size_t>(h.kind)].activations;
  if (h.offloaded) return 0;
  return h.full ? a.input : a.kept;
}

void Rank::states(Ledger& out) const {
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
void Rank::gradient_buffers(Ledger& out, double bytes) const {
  const bool by_chunk = q_.layout.placement() == Placement::loop && q_.layout.vpp > 1;
  const double largest = by_chunk ? *std::max_element(elements_.begin(), elements_.end()) : unit_;
  const double ends = has_embedding_ ? q_.ends.embedding : (has_head_ ? q_.ends.head : 0);
  const double first = std::max(largest, by_chunk ? 0 : ends);
  out.add(gradients, by_chunk ? "two chunks of unreduced gradients" : "two layers of unreduced gradients",
          (first + largest) * bytes);
}

void Rank::chunk_activations(Ledger& out, int chunk, double alive, double waiting) const {
  if (out.lines == nullptr) {
    out.add(activations, "",
            alive * kept_[static_cast<std::size_t>(chunk)] + waiting * waiting_[static_cast<std::size_t>(chunk)]);
    return;
  }
  for (const Held& h : chunks_[static_cast<std::size_t>(chunk)]) {
    const Kind& k = q_.kinds[static_cast<std::size_t>(h.kind)];
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

void Rank::recomputed_layer(Ledger& out) const { out.add(activations, "one layer recomputed", recomputed_); }

void Rank::layer_moment(Ledger& out) const {
  out.add(workspace, "gradients inside a layer's backward pass", workspace_);
  if (q_.makes_temporaries() && !q_.options.traits.weight_gradient_copies) {
    double largest = 0;
    for (const auto& chunk : chunks_)
      for (const Held& h : chunk)
        largest = std::max(largest, q_.kinds[static_cast<std::size_t>(h.kind)].weights.largest);
    out.add(workspace, "16-bit weight gradient of one matrix", k16 * largest);
  }
}

void Rank::head_moment(Ledger& out, Instant instant) const {
  const MemoryTraits& t = q_.options.traits;
  const bool at_loss = instant == Instant::loss;
  out.add(logits, at_loss ? "logits and loss" : "gradient of the logits",
          q_.logits() * (at_loss ? t.loss_peak : t.head_gradient));
  // Under sequence parallelism the head's input is gathered; its gradient exists whole before it is scattered.
  const double whole = q_.whole_bytes();
  out.add(workspace, "head input gathered", q_.activation.sp ? whole : 0);
  if (at_loss) return;
  out.add(workspace, "gradient of the head input", whole);
  if (q_.makes_temporaries()) out.add(workspace, "16-bit weight gradient of the head", k16 * q_.ends.head);
}

/// zero3: weights of a unit (a layer; the embedding; norm and head) are gathered in 16 bits before use, `prefetch`
/// units ahead; their gradients exist whole in 16 bits and, while they are reduce-scattered, in the type of the
/// reduction.
void Rank::gathered(Ledger& out, Instant instant) const {
  const Layout& l = q_.layout;
  if (l.zero_stage() < 3) return;
  const double ahead = l.prefetch.value_or(1), weight = q_.recipe.gathered;
  const double reduced = l.grad_reduce_fp32.value_or(q_.gradient_bytes() > k16) ? 4 : k16;
  const bool keeps = l.reshard.has_value() && !*l.reshard;
  const double all = layers_.dense + layers_.experts;
  const double layers = keeps ? all : unit_ * std::min(1 + ahead, std::max(1.0, unit_ > 0 ? all / unit_ : 1));
  const double head = has_head_ ? q_.ends.head + q_.ends.final_norm : 0;
  if (instant == Instant::layer) {
    out.add(MemoryTerm::gathered, "weights of gathered layers", layers * weight);
    out.add(MemoryTerm::gathered, "unsharded gradients of a layer", unit_ * (q_.activation.width + reduced));
  } else if (instant == Instant::embedding_gradient) {
    out.add(MemoryTerm::gathered, "embedding gathered, its gradient unsharded",
            q_.ends.embedding * (weight + q_.activation.width + reduced));
  } else {
    out.add(MemoryTerm::gathered, "weights of gathered layers",
            keeps ? all * weight : unit_ * weight * std::min(ahead, 1.0));
    out.add(MemoryTerm::gathered, "head gathered", head * weight);
    if (instant == Instant::head_gradient)
      out.add(MemoryTerm::gathered, "unsharded gradient of the head", head * (q_.activation.width + reduced));
  }
}

/// What stays for the whole step.
void Rank::steady(Ledger& out) const {
  const MemoryTraits& t = q_.options.traits;
  states(out);
  if (q_.options.rates != Rates::datasheet) out.add(buffers, "workspaces of libraries", t.fixed_buffers);
  if (q_.layout.pp > 1) out.add(buffers, "pipeline messages", 2 * q_.sequence_bytes());
  if (t.weight_gradient_copies && q_.makes_temporaries()) {
    std::vector<bool> seen(q_.kinds.size(), false);
    double elements = 0;
    for (const auto& chunk : chunks_) {
      for (const Held& h : chunk) {
        if (!seen[static_cast<std::size_t>(h.kind)])
          elements += q_.kinds[static_cast<std::size_t>(h.kind)].weights.distinct;
        seen[static_cast<std::size_t>(h.kind)] = true;
      }
    }
    out.add(buffers, "one 16-bit gradient of each distinct matrix", k16 * elements);
  }
  if (q_.layout.offload_activation_layers != 0) {
    double largest = 0;
    for (const Kind& k : q_.kinds) largest = std::max(largest, k.activations.kept);
    out.add(buffers, "two layers on their way to the host", 2 * largest);
  }
}

void Rank::moment(Ledger& out, const Moment& m, Instant instant) const {
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
    recomputed_layer(out);
    layer_moment(out);
  } else if (instant != Instant::embedding_gradient) {
    head_moment(out, instant);
  }
  gathered(out, instant);
}

/// What the allocator keeps beyond live tensors: blocks of other moments whose sizes nothing reuses at this one, and
/// the stack's constant and share.
void Rank::slack(Ledger& out, Instant instant) const {
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

bool Rank::possible(const Moment& m, Instant instant) const {
  switch (instant) {
    case Instant::layer:
      return true;
    case Instant::embedding_gradient:
      return has_embedding_ && m.alive[static_cast<std::size_t>(embedding_chunk_)] > 0;
    default:
      return has_head_ && m.alive[static_cast<std::size_t>(head_chunk_)] > 0;
  }
}

Rank::Best Rank::best(const std::vector<Moment>& moments) const {
  Best out;
  for (const Moment& m : moments) {
    for (const Instant i : {Instant::layer, Instant::loss, Instant::head_gradient, Instant::embedding_gradient}) {
      if (!possible(m, i)) continue;
      Ledger ledger;
      moment(ledger, m, i);
      if (ledger.total() > out.total) out = Best{m, i, ledger.total()};
    }
  }
  return out;
}

RankMemory Rank::peak(const std::vector<Moment>& moments) const {
  const Best b = best(moments);
  Ledger ledger;
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

void Rank::explain(const std::vector<Moment>& moments, std::vector<MemoryLine>& lines) const {
  const Best b = best(moments);
  Ledger ledger;
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

MemoryShortfall shortfall_of(const RankMemory& r, double capacity) {
  const auto largest = std::max_element(r.terms.begin(), r.terms.end());
  return {r.stage, static_cast<MemoryTerm>(largest - r.terms.begin()), r.device() - capacity};
}

template <class Figure>
double largest_of(const std::vector<RankMemory>& ranks, Figure figure) {
  double out = 0;
  for (const RankMemory& r : ranks) out = std::max(out, figure(r));
  return out;
}

}  // namespace

double RankMemory::device() const { return std::accumulate(terms.begin(), terms.end(), 0.0); }
double RankMemory::reserved() const { return device() - of(MemoryTerm::context); }
double RankMemory::allocated() const { return reserved() - of(MemoryTerm::slack); }

double MemoryReport::peak_allocated() const {
  return largest_of(ranks, [](const RankMemory& r) { return r.allocated(); });
}
double MemoryReport::peak_reserved() const {
  return largest_of(ranks, [](const RankMemory& r) { return r.reserved(); });
}

MemoryReport memory_of(const Model& m, const Cluster& c, const Layout& l, const Workload& w, const MemoryOptions& o,
                       const std::vector<StageSlice>& slices, const InFlight& flight) {
  const Question q(m, c, l, w, o);
  MemoryReport out;
  out.recipe = q.recipe.name;
  out.capacity_bytes = c.gpu.capacity_bytes(o.rates == Rates::datasheet);
  out.ranks.reserve(static_cast<std::size_t>(l.pp));
  for (int r = 0; r < l.pp; ++r) {
    out.ranks.push_back(Rank(q, r, slices).peak(flight.ranks[static_cast<std::size_t>(r)]));
    if (out.ranks.back().device() > out.ranks[static_cast<std::size_t>(out.peak_rank)].device()) out.peak_rank = r;
  }
  out.fits = out.peak_bytes() <= out.capacity_bytes;
  if (!out.fits) out.shortfall = shortfall_of(out.ranks[static_cast<std::size_t>(out.peak_rank)], out.capacity_bytes);
  return out;
}

MemoryReport memory_of(const Model& m, const Cluster& c, const Layout& l, const Workload& w, const MemoryOptions& o) {
  return memory_of(m, c, l, w, o, split_stages(l, m), in_flight(l, microbatches(l, w)));
}

std::vector<MemoryLine> explain_memory(const Model& m, const Cluster& c, const Layout& l, const Workload& w,
                                       const MemoryOptions& o, int rank) {
  const Question q(m, c, l, w, o);
  std::vector<MemoryLine> lines;
  const InFlight flight = in_flight(l, microbatches(l, w));
  Rank(q, rank, split_stages(l, m)).explain(flight.ranks[static_cast<std::size_t>(rank)], lines);
  return lines;
}

}  // namespace shardplan
