#include "layouts/search/candidates.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/errors.hpp"
#include "layouts/layout_words.hpp"
#include "layouts/machine_needs.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

constexpr int kLongestContext = 64;  // context-parallel degree that the search opens at most
constexpr std::int64_t kShortestSlice =
    1024;                        // tokens a context rank keeps at least: below, its exchange dwarfs its attention
constexpr int kMostChunks = 16;  // virtual stages a rank

std::vector<int> divisors(std::int64_t n, std::int64_t most) {
  std::vector<int> out;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) out.push_back(static_cast<int>(d));
  return out;
}

bool power_of_two(int n) { return (n & (n - 1)) == 0; }

void erase_all(std::string& text, const std::string& what) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what)) text.erase(at, what.size());
}

/// One word of a refusal, for counting: the sentence without its numbers. Digits before a letter or after a dash and a
/// letter belong to a name (1f1b, zb-h1).
std::string reason_kind(const std::string& reason) {
  const std::string digits = "0123456789";
  std::string out;
  for (std::size_t at = 0; at < reason.size();) {
    const std::size_t end = std::min(reason.find_first_not_of(digits, at), reason.size());
    const auto letter = [&](std::size_t i) {
      return i < reason.size() && std::isalpha(static_cast<unsigned char>(reason[i])) != 0;
    };
    const bool name = letter(end) || (at >= 2 && letter(at - 1) && reason[at - 2] == '-');
    if (end > at) out += name ? reason.substr(at, end - at) : "N";
    if (end < reason.size()) out += reason[end];
    at = end + 1;
  }
  for (const char* value : {" (N)", " = N", ", not N", ", got N"}) erase_all(out, value);
  return out;
}

/// --for asks for what one framework takes. Otherwise the stack's own framework decides, unless everything is opened or
/// the user fixed the very word that it refuses: that is answered, with its note.
bool refused_note(const SearchSpace& space, const Stack& stack, const FrameworkNote& note) {
  if (!space.framework.empty()) return note.framework == space.framework;
  if (space.any || note.framework != stack.framework) return false;
  if (note.word == "zero") return false;  // the stack's own list of stages says more
  if (note.word == "schedule") return !space.is_fixed("schedule") && !space.is_fixed("vpp") && !space.is_fixed("group");
  return !space.is_fixed(note.word.c_str());
}

class Enumerator {
 public:
  Enumerator(const SearchSpace& space, const Model& model, const Workload& workload, const Stack& stack,
             const Cluster& cluster, std::map<std::string, std::int64_t>& refused)
      : space_(space),
        model_(model),
        workload_(workload),
        stack_(stack),
        cluster_(cluster),
        refused_(refused),
        overlaps_(overlaps_tensor_parallel(cluster)) {}

  std::vector<Candidate> all() {
    for (const int tp : choices("tp", space_.fixed.tp, tensor_degrees()))
      for (const int cp : choices("cp", space_.fixed.cp, context_degrees(tp)))
        for (const int pp : choices("pp", space_.fixed.pp, pipeline_degrees(tp, cp))) with_degrees(tp, cp, pp);
    return std::move(out_);
  }

 private:
  std::vector<int> choices(const char* word, int fixed, std::vector<int> open) const {
    return space_.is_fixed(word) ? std::vector<int>{fixed} : std::move(open);
  }

  std::vector<int> tensor_degrees() const {
    const int domain = space_.any ? cluster_.node.nvlink_domain : std::min(cluster_.node.nvlink_domain, 16);
    std::vector<int> out;
    for (const int d : divisors(space_.gpus, domain))
      if (power_of_two(d)) out.push_back(d);
    return out;
  }
  std::vector<int> context_degrees(int tp) const {
    std::vector<int> out;
    for (const int d : divisors(space_.gpus / tp, kLongestContext))
      if (power_of_two(d) && (d == 1 || workload_.seq_len / d >= kShortestSlice)) out.push_back(d);
    return out;
  }
  std::vector<int> pipeline_degrees(int tp, int cp) const {
    return divisors(space_.gpus / (static_cast<std::int64_t>(tp) * cp), model_.layer_count() + 2);
  }

  /// More than eight sequences only while they are short: beyond 32k tokens a rank no kernel gets faster.
  std::vector<int> microbatch_sizes(int cp) const {
    constexpr std::int64_t kEnoughTokens = 32768;
    std::vector<int> out{1, 2, 4, 8};
    for (int mbs = 16; mbs <= 64 && mbs * workload_.seq_len / cp <= kEnoughTokens; mbs *= 2) out.push_back(mbs);
    return out;
  }

