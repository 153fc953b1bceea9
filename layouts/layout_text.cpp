// Layout texts: read word by word through the tables of layout_words.hpp, and printed from them.
#include <algorithm>
#include <functional>
#include <set>

#include "base/errors.hpp"
#include "base/pieces.hpp"
#include "base/suggest.hpp"
#include "layouts/layout.hpp"
#include "layouts/layout_words.hpp"

namespace shardplan {

namespace {

constexpr std::int64_t kLargestCluster = std::int64_t{1} << 24;
constexpr std::size_t kLongestText = 4096;

const NumberWord* number_word(std::string_view name) {
  for (const NumberWord& w : number_words())
    if (w.name == name) return &w;
  return nullptr;
}

std::vector<std::string> all_words() {
  std::vector<std::string> out;
  for (const NumberWord& w : number_words()) out.emplace_back(w.name);
  for (const ValueWord& w : value_words()) out.emplace_back(w.name);
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
  l.*(w->member) = WordPlace{where, name}.count(word.substr(name.size()), w->least, w->most);
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
  for (const ValueWord& w : value_words()) {
    if (w.name != name) continue;
    once(seen, name, where);
    if (value.empty()) throw InputError(where, std::string(name) + ": a value is missing after \"=\"");
    w.read(l, value, WordPlace{where, name});
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

GivenWords parse_layout_words(std::string_view text, const std::string& where) {
  if (text.size() > kLongestText)
    throw InputError(where, "longer than " + std::to_string(kLongestText) + " characters");
  GivenWords out;
  for (const std::string_view token : pieces_of(text, ' ')) {
    if (token.empty()) continue;
    if (const auto equals = token.find('='); equals != std::string_view::npos) {
      read_valued(out.layout, token, equals, out.words, where);
    } else {
      read_joined(out.layout, token, out.words, where);
    }
  }
  return out;
}

Layout parse_layout(std::string_view text, std::int64_t gpus, const std::string& where) {
  auto [l, seen] = parse_layout_words(text, where);
  if (seen.empty()) throw InputError(where, "empty: expected words like \"tp8 pp4 dp16\"");
  fill_dp(l, seen.contains("dp"), gpus, where);
  return canonical(std::move(l));
}

std::string layout_text(const Layout& layout) {
  const Layout l = canonical(layout);
  std::string out;
  const auto add = [&](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
  for (const NumberWord& w : number_words()) {
    const int value = l.*(w.member);
    if (value != w.silent) add(std::string(w.name) + std::to_string(value));
  }
  if (l.sp.has_value()) add(*l.sp ? "sp" : "nosp");
  for (const ValueWord& w : value_words()) {
    if (const std::string value = w.show(l); !value.empty()) add(std::string(w.name) + "=" + value);
  }
  return out.empty() ? "dp1" : out;
}

}  // namespace shardplan
