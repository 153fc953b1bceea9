#include "layouts/step/changes.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include "base/errors.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {
namespace {

/// Words of a canonical text.
std::vector<std::string> words(const Layout& l) {
  std::istringstream in(layout_text(l));
  std::vector<std::string> out;
  for (std::string w; in >> w;) out.push_back(w);
  return out;
}

std::string joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& w : list) out += (out.empty() ? "" : " ") + w;
  return out;
}

/// "zero" of "zero3", "recompute" of "recompute=full".
std::string name_of(const std::string& word) {
  return word.substr(0, std::min(word.find_first_of("=0123456789"), word.size()));
}

/// The word of this name as `l` has it, where its canonical text leaves it out; "" where no default has a word.
std::string silent_word(const std::string& name, const Layout& l) {
  if (name == "zero") return "zero" + std::to_string(l.zero_stage());
  if (name == "nosp") return "sp";
  if (name == "recompute") return "recompute=none";
  if (name == "schedule") return "schedule=" + l.schedule_name();
  for (const char* degree : {"tp", "cp", "pp", "vpp", "dp", "ep", "etp", "mbs"})
    if (name == degree) return name + "1";
  return "";
}

/// The words that differ: "pp4 dp32 instead of pp8 dp16". A default that one of the texts leaves out is named.
std::string difference(const Layout& from, const Layout& to) {
  const std::vector<std::string> before = words(from), after = words(to);
  std::vector<std::string> added, gone;
  const auto lists = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  const auto names = [](const std::vector<std::string>& list, const std::string& name) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& w) { return name_of(w) == name; });
  };
  for (const std::string& word : after) {
    const std::string silent = names(before, name_of(word)) ? "" : silent_word(name_of(word), from);
    if (word == silent || lists(before, word)) continue;
    added.push_back(word);
    if (!silent.empty() && name_of(word) != "dp") gone.push_back(silent);
  }
  for (const std::string& word : before) {
    const std::string silent = names(after, name_of(word)) ? "" : silent_word(name_of(word), to);
    if (word == silent || lists(after, word)) continue;
    gone.push_back(word);
    if (!silent.empty()) added.push_back(silent);
  }
  if (added.empty()) return "without " + joined(gone);
  return joined(added) + (gone.empty() ? "" : " instead of " + joined(gone));
}

class ChangeTrial {
 public:
  ChangeTrial(const StepQuestion& q, const MemoryOptions& memory, const StepReport& now, const MemoryReport& held)
      : q_(q), memory_(memory), now_(now), held_(held), base_(canonical(q.layout)) {
    seen_.insert(layout_text(base_));
    q_.options.all_ranks = q_.options.keep_trace = false;
  }

  ChangeReport run() {
    degrees();
    pipeline();
    work();
    communication();
    network();
    std::stable_sort(out_.changes.begin(), out_.changes.end(),
                     [](const Change& a, const Change& b) { return a.step_time_s < b.step_time_s; });
    return out_;
  }

 private:
  enum class Outcome { kept, illegal, too_large, repeated };

  Outcome layout(Layout l, const std::function<void(Change&)>& mark = {}) {
    l = canonical(l);
    if (!seen_.insert(layout_text(l)).second) return Outcome::repeated;
    ++out_.tried;
    try {
      if (l.gpus() != base_.gpus() || refuse_layout(l, *q_.model, q_.workload, base_.gpus()))
        throw InputError("layout", "illegal");
      StepQuestion q = q_;
      q.layout = l;
      const MemoryReport m = memory_of(*q.model, q.pricer->cluster(), l, q.workload, routed(l));
      if (!m.fits) {
        ++out_.too_large;
        return Outcome::too_large;
      }
      Change c;
      c.what = difference(base_, l);
      keep(c, q, m, mark);
      return Outcome::kept;
    } catch (const InputError&) {
      ++out_.illegal;
      return Outcome::illegal;
    }
  }

  /// What the routing's skew adds to memory depends on the layout's expert ranks.
  MemoryOptions routed(const Layout& l) const {
    MemoryOptions out = memory_;
    out.load = routed_load(q_.options.routing, *q_.model, l, q_.pricer->cluster());
    return out;
  }

  void keep(Change c, const StepQuestion& q, const MemoryReport& m, const std::function<void(Change&)>& mark) {
    c.layout = layout_text(q.layout);
    c.step_time_s = simulate_step(q).step_time_s;
    c.gain = 1 - c.step_time_s / now_.step_time_s;
    c.memory_bytes = m.peak_bytes();
    c.memory_change = m.peak_bytes() - held_.peak_bytes();
    const auto lists = [](const auto& list, const auto& one) {
      return list.empty() || std::find(list.begin(), list.end(), one) != list.end();
    };
    c.in_stack =
        (q.layout.schedule_name() == base_.schedule_name() || lists(q.stack.schedules, q.layout.schedule_name())) &&
        (q.layout.zero_stage() == base_.zero_stage() || lists(q.stack.zero_stages, q.layout.zero_stage())) &&
        (overlap_of(q.layout) == overlap_of(base_) || overlap_of(q.layout) == q.stack.tp_overlap ||
         overlap_of(q.layout) == q.stack.plan_tp_overlap);
    if (mark) mark(c);
    out_.changes.push_back(std::move(c));
  }

