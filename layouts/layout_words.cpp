#include "layouts/layout_words.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/pieces.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "sim/schedules.hpp"

namespace shardplan {

void WordPlace::fail(const std::string& what) const { throw InputError(where, what); }

int WordPlace::count(std::string_view digits, std::int64_t least, std::int64_t most) const {
  std::int64_t n = 0;
  try {
    n = parse_count(digits, where);
  } catch (const InputError&) {
    fail(std::string(word) + ": expected a whole number, got \"" + std::string(digits) + "\"");
  }
  if (n < least || n > most) {
    fail(std::string(word) + ": " + std::to_string(n) + " is not between " + std::to_string(least) + " and " +
         std::to_string(most));
  }
  return static_cast<int>(n);
}

namespace {

constexpr std::int64_t kLargestDegree = std::int64_t{1} << 20;

// Longest name first where one begins another: none does with a digit after it.
constexpr std::array<NumberWord, 10> kNumbers{{{"tp", &Layout::tp, 1, kLargestDegree, 1},
                                               {"cp", &Layout::cp, 1, kLargestDegree, 1},
                                               {"pp", &Layout::pp, 1, kLargestDegree, 1},
                                               {"vpp", &Layout::vpp, 1, kLargestDegree, 1},
                                               {"dp", &Layout::dp, 1, kLargestDegree, 1},
                                               {"ep", &Layout::ep, 1, kLargestDegree, 1},
                                               {"etp", &Layout::etp, 1, kLargestDegree, 1},
                                               {"zero", &Layout::zero, 0, 3, -1},
                                               {"shard", &Layout::shard, 1, kLargestDegree, 0},
                                               {"mbs", &Layout::mbs, 1, kLargestDegree, 1}}};

// ---- values: recompute=full --------------------------------------------------------------------------------------

using Value = std::string_view;

template <class T, std::size_t N>
using Names = std::array<std::pair<std::string_view, T>, N>;

template <class T, std::size_t N>
T one_of(const Names<T, N>& names, Value value, const WordPlace& at) {
  std::vector<std::string> known;
  for (const auto& [name, t] : names) {
    if (name == value) return t;
    known.emplace_back(name);
  }
  std::string list;
  for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
  at.fail(std::string(at.word) + ": \"" + std::string(value) + "\" is none of " + list + did_you_mean(value, known));
}

template <class T, std::size_t N>
std::string name_in(const Names<T, N>& names, T value) {
  for (const auto& [name, t] : names)
    if (t == value) return std::string(name);
  return {};
}

constexpr Names<bool, 2> kSwitch{{{"0", false}, {"1", true}}};
constexpr Names<bool, 2> kStored{{{"bf16", false}, {"fp8", true}}};
constexpr Names<bool, 2> kReduced{{{"bf16", false}, {"fp32", true}}};
constexpr Names<ContextParallel, 3> kContext{{{"ring", ContextParallel::ring},
                                              {"all-gather", ContextParallel::all_gather},
                                              {"ulysses", ContextParallel::ulysses}}};
constexpr Names<TpOverlap, 3> kTpOverlap{
    {{"none", TpOverlap::none}, {"bulk", TpOverlap::bulk}, {"async", TpOverlap::async}}};
constexpr Names<EpOverlap, 4> kEpOverlap{{{"none", EpOverlap::none},
                                          {"shared", EpOverlap::shared},
                                          {"1f1b", EpOverlap::batch_1f1b},
                                          {"dualpipe", EpOverlap::dualpipe}}};
constexpr Names<Transport, 3> kTransport{
    {{"nccl", Transport::nccl}, {"deepep", Transport::deepep}, {"hybridep", Transport::hybridep}}};
constexpr Names<SplitKind, 4> kSplit{{{"auto", SplitKind::automatic},
                                      {"even", SplitKind::even},
                                      {"embed-loss-as-layers", SplitKind::embed_loss_as_layers},
                                      {"loss-as-layer", SplitKind::loss_as_layer}}};
constexpr Names<Axis, 4> kAxis{{{"tp", Axis::tp}, {"cp", Axis::cp}, {"dp", Axis::dp}, {"pp", Axis::pp}}};
constexpr Names<bool RecomputeModules::*, 9> kModules{{{"core_attn", &RecomputeModules::core_attn},
                                                       {"layernorm", &RecomputeModules::layernorm},
                                                       {"mla_up_proj", &RecomputeModules::mla_up_proj},
                                                       {"moe_act", &RecomputeModules::moe_act},
                                                       {"moe", &RecomputeModules::moe},
                                                       {"mlp", &RecomputeModules::mlp},
                                                       {"shared_experts", &RecomputeModules::shared_experts},
                                                       {"per-op", &RecomputeModules::per_op},
                                                       {"norm", &RecomputeModules::layernorm}}};
constexpr std::array<std::string_view, 6> kGraphModules = {"attn",           "mlp",  "moe", "moe_router",
                                                           "moe_preprocess", "mamba"};

void read_recompute(Layout& l, Value value, const WordPlace& at) {
  const auto colon = value.find(':');
  const Value kind = value.substr(0, colon);
  const bool more = colon != Value::npos;
  const Value rest = more ? value.substr(colon + 1) : Value{};
  constexpr Names<Recompute, 3> kinds{
      {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}}};
  l.recompute = one_of(kinds, kind, at);
  if (l.recompute == Recompute::none && more) at.fail("recompute=none takes nothing after it");
  if (l.recompute == Recompute::full && more) l.recompute_layers = at.count(rest, 1, kLargestDegree);
  if (l.recompute != Recompute::selective) return;
  if (!more) l.modules.core_attn = true;  // Megatron's default module
  if (!more) return;
  for (const Value name : pieces_of(rest, ',')) {
    const auto member = one_of(kModules, name, at);
    if (l.modules.*member) at.fail("recompute: module \"" + std::string(name) + "\" given twice");
    l.modules.*member = true;
  }
}

std::string show_recompute(const Layout& l) {
  if (l.recompute == Recompute::none) return {};
  if (l.recompute == Recompute::full)
    return l.recompute_layers > 0 ? "full:" + std::to_string(l.recompute_layers) : "full";
  std::string names;
  for (std::size_t i = 0; i + 1 < kModules.size(); ++i) {  // the last row is an alias
    if (l.modules.*kModules[i].second) names += (names.empty() ? "" : ",") + std::string(kModules[i].first);
  }
  return names == "core_attn" ? "selective" : "selective:" + names;
}

bool looks_like_pattern(Value value) {
  return !value.empty() && value.find_first_not_of("EtmL*|(),0123456789") == Value::npos &&
         value.find_first_of("EtmL") != Value::npos;
}

void read_split(Layout& l, Value value, const WordPlace& at) {
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  if (looks_like_pattern(value)) {
    l.split = SplitKind::pattern;
    l.split_pattern = std::string(value);
    return;
  }
  l.split = one_of(kSplit, value, at);
}

void read_offload(Layout& l, Value value, const WordPlace& at) {
  for (const Value what : pieces_of(value, ',')) {
    const auto colon = what.find(':');
    const Value kind = what.substr(0, colon);
    if (kind == "optimizer" && colon == Value::npos) {
      l.offload_optimizer = true;
    } else if (kind == "activations") {
      l.offload_activation_layers = colon == Value::npos ? -1 : at.count(what.substr(colon + 1), 1, kLargestDegree);
    } else {
      const std::vector<std::string> known = {"optimizer", "activations"};
      at.fail("offload: \"" + std::string(what) + "\" is none of optimizer, activations, activations:N" +
              did_you_mean(kind, known));
    }
  }
}

std::string show_offload(const Layout& l) {
  std::string out = l.offload_optimizer ? "optimizer" : "";
  if (l.offload_activation_layers == 0) return out;
  if (!out.empty()) out += ",";
  out += "activations";
  return l.offload_activation_layers > 0 ? out + ":" + std::to_string(l.offload_activation_layers) : out;
}

void read_graphs(Layout& l, Value value, const WordPlace& at) {
  if (value.rfind("modules:", 0) == 0) {
    std::set<Value> seen;
    for (const Value name : pieces_of(value.substr(8), ',')) {
      std::vector<std::string> known(kGraphModules.begin(), kGraphModules.end());
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        at.fail("cuda-graphs: unknown module \"" + std::string(name) + "\"" + did_you_mean(name, known));
      }
      if (!seen.insert(name).second) at.fail("cuda-graphs: module \"" + std::string(name) + "\" given twice");
    }
  } else {
    constexpr Names<int, 3> kinds{{{"none", 0}, {"full", 1}, {"per-layer", 2}}};
    one_of(kinds, value, at);
  }
  l.cuda_graphs = std::string(value);
}