  void with_degrees(int tp, int cp, int pp) {
    const std::int64_t model_ranks = static_cast<std::int64_t>(tp) * cp * pp;
    if (space_.gpus % model_ranks != 0) return;
    const auto dp = static_cast<int>(space_.gpus / model_ranks);
    if (space_.is_fixed("dp") && dp != space_.fixed.dp) return;
    for (const int mbs : choices("mbs", space_.fixed.mbs, microbatch_sizes(cp))) {
      if (workload_.global_batch % (static_cast<std::int64_t>(dp) * mbs) != 0) {
        ++refused_["global batch is no multiple of dp x mbs"];
        continue;
      }
      for (const int ep : choices("ep", space_.fixed.ep, expert_degrees(tp, cp, dp))) {
        Layout layout = space_.fixed;
        layout.tp = tp;
        layout.cp = cp;
        layout.pp = pp;
        layout.dp = dp;
        layout.mbs = mbs;
        layout.ep = ep;
        // Chunks that travel beside products never cost more than the whole message in the open, and no memory that is
        // counted: only the mode that hides most is searched.
        const TpOverlap overlap = space_.any ? TpOverlap::async : stack_.plan_tp_overlap;
        if (!space_.is_fixed("tp-overlap") && layout.sequence_parallel()) {
          if (!overlaps_)
            layout.tp_overlap = TpOverlap::none;  // whatever the stack does elsewhere
          else if (overlap != stack_.tp_overlap)
            layout.tp_overlap = overlap;
        }
        with_zero(layout);
      }
    }
  }

  std::vector<int> expert_degrees(int tp, int cp, int dp) const {
    std::int64_t experts = 0;
    for (const Layer& l : model_.layers)
      if (l.moe) experts = std::max(experts, l.moe->experts);
    if (experts == 0) return {1};
    std::vector<int> out;
    for (const int d : divisors(experts, 1024))
      if ((static_cast<std::int64_t>(tp) * cp * dp) % d == 0) out.push_back(d);
    return out;
  }

  void with_zero(Layout layout) {
    std::vector<int> stages = stack_.zero_stages.empty() ? std::vector<int>{0, 1} : stack_.zero_stages;
    if (space_.any) stages = {0, 1, 2, 3};
    if (layout.dp * layout.cp == 1) stages = {0};
    for (const int zero : choices("zero", space_.fixed.zero, stages)) {
      // A sharded optimizer costs no more traffic than a replicated one and holds less: zero 0 is searched only alone.
      if (!space_.is_fixed("zero") && zero == 0 && stages.size() > 1) continue;
      // Gathering weights inside a pipeline repeats it for every micro-batch: opened only on request.
      if (!space_.is_fixed("zero") && zero == 3 && layout.pp > 1 && !space_.any) continue;
      layout.zero = zero;
      with_schedule(layout);
    }
  }

  void with_schedule(const Layout& layout) {
    if (space_.is_fixed("schedule") || space_.is_fixed("vpp")) {
      const ScheduleRow& row = find_schedule(layout.schedule_name());
      if (!space_.is_fixed("vpp") && row.default_chunks > 1 && !row.fixed_chunks) return with_chunks(layout);
      return with_recompute(layout);
    }
    if (layout.pp == 1) return with_recompute(layout);
    for (const ScheduleRow& row : schedules()) {
      const bool allowed =
          std::find(stack_.schedules.begin(), stack_.schedules.end(), row.name) != stack_.schedules.end();
      if (!(space_.any ? row.name != "zb-auto" : allowed)) continue;
      if (row.name == "interleaved-free") continue;  // interleaved-1f1b's order, but for a free group: only on request
      if (row.name == "gpipe" || row.name == "looped-bfs") continue;  // 1f1b has its time at a fraction of its memory
      Layout next = layout;
      next.schedule = std::string(row.name);
      if (row.name == "1f1b") next.schedule.clear();
      if (row.default_chunks > 1 && !row.fixed_chunks) {
        if (row.name == "interleaved-1f1b") next.schedule.clear();
        with_chunks(next);
      } else {
        with_recompute(next);
      }
    }
  }

  /// Slices of equal layers, the embedding and the loss counting as one each or not at all; where no number of chunks
  /// gives them, any number.
  void with_chunks(const Layout& layout) {
    const std::int64_t layers = model_.layer_count() + static_cast<std::int64_t>(model_.mtp.size());
    std::vector<int> equal, all;
    for (int v = 2; v <= kMostChunks; ++v) {
      const std::int64_t slices = static_cast<std::int64_t>(v) * layout.pp;
      if (slices > layers + 2) break;
      all.push_back(v);
      if (layers % slices == 0 || (layers + 1) % slices == 0 || (layers + 2) % slices == 0) equal.push_back(v);
    }
    for (const int v : equal.empty() || space_.any ? all : equal) {
      Layout next = layout;
      next.vpp = v;
      with_recompute(next);
    }
  }

