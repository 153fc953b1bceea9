// Why a layout cannot run: arithmetic first, then what the schedule and the modules need. One reason a rule.
#include <algorithm>
#include <array>
#include <string>

#include "base/errors.hpp"
#include "layouts/layout.hpp"
#include "models/check_model.hpp"
#include "sim/framework_notes.hpp"
#include "sim/schedules.hpp"

namespace shardplan {

namespace {

using Reason = std::optional<std::string>;

std::string n(std::int64_t value) { return std::to_string(value); }

Reason must_divide(std::int64_t value, std::int64_t by, const std::string& what, const std::string& axis) {
  if (value % by == 0) return {};
  return what + " (" + n(value) + ") is not a multiple of " + axis + " = " + n(by);
}

struct Question {
  const Layout& l;
  const Model& m;
  const Workload& w;
  std::int64_t gpus;
};

Reason ranks(const Question& q) {
  const Layout& l = q.l;
  const std::int64_t product = std::int64_t{l.tp} * l.cp * l.pp * l.dp;
  if (q.gpus > 0 && product != q.gpus) return "tp*cp*pp*dp = " + n(product) + ", but there are " + n(q.gpus) + " GPUs";
  const std::int64_t within = std::int64_t{l.tp} * l.cp * l.dp, expert = std::int64_t{l.etp} * l.ep;
  if (within % expert != 0 && q.m.has_moe()) {  // a dense model has a better reason
    return "etp*ep = " + n(expert) + " does not divide the tp*cp*dp = " + n(within) + " ranks of a pipeline stage";
  }
  if (l.shard > 0 && (std::int64_t{l.dp} * l.cp) % l.shard != 0) {
    return "shard" + n(l.shard) + " does not divide the dp*cp = " + n(std::int64_t{l.dp} * l.cp) +
           " data-parallel ranks";
  }
  if (l.shard > 1 && l.zero_stage() == 0) return "shard" + n(l.shard) + " without ZeRO: zero0 shards nothing";
  return {};
}

Reason modelled(const Question& q) {
  const std::string why = why_no_layout(q.m);
  if (!why.empty()) return "not modelled: layouts of a model with " + why;
  return {};
}

Reason attention(const Question& q) {
  for (const Layer& layer : q.m.layers) {
    const Attention& a = layer.attention;
    if (auto r = must_divide(a.heads, q.l.tp, "attention heads", "tp")) return r;
    if (a.kind == AttentionKind::grouped_query && a.kv_heads % q.l.tp != 0 && q.l.tp % a.kv_heads != 0) {
      return "KV heads (" + n(a.kv_heads) + ") and tp = " + n(q.l.tp) + ": neither divides the other";
    }
    if (q.l.cp_by == ContextParallel::ulysses && (a.heads / q.l.tp) % q.l.cp != 0) {
      return "attention heads of a tensor-parallel rank (" + n(a.heads / q.l.tp) +
             ") are not a multiple of cp = " + n(q.l.cp) + ", which cp-by=ulysses spreads them over";
    }
  }
  return {};
}

Reason feed_forward(const Question& q) {
  const Layout& l = q.l;
  bool any_moe = false;
  const auto check = [&](const Layer& layer) -> Reason {
    if (!layer.moe) return must_divide(layer.mlp.width, l.tp, "MLP width", "tp");
    any_moe = true;
    if (auto r = must_divide(layer.moe->experts, l.ep, "experts", "ep")) return r;
    if (auto r = must_divide(layer.moe->width, l.etp, "expert width", "etp")) return r;
    return must_divide(layer.moe->shared_width, l.tp, "shared-expert width", "tp");
  };
  for (const auto* layers : {&q.m.layers, &q.m.mtp}) {
    for (const Layer& layer : *layers)
      if (auto r = check(layer)) return r;
  }
  if (any_moe) return {};
  if (l.ep > 1) return "ep" + n(l.ep) + ": the model has no experts";
  if (l.etp > 1) return "etp" + n(l.etp) + ": the model has no experts";
  return {};
}

Reason sequence(const Question& q) {
  const Layout& l = q.l;
  if (l.cp > 1) {
    // Ring and all-gather give each rank two slices, one from each end, so that causal work is equal (zig-zag).
    const bool zigzag = l.cp_by != ContextParallel::ulysses;
    const std::int64_t parts = (zigzag ? 2 : 1) * std::int64_t{l.cp};
    if (auto r = must_divide(q.w.seq_len, parts, "sequence length", zigzag ? "2 cp" : "cp")) return r;
  }
  const std::int64_t local = q.w.seq_len / l.cp * l.mbs;
  if (l.sequence_parallel())
    return must_divide(local, l.tp, "tokens of a micro-batch on a context-parallel rank", "tp (sp)");
  return {};
}

Reason batch(const Question& q) {
  try {
    microbatches(q.l, q.w);
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

Reason pipeline(const Question& q) {
  const Layout& l = q.l;
  const std::string name = l.schedule_name();
  const ScheduleRow& row = find_schedule(name);
  const bool looped = !row.fixed_chunks;
  if (l.placement() != Placement::loop) {
    if (l.vpp > 2) return "schedule=" + name + " always has 2 chunks a rank: vpp" + n(l.vpp);
    if (l.placement() == Placement::bidirectional && l.pp % 2 != 0)
      return "schedule=" + name + " needs an even pp, got pp" + n(l.pp);
  } else if (l.vpp > 1 && !looped) {
    return "schedule=" + name + " has one chunk a rank: vpp" + n(l.vpp) +
           " needs an interleaved schedule, such as interleaved-1f1b or looped-bfs";
  } else if (looped && l.vpp < 2) {
    return "schedule=" + name + " needs vpp2 or more";
  }
  if (l.vpp > 1 && l.pp == 1) return "vpp" + n(l.vpp) + " without a pipeline: pp is 1";
  if (l.group > 0 && !looped) return "group=" + n(l.group) + ": schedule=" + name + " is not interleaved";
  if (auto reason = refuse_split(l, q.m)) return reason;
  if (l.pp == 1) return {};
  ScheduleQuestion s;
  s.ranks = l.pp;
  s.microbatches = static_cast<int>(std::min<std::int64_t>(microbatches(l, q.w), 1 << 20));
  s.chunks = l.slices_per_rank();
  s.group = l.group;
  if (const auto reason = row.refuse(s)) return "schedule=" + name + ": " + *reason;
  return {};
}

Reason modules(const Question& q) {
  const Layout& l = q.l;
  const bool latent = !q.m.layers.empty() && q.m.layers.front().attention.kind == AttentionKind::multi_latent;
  const RecomputeModules& r = l.modules;
  if (r.mla_up_proj && !latent) return "recompute=selective:mla_up_proj: the model has no multi-latent attention";
  if (!q.m.has_moe()) {
    if (r.moe || r.moe_act)
      return std::string("recompute=selective:") + (r.moe ? "moe" : "moe_act") + ": the model has no experts";
    if (r.shared_experts) return "recompute=selective:shared_experts: the model has no experts";
  }
  const EpOverlap overlap = l.ep_overlap.value_or(EpOverlap::none);
  if (overlap != EpOverlap::none && !q.m.has_moe()) return "ep-overlap: the model has no experts";
  if (overlap == EpOverlap::waves) {
    for (const Layer& layer : q.m.layers) {
      if (!layer.moe || l.waves <= layer.moe->experts / std::max(1, l.ep)) continue;
      return "ep-overlap=waves" + n(l.waves) + " needs as many experts on a rank; ep" + n(l.ep) + " leaves " +
             n(layer.moe->experts / std::max(1, l.ep));
    }
  }
  const std::string name = l.schedule_name();
  if (overlap == EpOverlap::dualpipe && name != "dualpipe" && name != "dualpipe-v") {
    return "ep-overlap=dualpipe needs schedule=dualpipe or dualpipe-v, got " + name;
  }
  if (overlap == EpOverlap::batch_1f1b && (name == "dualpipe" || name == "dualpipe-v"))
    return "ep-overlap=1f1b: the pairs of schedule=" + name + " overlap already (ep-overlap=dualpipe)";
  return {};
}

Reason sharding(const Question& q) {
  if (q.l.reshard.has_value() && q.l.zero_stage() < 3) {
    return "reshard=" + n(*q.l.reshard ? 1 : 0) + " needs zero3: below it weights are never gathered in pieces";
  }
  if (q.l.prefetch.has_value() && q.l.zero_stage() < 3) return "prefetch=" + n(*q.l.prefetch) + " needs zero3";
  if (q.l.wrap.has_value() && q.l.zero_stage() < 3) return "wrap=" + n(*q.l.wrap) + " needs zero3";
  return {};
}

}  // namespace

std::optional<std::string> refuse_layout(const Layout& l, const Model& m, const Workload& w, std::int64_t gpus) {
  const Question q{l, m, w, gpus};
  constexpr std::array rules = {modelled, ranks, attention, feed_forward, sequence, batch, pipeline, modules, sharding};
  for (const auto rule : rules)
    if (auto reason = rule(q)) return reason;
  return {};
}

namespace {

/// Megatron core, transformer_config.py (overlap_moe_expert_parallel_comm, moe_shared_expert_overlap).
template <class Note>
void exchange_notes(const Layout& l, const Model& m, const Note& note) {
  if (l.ep_overlap == EpOverlap::shared && l.transport.value_or(Transport::nccl) != Transport::nccl)
    note("megatron", "ep-overlap", "moe_shared_expert_overlap works with the all-to-all dispatcher only");
  if (l.ep_overlap != EpOverlap::batch_1f1b) return;
  if (l.ep == 1) {
    note("megatron", "ep-overlap", "overlap_moe_expert_parallel_comm needs expert parallelism");
  } else if (l.recompute == Recompute::full) {
    note("megatron", "ep-overlap", "overlap_moe_expert_parallel_comm goes with no full recomputation");
  } else if (l.recompute == Recompute::selective && l.modules.moe) {
    note("megatron", "ep-overlap", "overlap_moe_expert_parallel_comm goes with no recomputation of moe");
  } else if (m.mtp.size() > 1) {
    note("megatron", "ep-overlap", "overlap_moe_expert_parallel_comm takes one MTP layer at most");
  }
}

}  // namespace

std::vector<FrameworkNote> framework_notes(const Layout& l, const Model& m, const Workload& w) {
  std::vector<FrameworkNote> out;
  const auto note = [&](const char* framework, const char* word, const std::string& why) {
    out.push_back({framework, "refuses: " + why, word});
  };
  for (const Layer& layer : m.layers) {
    const Attention& a = layer.attention;
    if (a.kind != AttentionKind::grouped_query || a.kv_heads % l.tp == 0) continue;
    note("megatron", "tp", "num_query_groups (" + n(a.kv_heads) + ") must be a multiple of tp (" + n(l.tp) + ")");
    break;
  }
  if (m.has_moe() && l.tp > 1 && !l.sequence_parallel()) {
    note("megatron", "sp", "experts with tensor parallelism need sequence parallelism in training");
  }
  if (m.has_moe()) exchange_notes(l, m, note);
  if (l.zero_stage() >= 2)
    note("megatron", "zero", "zero" + n(l.zero_stage()) + " needs Megatron-FSDP; the distributed optimizer is zero1");
  if (l.pp == 1) return out;
  ScheduleQuestion q;
  q.ranks = l.pp;
  q.microbatches = static_cast<int>(std::min<std::int64_t>(microbatches(l, w), 1 << 20));
  q.chunks = l.slices_per_rank();
  q.group = l.group;
  q.overlap_pairs = l.ep_overlap == EpOverlap::batch_1f1b;
  for (const ScheduleNote& s : schedule_notes(l.schedule_name(), q)) {
    const bool said =
        std::any_of(out.begin(), out.end(), [&](const FrameworkNote& f) { return f.framework == s.framework; });
    if (s.refuses && !said) out.push_back({s.framework, s.note, "schedule"});
  }
  return out;
}

}  // namespace shardplan