void read_order(Layout& l, Value value, const WordPlace& at) {
  std::vector<Axis> order;
  for (const Value name : pieces_of(value, '-')) {
    const Axis a = one_of(kAxis, name, at);
    if (std::find(order.begin(), order.end(), a) != order.end())
      at.fail("order: \"" + std::string(name) + "\" given twice");
    order.push_back(a);
  }
  if (order.size() != 4) at.fail("order: name all of tp, cp, dp and pp, innermost first");
  l.order = std::move(order);
}

std::string show_order(const Layout& l) {
  std::string out;
  for (const Axis a : l.order) out += (out.empty() ? "" : "-") + name_in(kAxis, a);
  return out;
}

void read_schedule(Layout& l, Value value, const WordPlace& at) {
  std::vector<std::string> known;
  for (const ScheduleRow& row : schedules()) known.emplace_back(row.name);
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    at.fail("schedule: unknown schedule \"" + std::string(value) + "\"" + did_you_mean_or_list(value, known));
  }
  l.schedule = std::string(value);
}

void read_ep_overlap(Layout& l, Value value, const WordPlace& at) {
  if (value.rfind("waves", 0) == 0) {
    l.ep_overlap = EpOverlap::waves;
    l.waves = at.count(value.substr(5), 1, kLargestDegree);
    return;
  }
  l.ep_overlap = one_of(kEpOverlap, value, at);
}