  void with_recompute(const Layout& layout) {
    Candidate c;
    c.layout = layout;
    if (const auto why = refuse_layout(layout, model_, workload_, space_.gpus)) {
      ++refused_[reason_kind(*why)];
      return;
    }
    ScheduleQuestion ask;
    const ScheduleRow& row = find_schedule(layout.schedule_name());
    ask.ranks = layout.pp;
    ask.microbatches = static_cast<int>(std::min<std::int64_t>(microbatches(layout, workload_), 1 << 20));
    ask.chunks = row.fixed_chunks ? row.default_chunks : layout.vpp;
    ask.group = layout.group;
    if (const auto why = row.refuse(ask)) {
      ++refused_[reason_kind(std::string(row.name) + ": " + *why)];
      return;
    }
    // Legal to ask, but no framework runs it, and groups that are cut short deadlock or idle.
    if (row.name == "interleaved-1f1b" && layout.pp > 1 && ask.microbatches % layout.pp != 0) {
      ++refused_["interleaved-1f1b: micro-batches are no multiple of pp"];
      return;
    }
    for (const FrameworkNote& note : framework_notes(layout, model_, workload_)) {
      if (!refuses(note)) continue;
      ++refused_[note.framework + " " + note.note];
      return;
    }
    c.ladder = space_.is_fixed("recompute") ? std::vector<Layout>{layout} : ladder(layout);
    const std::array degrees{layout.tp, layout.cp, layout.pp, layout.dp, layout.ep};
    if (std::exchange(transports_of_, degrees) != degrees)
      transports_ = transports_here(space_, layout, stack_, cluster_, nullptr);
    by_memory(c, expert_paths(space_, layout, model_, workload_, stack_, transports_));
  }

  /// Pairs of passes keep one micro-batch more, and not all that is recomputed goes with them: a family of their own.
  void by_memory(const Candidate& c, const std::vector<ExpertPath>& paths) {
    Candidate alone = c, paired = c;
    for (const ExpertPath& p : paths) (p.overlap == EpOverlap::batch_1f1b ? paired : alone).paths.push_back(p);
    if (!alone.paths.empty()) out_.push_back(std::move(alone));
    if (paired.paths.empty()) return;
    paired.layout = with_path(c.layout, paired.paths.front());
    paired.ladder.clear();
    for (const Layout& l : c.ladder) {
      const Layout next = with_path(l, paired.paths.front());
      const auto notes = framework_notes(next, model_, workload_);
      if (std::none_of(notes.begin(), notes.end(), [&](const FrameworkNote& n) { return refuses(n); }))
        paired.ladder.push_back(next);
    }
    if (!paired.ladder.empty()) out_.push_back(std::move(paired));
  }

  bool refuses(const FrameworkNote& note) const { return refused_note(space_, stack_, note); }

  /// Recomputation from the cheapest to the most thorough; every step keeps less and repeats more.
  std::vector<Layout> ladder(const Layout& base) const {
    std::vector<Layout> out{base};
    const auto selective = [&](auto... members) {
      Layout l = base;
      l.recompute = Recompute::selective;
      ((l.modules.*members = true), ...);
      out.push_back(l);
    };
    using M = RecomputeModules;
    const bool latent = !model_.layers.empty() && model_.layers.back().attention.kind == AttentionKind::multi_latent;
    if (stack_.attention == AttentionLibrary::unfused) selective(&M::core_attn);
    if (model_.has_moe()) {
      latent ? selective(&M::layernorm, &M::moe_act, &M::mla_up_proj) : selective(&M::layernorm, &M::moe_act);
      latent ? selective(&M::layernorm, &M::moe, &M::mla_up_proj) : selective(&M::layernorm, &M::moe);
    } else {
      selective(&M::layernorm);
      selective(&M::layernorm, &M::mlp);
    }
    Layout full = base;
    full.recompute = Recompute::full;
    out.push_back(full);
    return out;
  }

  const SearchSpace& space_;
  const Model& model_;
  const Workload& workload_;
  const Stack& stack_;
  const Cluster& cluster_;
  std::map<std::string, std::int64_t>& refused_;
  std::array<int, 5> transports_of_{};  // degrees that `transports_` are of
  std::vector<std::optional<Transport>> transports_;
  bool overlaps_;  // chunks of tensor-parallel collectives may travel beside products on this machine
  std::vector<Candidate> out_;
};

