// Expansion as in megatron/core/transformer/pipeline_parallel_layer_layout.py (Megatron-LM @d98e8a64): first all
// (...)*n, then all x*n, then the split at |. Stage k is chunk k / pp of rank k mod pp.
#include "sim/stage_layout_text.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace shardplan {
namespace {

constexpr std::size_t kMostSymbols = 1'000'000;

class Expansion {
 public:
  Expansion(std::string_view text, const std::string& where) : where_(where) {
    for (const char c : text) {
      if (c != ',') text_ += c;
    }
  }

  std::string run() {
    expand_parentheses();
    expand_symbols();
    for (const char c : text_) {
      if (std::string_view("EtmL|").find(c) == std::string_view::npos) {
        fail(std::string("\"") + c + "\" is no symbol (E embedding, t layer, m MTP, L loss, | next stage)");
      }
    }
    return std::move(text_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(where_, what); }

  void append(std::string& out, std::string_view part, std::size_t times) const {
    if (part.size() * times + out.size() > kMostSymbols) fail("more than a million symbols");
    for (std::size_t i = 0; i < times; ++i) out += part;
  }

  /// The number at text_[at], after a star; moves `at` behind it.
  std::size_t count_at(std::size_t& at) const {
    std::size_t value = 0, digits = 0;
    while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') {
      value = std::min<std::size_t>(value * 10 + static_cast<std::size_t>(text_[at] - '0'), kMostSymbols + 1);
      ++at;
      ++digits;
    }
    if (digits == 0) fail("a number is missing after *");
    if (value > kMostSymbols) fail("more than a million symbols");
    return value;
  }

  void expand_parentheses() {
    std::string out;
    for (std::size_t at = 0; at < text_.size();) {
      if (text_[at] != '(') {
        append(out, std::string_view(text_).substr(at++, 1), 1);
        continue;
      }
      const std::size_t close = text_.find_first_of("()", at + 1);
      if (close == std::string::npos || text_[close] == '(') fail("parentheses must be closed and not nested");
      const std::string_view inner = std::string_view(text_).substr(at + 1, close - at - 1);
      if (inner.empty()) fail("empty parentheses");
      at = close + 1;
      if (at >= text_.size() || text_[at] != '*') fail("parentheses need *n behind them");
      append(out, inner, count_at(++at));
    }
    text_ = std::move(out);
  }

  void expand_symbols() {
    std::string out;
    for (std::size_t at = 0; at < text_.size();) {
      const char symbol = text_[at++];
      if (symbol == '*') fail("a star needs a symbol before it");
      std::size_t times = 1;
      if (at < text_.size() && text_[at] == '*') times = count_at(++at);
      append(out, std::string_view(&symbol, 1), times);
    }
    text_ = std::move(out);
  }

  const std::string& where_;
  std::string text_;
};

/// "ttt" as "t*3"; a pair stays as it is.
std::string short_stage(const std::string& stage) {
  std::string out;
  for (std::size_t at = 0; at < stage.size();) {
    std::size_t end = at;
    while (end < stage.size() && stage[end] == stage[at]) ++end;
    const std::size_t run = end - at;
    out += run < 3 ? std::string(run, stage[at]) : std::string(1, stage[at]) + "*" + std::to_string(run);
    at = end;
  }
  return out;
}

int count(const std::vector<std::string>& stages, char symbol) {
  std::ptrdiff_t n = 0;
  for (const std::string& stage : stages) n += std::count(stage.begin(), stage.end(), symbol);
  return static_cast<int>(n);
}

std::string n(int number) { return std::to_string(number); }

std::optional<std::string> refuse_mtp(const std::vector<std::string>& stages, int pipeline_ranks) {
  bool mtp_seen = false;
  int mtp_stage = -1;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    for (const char symbol : stages[k]) {
      if (symbol == 't' && mtp_seen) return "a decoder layer stands behind an MTP layer";
      if (symbol != 'm') continue;
      mtp_seen = true;
      if (mtp_stage >= 0 && mtp_stage != static_cast<int>(k)) return "MTP layers must stand in one stage";
      mtp_stage = static_cast<int>(k);
    }
  }
  const int chunks = static_cast<int>(stages.size()) / pipeline_ranks;
  if (mtp_stage >= 0 && mtp_stage / pipeline_ranks != chunks - 1)
    return "MTP layers must stand in the last chunk of their rank";
  return std::nullopt;
}

}  // namespace

std::vector<std::string> parse_stage_layout(std::string_view text, const std::string& where) {
  if (text.empty()) throw InputError(where, "the layout is empty");
  const std::string symbols = Expansion(text, where).run();
  std::vector<std::string> stages(1);
  for (const char c : symbols) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  return stages;
}

std::string stage_layout_text(const std::vector<std::string>& stages) {
  std::string out;
  const std::size_t last = stages.empty() ? 0 : stages.size() - 1;
  for (std::size_t at = 0; at < last;) {
    std::size_t end = at;
    while (end < last && stages[end] == stages[at]) ++end;
    const std::size_t run = end - at;
    if (run > 1) {
      out +=
          stages[at].empty() ? "|*" + std::to_string(run) : "(" + short_stage(stages[at]) + "|)*" + std::to_string(run);
    } else {
      out += short_stage(stages[at]) + "|";
    }
    at = end;
  }
  return stages.empty() ? out : out + short_stage(stages.back());
}

std::optional<std::string> refuse_stage_layout(const std::vector<std::string>& stages, int pipeline_ranks, int layers,
                                               int mtp_layers) {
  const int count_of_stages = static_cast<int>(stages.size());
  if (pipeline_ranks < 1 || count_of_stages % pipeline_ranks != 0) {
    return n(count_of_stages) + " stages do not divide by " + n(pipeline_ranks) + " pipeline ranks";
  }
  if (count(stages, 'E') != 1) return "needs exactly one E, has " + n(count(stages, 'E'));
  if (count(stages, 'L') != 1) return "needs exactly one L, has " + n(count(stages, 'L'));
  if (stages.front().empty() || stages.front().front() != 'E') return "must begin with E";
  if (stages.back().empty() || stages.back().back() != 'L') return "must end with L";
  if (count(stages, 't') != layers) return "has " + n(count(stages, 't')) + " layers, the model " + n(layers);
  if (count(stages, 'm') != mtp_layers) {
    return "has " + n(count(stages, 'm')) + " MTP layers, the model " + n(mtp_layers);
  }
  return refuse_mtp(stages, pipeline_ranks);
}

}  // namespace shardplan