std::string show_ep_overlap(const Layout& l) {
  if (!l.ep_overlap) return {};
  return *l.ep_overlap == EpOverlap::waves ? "waves" + std::to_string(l.waves) : name_in(kEpOverlap, *l.ep_overlap);
}

template <auto member, const auto& names>
void read_named(Layout& l, Value value, const WordPlace& at) {
  l.*member = one_of(names, value, at);
}
template <auto member, const auto& names>
std::string show_named(const Layout& l) {
  return l.*member ? name_in(names, *(l.*member)) : std::string();
}

constexpr std::array<ValueWord, 20> kValues{{
    {"schedule", read_schedule, [](const Layout& l) { return l.schedule; }},
    {"group", [](Layout& l, Value v, const WordPlace& at) { l.group = at.count(v, 1, kLargestDegree); },
     [](const Layout& l) { return l.group > 0 ? std::to_string(l.group) : std::string(); }},
    {"split", read_split,
     [](const Layout& l) {
       if (l.split == SplitKind::automatic) return std::string();
       return l.split == SplitKind::pattern ? l.split_pattern : name_in(kSplit, l.split);
     }},
    {"reshard", read_named<&Layout::reshard, kSwitch>, show_named<&Layout::reshard, kSwitch>},
    {"recompute", read_recompute, show_recompute},
    {"cp-by", read_named<&Layout::cp_by, kContext>, show_named<&Layout::cp_by, kContext>},
    {"tp-overlap", read_named<&Layout::tp_overlap, kTpOverlap>, show_named<&Layout::tp_overlap, kTpOverlap>},
    {"ep-overlap", read_ep_overlap, show_ep_overlap},
    {"transport", read_named<&Layout::transport, kTransport>, show_named<&Layout::transport, kTransport>},
    {"prefetch", [](Layout& l, Value v, const WordPlace& at) { l.prefetch = at.count(v, 0, 1024); },
     [](const Layout& l) { return l.prefetch ? std::to_string(*l.prefetch) : std::string(); }},
    {"wrap", [](Layout& l, Value v, const WordPlace& at) { l.wrap = at.count(v, 1, 1024); },
     [](const Layout& l) { return l.wrap ? std::to_string(*l.wrap) : std::string(); }},
    {"offload", read_offload, show_offload},
    {"act-store", read_named<&Layout::act_store_fp8, kStored>, show_named<&Layout::act_store_fp8, kStored>},
    {"cuda-graphs", read_graphs, [](const Layout& l) { return l.cuda_graphs.value_or(""); }},
    {"compile", read_named<&Layout::compile, kSwitch>, show_named<&Layout::compile, kSwitch>},
    {"grad-reduce", read_named<&Layout::grad_reduce_fp32, kReduced>, show_named<&Layout::grad_reduce_fp32, kReduced>},
    {"grad-accumulate", read_named<&Layout::grad_accumulate_fp32, kReduced>,
     show_named<&Layout::grad_accumulate_fp32, kReduced>},
    {"fused-loss", read_named<&Layout::fused_loss, kSwitch>, show_named<&Layout::fused_loss, kSwitch>},
    {"delay-wgrad", read_named<&Layout::delay_wgrad, kSwitch>, show_named<&Layout::delay_wgrad, kSwitch>},
    {"order", read_order, show_order},
}};

}  // namespace

std::span<const NumberWord> number_words() { return kNumbers; }
std::span<const ValueWord> value_words() { return kValues; }

}  // namespace shardplan