bool any_shared_experts(const Model& m) {
  return std::any_of(m.layers.begin(), m.layers.end(),
                     [](const Layer& l) { return l.moe.has_value() && l.moe->shared_width > 0; });
}

}  // namespace

bool SearchSpace::is_fixed(const char* word) const {
  return std::find(fixed_words.begin(), fixed_words.end(), word) != fixed_words.end();
}

namespace {

/// The overlap that this layout states, with NCCL's all-to-all: has it anything to hide, and does the framework take
/// it.
bool may_overlap(const SearchSpace& space, const Layout& l, const Model& model, const Workload& workload,
                 const Stack& stack) {
  if (l.ep_overlap == EpOverlap::shared && !any_shared_experts(model)) return false;
  const std::string schedule = l.schedule_name();
  if (l.ep_overlap == EpOverlap::batch_1f1b && schedule != "1f1b" && schedule != "interleaved-1f1b") return false;
  if (refuse_layout(l, model, workload, space.gpus)) return false;
  const auto notes = framework_notes(l, model, workload);
  return std::none_of(notes.begin(), notes.end(),
                      [&](const FrameworkNote& n) { return refused_note(space, stack, n); });
}

}  // namespace

Layout with_path(Layout l, const ExpertPath& path) {
  l.transport = path.transport;
  l.ep_overlap = path.overlap;
  return l;
}

std::vector<std::optional<Transport>> transports_here(const SearchSpace& space, const Layout& layout,
                                                      const Stack& stack, const Cluster& cluster,
                                                      std::vector<std::string>* refused) {
  if (space.is_fixed("transport")) return {layout.transport};
  constexpr std::array all{Transport::nccl, Transport::deepep, Transport::hybridep};
  std::vector<std::optional<Transport>> out;
  for (const Transport t : all) {
    const auto& listed = stack.plan_transports;
    if (!space.any && std::find(listed.begin(), listed.end(), t) == listed.end()) continue;
    Layout next = layout;
    next.transport = t == Transport::nccl ? std::nullopt : std::optional(t);
    const auto why = refused_by_machine(next, cluster);
    if (!why) {
      out.push_back(next.transport);
    } else if (refused != nullptr) {
      refused->push_back(*why);
    }
  }
  return out;
}

std::vector<ExpertPath> expert_paths(const SearchSpace& space, const Layout& layout, const Model& model,
                                     const Workload& workload, const Stack& stack,
                                     const std::vector<std::optional<Transport>>& transports) {
  if (layout.ep == 1 || !model.has_moe()) return {{layout.transport, layout.ep_overlap}};
  std::vector<ExpertPath> out;
  const bool fixed = space.is_fixed("ep-overlap");
  constexpr std::array all{EpOverlap::none, EpOverlap::shared, EpOverlap::batch_1f1b};
  for (const EpOverlap o : all) {
    const auto& listed = stack.plan_ep_overlaps;
    if (fixed ? o != EpOverlap::none : !space.any && std::find(listed.begin(), listed.end(), o) == listed.end())
      continue;
    const std::optional<EpOverlap> overlap = fixed                  ? layout.ep_overlap
                                             : o == EpOverlap::none ? std::nullopt
                                                                    : std::optional(o);
    if (!fixed && o != EpOverlap::none && !may_overlap(space, with_path(layout, {{}, overlap}), model, workload, stack))
      continue;
    for (const auto& transport : transports)
      // Shared experts hide NCCL's all-to-all alone (framework_notes).
      if (fixed || o != EpOverlap::shared || !transport || space.any) out.push_back({transport, overlap});
  }
  return out;
}

SearchSpace parse_fixed(const std::string& text, std::int64_t gpus, const std::string& where) {
  SearchSpace space;
  space.gpus = gpus;
  if (text.empty()) return space;
  auto [layout, words] = parse_layout_words(text, where);
  if (words.empty()) throw InputError(where, "empty: expected words like \"tp8 pp4\"");
  space.fixed = std::move(layout);
  space.fixed_words.assign(words.begin(), words.end());
  return space;
}

std::vector<Candidate> enumerate_candidates(const SearchSpace& space, const Model& model, const Workload& workload,
                                            const Stack& stack, const Cluster& cluster,
                                            std::map<std::string, std::int64_t>& refused) {
  return Enumerator(space, model, workload, stack, cluster, refused).all();
}

}  // namespace shardplan
