// Layout texts. One table of words serves reading, printing and "did you mean": a new word is one row.
#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <span>

#include "base/errors.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "layouts/layout.hpp"

namespace shardplan {

namespace {

constexpr std::int64_t kLargestDegree = std::int64_t{1} << 20;
constexpr std::int64_t kLargestCluster = std::int64_t{1} << 24;
constexpr std::size_t kLongestText = 4096;

/// Where a value stands, for errors.
struct Place {
  const std::string& where;
  std::string_view word;

  [[noreturn]] void fail(const std::string& what) const { throw InputError(where, what); }
  int count(std::string_view digits, std::int64_t least, std::int64_t most) const {
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
};

// ---- number words: tp8 -------------------------------------------------------------------------------------------

struct NumberWord {
  std::string_view name;
  int Layout::* member;
  int least;
  std::int64_t most;
  int silent;  // the value that is not printed
};

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

const NumberWord* number_word(std::string_view name) {
  for (const NumberWord& w : kNumbers)
    if (w.name == name) return &w;
  return nullptr;
}

// ---- values: recompute=full --------------------------------------------------------------------------------------

using Value = std::string_view;

template <class T, std::size_t N>
using Names = std::array<std::pair<std::string_view, T>, N>;

template <class T, std::size_t N>
T one_of(const Names<T, N>& names, Value value, const Place& at) {
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
constexpr std::array<std::string_view, 15> kScheduleNames = {
    "gpipe",  "1f1b",  "interleaved-1f1b", "looped-bfs", "zb-h1",    "zb-h2",      "interleaved-zb", "zb-v",
    "v-half", "v-min", "1f1b-v",           "zb-auto",    "dualpipe", "dualpipe-v", "chimera"};
constexpr std::array<std::string_view, 6> kGraphModules = {"attn",           "mlp",  "moe", "moe_router",
                                                           "moe_preprocess", "mamba"};

std::vector<std::string_view> pieces(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (std::size_t from = 0;;) {
    const auto to = text.find(separator, from);
    out.push_back(text.substr(from, to - from));
    if (to == std::string_view::npos) return out;
    from = to + 1;
  }
}

void read_recompute(Layout& l, Value value, const Place& at) {
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
  for (const Value name : pieces(rest, ',')) {
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

void read_split(Layout& l, Value value, const Place& at) {
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  if (looks_like_pattern(value)) {
    l.split = SplitKind::pattern;
    l.split_pattern = std::string(value);
    return;
  }
  l.split = one_of(kSplit, value, at);
}

void read_offload(Layout& l, Value value, const Place& at) {
  for (const Value what : pieces(value, ',')) {
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

void read_graphs(Layout& l, Value value, const Place& at) {
  if (value.rfind("modules:", 0) == 0) {
    std::set<Value> seen;
    for (const Value name : pieces(value.substr(8), ',')) {
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

void read_order(Layout& l, Value value, const Place& at) {
  std::vector<Axis> order;
  for (const Value name : pieces(value, '-')) {
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

void read_schedule(Layout& l, Value value, const Place& at) {
  const std::vector<std::string> known(kScheduleNames.begin(), kScheduleNames.end());
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    at.fail("schedule: unknown schedule \"" + std::string(value) + "\"" + did_you_mean_or_list(value, known));
  }
  l.schedule = std::string(value);
}

void read_ep_overlap(Layout& l, Value value, const Place& at) {
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
void read_named(Layout& l, Value value, const Place& at) {
  l.*member = one_of(names, value, at);
}
template <auto member, const auto& names>
std::string show_named(const Layout& l) {
  return l.*member ? name_in(names, *(l.*member)) : std::string();
}

struct ValueWord {
  std::string_view name;
  void (*read)(Layout&, Value, const Place&);
  std::string (*show)(const Layout&);  // "" = nothing to print
};

constexpr std::array<ValueWord, 19> kValues{{
    {"schedule", read_schedule, [](const Layout& l) { return l.schedule; }},
    {"group", [](Layout& l, Value v, const Place& at) { l.group = at.count(v, 1, kLargestDegree); },
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
    {"prefetch", [](Layout& l, Value v, const Place& at) { l.prefetch = at.count(v, 0, 1024); },
     [](const Layout& l) { return l.prefetch ? std::to_string(*l.prefetch) : std::string(); }},
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

std::vector<std::string> all_words() {
  std::vector<std::string> out;
  for (const NumberWord& w : kNumbers) out.emplace_back(w.name);
  for (const ValueWord& w : kValues) out.emplace_back(w.name);
  out.insert(out.end(), {"sp", "nosp"});
  return out;
}

[[noreturn]] void fail_unknown(std::string_view word, std::string_view name, const std::string& where) {
  throw InputError(where, "unknown word \"" + std::string(word) + "\"" + did_you_mean_or_list(name, all_words()));
}

void once(std::set<std::string, std::less<>>& seen, std::string_view name, const std::string& where) {
  if (!seen.emplace(name).second) throw InputError(where, std::string(name) + " given twice");
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "tp8", "sp", "nosp".
void read_plain(Layout& l, std::string_view word, std::set<std::string, std::less<>>& seen, const std::string& where) {
  if (word == "sp" || word == "nosp") {
    once(seen, "sp", where);
    l.sp = word == "sp";
    return;
  }
  const auto digits =
      std::find_if(word.begin(), word.end(), [](char c) { return is_digit(c) || c == '-' || c == '.'; });
  const std::string_view name = word.substr(0, static_cast<std::size_t>(digits - word.begin()));
  const NumberWord* w = number_word(name);
  if (w == nullptr) fail_unknown(word, name, where);
  if (digits == word.end())
    throw InputError(where, std::string(name) + ": a number is missing, as in " + std::string(name) + "2");
  once(seen, name, where);
  l.*(w->member) = Place{where, name}.count(word.substr(name.size()), w->least, w->most);
}

/// Splits "tp8,pp4" and "tp8xpp4": a comma or x between a digit and a letter.
void read_joined(Layout& l, std::string_view token, std::set<std::string, std::less<>>& seen,
                 const std::string& where) {
  std::size_t from = 0;
  for (std::size_t i = 0; i <= token.size(); ++i) {
    const bool comma = i < token.size() && token[i] == ',';
    const bool cross = i < token.size() && token[i] == 'x' && i > from && is_digit(token[i - 1]);
    if (i < token.size() && !comma && !cross) continue;
    if (i == from) throw InputError(where, "a word is missing in \"" + std::string(token) + "\"");
    read_plain(l, token.substr(from, i - from), seen, where);
    from = i + 1;
  }
}

void read_valued(Layout& l, std::string_view token, std::size_t equals, std::set<std::string, std::less<>>& seen,
                 const std::string& where) {
  const std::string_view name = token.substr(0, equals);
  const std::string_view value = token.substr(equals + 1);
  if (number_word(name) != nullptr) {
    throw InputError(where, std::string(name) + ": the number follows without \"=\", as in " + std::string(name) + "2");
  }
  for (const ValueWord& w : kValues) {
    if (w.name != name) continue;
    once(seen, name, where);
    if (value.empty()) throw InputError(where, std::string(name) + ": a value is missing after \"=\"");
    w.read(l, value, Place{where, name});
    return;
  }
  fail_unknown(token, name, where);
}

void fill_dp(Layout& l, bool given, std::int64_t gpus, const std::string& where) {
  const std::int64_t fixed = std::int64_t{l.tp} * l.cp * l.pp;  // at most 2^60
  if (!given && gpus > 0) {
    if (fixed > gpus || gpus % fixed != 0) {
      throw InputError(where, std::to_string(gpus) + " GPUs are not a multiple of tp*cp*pp = " + std::to_string(fixed));
    }
    l.dp = static_cast<int>(gpus / fixed);
  }
  if (fixed > kLargestCluster || fixed * l.dp > kLargestCluster) {
    throw InputError(where, "more than " + std::to_string(kLargestCluster) + " GPUs");
  }
  const std::int64_t expert = std::int64_t{l.etp} * l.ep;
  if (expert > fixed * l.dp) {
    throw InputError(where, "etp*ep = " + std::to_string(expert) + " ranks, but there are " +
                                std::to_string(fixed * l.dp) + " GPUs");
  }
  if (given && gpus > 0 && fixed * l.dp != gpus) {
    throw InputError(
        where, "tp*cp*pp*dp = " + std::to_string(fixed * l.dp) + ", but there are " + std::to_string(gpus) + " GPUs");
  }
}

}  // namespace

Layout canonical(Layout l) {
  if (l.zero >= 0 && l.zero == (l.dp > 1 ? 1 : 0)) l.zero = -1;
  if (l.tp == 1 || l.sp.value_or(true)) l.sp.reset();
  if (l.placement() != Placement::loop && l.vpp == 2) l.vpp = 1;
  if (l.schedule == (l.vpp > 1 ? "interleaved-1f1b" : "1f1b")) l.schedule.clear();
  if (l.order == std::vector<Axis>{Axis::tp, Axis::cp, Axis::dp, Axis::pp}) l.order.clear();
  return l;
}

Layout parse_layout(std::string_view text, std::int64_t gpus, const std::string& where) {
  if (text.size() > kLongestText)
    throw InputError(where, "longer than " + std::to_string(kLongestText) + " characters");
  Layout l;
  std::set<std::string, std::less<>> seen;
  for (const std::string_view token : pieces(text, ' ')) {
    if (token.empty()) continue;
    if (const auto equals = token.find('='); equals != std::string_view::npos) {
      read_valued(l, token, equals, seen, where);
    } else {
      read_joined(l, token, seen, where);
    }
  }
  if (seen.empty()) throw InputError(where, "empty: expected words like \"tp8 pp4 dp16\"");
  fill_dp(l, seen.contains("dp"), gpus, where);
  return canonical(std::move(l));
}

std::string layout_text(const Layout& layout) {
  const Layout l = canonical(layout);
  std::string out;
  const auto add = [&](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
  for (const NumberWord& w : kNumbers) {
    const int value = l.*(w.member);
    if (value != w.silent) add(std::string(w.name) + std::to_string(value));
  }
  if (l.sp.has_value()) add(*l.sp ? "sp" : "nosp");
  for (const ValueWord& w : kValues) {
    if (const std::string value = w.show(l); !value.empty()) add(std::string(w.name) + "=" + value);
  }
  return out.empty() ? "dp1" : out;
}

}  // namespace shardplan