  TpOverlap overlap_of(const Layout& l) const { return l.tp_overlap.value_or(q_.stack.tp_overlap); }

  /// dp takes what a degree leaves.
  void degree(int Layout::* member, bool up, bool with_dp) {
    Layout l = base_;
    const int now = l.*member;
    if (up) {
      if (with_dp && l.dp % 2 != 0) return;
      l.*member = now * 2;
      if (with_dp) l.dp /= 2;
    } else {
      if (now % 2 != 0) return;
      l.*member = now / 2;
      if (with_dp) l.dp *= 2;
    }
    layout(l);
  }

  void degrees() {
    for (const bool up : {true, false}) {
      for (int Layout::* member : {&Layout::tp, &Layout::pp, &Layout::cp}) degree(member, up, true);
      for (int Layout::* member : {&Layout::ep, &Layout::mbs}) degree(member, up, false);
    }
  }

  void pipeline() {
    if (base_.pp == 1) return;
    for (const int step : {1, -1}) {
      for (int v = base_.vpp + step; v >= 1 && v <= 2 * base_.vpp + 8; v += step) {
        Layout l = base_;
        l.vpp = v;
        if (base_.vpp == 1 || v == 1) l.schedule.clear();
        const Outcome o = layout(l);
        if (o == Outcome::kept || o == Outcome::too_large) break;
      }
    }
    for (const char* name : {"1f1b", "zb-h1", "zb-v", "dualpipe"}) {
      Layout l = base_;
      l.schedule = name;
      l.vpp = 1;
      layout(l);
    }
  }

  void work() {
    const auto recompute = [&](Recompute kind, int layers, const char* module) {
      Layout l = base_;
      l.recompute = kind;
      l.recompute_layers = layers;
      l.modules = {};
      const std::string name = module;
      l.modules.core_attn = name == "core_attn";
      l.modules.layernorm = name == "layernorm";
      layout(l);
    };
    const int held = static_cast<int>((q_.model->layer_count() + base_.pp - 1) / base_.pp);
    recompute(Recompute::none, 0, "");
    recompute(Recompute::selective, 0, "core_attn");
    recompute(Recompute::selective, 0, "layernorm");
    if (held > 1) recompute(Recompute::full, (held + 1) / 2, "");
    recompute(Recompute::full, 0, "");
    Layout l = base_;
    l.cuda_graphs = "full";
    layout(l);
    l = base_;
    l.fused_loss = !base_.fused_loss.value_or(false);
    if (*l.fused_loss) layout(l);
  }

  void communication() {
    for (int zero = 0; zero <= 3; ++zero) {
      Layout l = base_;
      l.zero = zero;
      if (zero < 3) {
        l.reshard.reset();
        l.prefetch.reset();
        l.wrap.reset();
      }
      layout(l);
    }
    Layout l = base_;
    if (base_.tp > 1) {
      for (const TpOverlap mode : {TpOverlap::none, TpOverlap::bulk, TpOverlap::async}) {
        if (mode == base_.tp_overlap.value_or(q_.stack.tp_overlap)) continue;
        l = base_;
        l.tp_overlap = mode;
        layout(l);
      }
      l = base_;
      l.sp = !base_.sequence_parallel();
      layout(l);
    }
    if (base_.cp > 1) {
      for (const ContextParallel by : {ContextParallel::ring, ContextParallel::all_gather, ContextParallel::ulysses}) {
        if (by == base_.cp_by.value_or(q_.stack.cp_by)) continue;
        l = base_;
        l.cp_by = by;
        layout(l);
      }
    }
    if (q_.model->has_moe() && base_.ep > 1) {
      l = base_;
      l.transport = Transport::deepep;
      layout(l);
      for (const EpOverlap overlap : {EpOverlap::shared, EpOverlap::batch_1f1b}) {
        l = base_;
        l.ep_overlap = overlap;
        layout(l);
      }
    }
    if (base_.dp > 1 && base_.grad_reduce_fp32.value_or(q_.stack.grad_reduce_bytes > 2)) {
      l = base_;
      l.grad_reduce_fp32 = false;
      layout(l, [](Change& c) { c.numerics = true; });
    }
  }

  /// Constants of the present fabric are kept: they describe how its collectives run, not its rate.
  void network() {
    Cluster c = q_.pricer->cluster();
    if (base_.gpus() <= c.node.nvlink_domain) return;
    c.node.nic_bytes_per_second.value *= 2;
    Pricer faster(c, q_.pricer->rates(), q_.pricer->fidelity());
    faster.set_constants(q_.pricer->constants());
    StepQuestion q = q_;
    q.layout = base_;
    q.pricer = &faster;
    Change change;
    change.what = "a network twice as fast between nodes";
    change.hardware = true;
    ++out_.tried;
    if (held_.fits) {
      keep(change, q, held_, {});
    } else {
      ++out_.too_large;
    }
  }

  StepQuestion q_;
  const MemoryOptions& memory_;
  const StepReport& now_;
  const MemoryReport& held_;
  Layout base_;
  std::set<std::string> seen_;
  ChangeReport out_;
};

}  // namespace

ChangeReport try_changes(const StepQuestion& q, const MemoryOptions& options, const StepReport& now,
                         const MemoryReport& memory) {
  return ChangeTrial(q, options, now, memory).run();
}

}  // namespace shardplan
