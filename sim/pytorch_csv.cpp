#include "sim/pytorch_csv.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/errors.hpp"
#include "base/pieces.hpp"
#include "sim/messages.hpp"
#include "sim/pass_index.hpp"
#include "sim/pass_text.hpp"
#include "sim/placement.hpp"

namespace shardplan {
namespace {

constexpr int kLargestNumber = 1'000'000;

// --- writing ---------------------------------------------------------------------------------------------------------

std::string cell_of(const Pass& pass) {
  return pass_text(pass) + (pass.kind == PassKind::overlapped ? "OVERLAP_F_B" : "");
}

const char* word_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::send_forward:
      return "SEND_F";
    case ActionKind::receive_forward:
      return "RECV_F";
    case ActionKind::send_backward:
      return "SEND_B";
    case ActionKind::receive_backward:
      return "RECV_B";
    case ActionKind::unshard:
      return "UNSHARD";
    case ActionKind::reshard:
      return "RESHARD";
    case ActionKind::reduce_grad:
      return "REDUCE_GRAD";
    case ActionKind::compute:
      break;
  }
  return "";
}

std::string cell_of(const Action& action, const std::vector<Pass>& list) {
  if (action.kind == ActionKind::compute) return cell_of(list[action.position]);
  return std::to_string(action.stage) + word_of(action.kind) +
         (action.microbatch >= 0 ? std::to_string(action.microbatch) : "");
}

void add_cell(std::string& row, const std::string& cell) {
  if (!row.empty()) row += ',';
  row += cell;
}

void check_one_chain(const Order& order) {
  for (int s = 0; s < order.stages(); ++s) {
    if (order.next[s] != (s + 1 < order.stages() ? s + 1 : -1)) {
      throw InputError("--write-order",
                       "PyTorch's format has one chain of stages: an order in two directions cannot be written");
    }
  }
}

// --- reading ---------------------------------------------------------------------------------------------------------

/// A cell that is no pass: its word, stage and micro-batch (-1 = none).
struct Message {
  ActionKind kind;
  int stage, microbatch;
  auto key() const { return std::tuple{kind, stage, microbatch}; }
};

struct Place {
  std::string where;
  int row, column;
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(where + ": row " + std::to_string(row + 1) + ", cell " + std::to_string(column + 1), what);
  }
};

/// Takes a cell apart from the left.
class Cell {
 public:
  Cell(std::string_view text, const Place& place) : whole_(text), rest_(text), place_(place) {}

  int number(const char* name) {
    std::size_t digits = 0;
    int value = 0;
    while (digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9') {
      value = value * 10 + (rest_[digits] - '0');
      if (value > kLargestNumber) place_.fail(quoted() + ": the " + name + " is too large");
      ++digits;
    }
    if (digits == 0) place_.fail(quoted() + ": expected a " + name);
    rest_.remove_prefix(digits);
    return value;
  }
  bool take(std::string_view word) {
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) place_.fail(quoted() + ": expected \"" + std::string(word) + "\"");
  }
  void expect_end() const {
    if (!rest_.empty()) place_.fail(quoted() + ": \"" + std::string(rest_.substr(0, 40)) + "\" is left over");
  }
  std::string quoted() const { return "\"" + std::string(whole_.substr(0, 60)) + "\""; }
  const Place& place() const { return place_; }

 private:
  std::string_view whole_, rest_;
  const Place& place_;
};

std::optional<PassKind> take_pass_kind(Cell& cell) {
  if (cell.take("F")) return PassKind::forward;
  if (cell.take("I")) return PassKind::input_grad;
  if (cell.take("W")) return PassKind::weight_grad;
  if (cell.take("B")) return PassKind::backward;
  return std::nullopt;
}

Pass parse_pair(Cell& cell) {
  Pass half[2];
  for (int h = 0; h < 2; ++h) {
    half[h].stage = cell.number("stage");
    half[h].kind = take_pass_kind(cell).value_or(PassKind::overlapped);
    if (half[h].kind == PassKind::overlapped) cell.place().fail(cell.quoted() + ": expected F or B");
    half[h].microbatch = cell.number("micro-batch");
    cell.expect(h == 0 ? ";" : ")");
  }
  cell.expect("OVERLAP_F_B");
  if (half[0].kind == PassKind::backward && half[1].kind == PassKind::forward) std::swap(half[0], half[1]);
  if (half[0].kind != PassKind::forward || half[1].kind != PassKind::backward) {
    cell.place().fail(cell.quoted() + ": an overlapped pair is one F and one B");
  }
  return overlapped_pass(half[0], half[1]);
}

/// A pass, or a message.
void parse_cell(Cell& cell, std::vector<Pass>& passes, std::vector<Message>& messages) {
  if (cell.take("(")) {
    passes.push_back(parse_pair(cell));
    cell.expect_end();
    return;
  }
  const int stage = cell.number("stage");
  for (const ActionKind kind : {ActionKind::unshard, ActionKind::reshard, ActionKind::reduce_grad}) {
    if (cell.take(word_of(kind))) {
      cell.expect_end();
      messages.push_back({kind, stage, -1});
      return;
    }
  }
  for (const ActionKind kind : {ActionKind::send_forward, ActionKind::receive_forward, ActionKind::send_backward,
                                ActionKind::receive_backward}) {
    if (cell.take(word_of(kind))) {
      messages.push_back({kind, stage, cell.number("micro-batch")});
      cell.expect_end();
      return;
    }
  }
  const auto kind = take_pass_kind(cell);
  if (!kind) cell.place().fail(cell.quoted() + ": expected F, I, W, B or one of PyTorch's other words after the stage");
  passes.push_back({*kind, stage, cell.number("micro-batch"), -1, -1});
  cell.expect_end();
}

std::string_view stripped(std::string_view text) {
  const char* blank = " \t\r";
  const std::size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

struct Rows {
  std::vector<std::vector<Pass>> passes;
  std::vector<std::vector<Message>> messages;
  std::optional<Place> blank;  // the first empty cell inside a row
};

Rows parse_rows(std::string_view text, const std::string& where) {
  auto lines = pieces_of(text, '\n');
  while (!lines.empty() && stripped(lines.back()).empty()) lines.pop_back();
  Rows rows;
  for (std::size_t r = 0; r < lines.size(); ++r) {
    rows.passes.emplace_back();
    rows.messages.emplace_back();
    const auto cells = pieces_of(lines[r], ',');
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const Place place{where, static_cast<int>(r), static_cast<int>(c)};
      const std::string_view text_of_cell = stripped(cells[c]);
      if (text_of_cell.empty()) {
        if (!rows.blank) rows.blank = place;
        continue;
      }
      Cell cell(text_of_cell, place);
      parse_cell(cell, rows.passes.back(), rows.messages.back());
    }
  }
  return rows;
}

/// The chain, and which rank holds each of its stages.
void infer_stages(Order& order, const std::string& where) {
  std::map<int, int> rank_of;
  int microbatches = 0;
  const auto see = [&](int rank, int stage, int microbatch) {
    const auto [at, fresh] = rank_of.emplace(stage, rank);
    if (!fresh && at->second != rank) {
      throw InputError(where, "stage " + std::to_string(stage) + " stands on rank " + std::to_string(at->second) +
                                  " and on rank " + std::to_string(rank));
    }
    microbatches = std::max(microbatches, microbatch + 1);
  };
  for (int r = 0; r < order.ranks; ++r) {
    for (const Pass& pass : order.passes[r]) {
      see(r, pass.stage, pass.microbatch);
      if (pass.kind == PassKind::overlapped) see(r, pass.stage2, pass.microbatch2);
    }
  }
  if (rank_of.empty()) throw InputError(where, "the file holds no pass");
  const int stages = rank_of.rbegin()->first + 1;
  order.microbatches = microbatches;
  for (int s = 0; s < stages; ++s) {
    const auto at = rank_of.find(s);
    if (at == rank_of.end()) throw InputError(where, "stage " + std::to_string(s) + " is on no rank");
    order.rank_of_stage.push_back(at->second);
    order.layer_slot.push_back(s);
    order.previous.push_back(s - 1);
    order.next.push_back(s + 1 < stages ? s + 1 : -1);
  }
}

/// The messages of the file must be those that its passes need.
void check_messages(const Order& order, const Rows& rows, const std::string& where) {
  const auto lists = lower_messages(order);
  for (int r = 0; r < order.ranks; ++r) {
    std::multiset<std::tuple<ActionKind, int, int>> needed;
    for (const Action& action : lists[r]) {
      if (action.kind != ActionKind::compute) needed.emplace(action.kind, action.stage, action.microbatch);
    }
    for (const Message& message : rows.messages[r]) {
      if (message.microbatch < 0) continue;
      const auto at = needed.find(message.key());
      if (at == needed.end()) {
        throw InputError(where + ": row " + std::to_string(r + 1),
                         std::to_string(message.stage) + word_of(message.kind) + std::to_string(message.microbatch) +
                             " is not needed by any pass, or stands twice");
      }
      needed.erase(at);
    }
    if (!needed.empty()) {
      const auto& [kind, stage, microbatch] = *needed.begin();
      throw InputError(where + ": row " + std::to_string(r + 1),
                       std::to_string(stage) + word_of(kind) + std::to_string(microbatch) + " is missing");
    }
  }
}

}  // namespace

std::string pytorch_csv(const Order& order, CsvKind kind) {
  check_one_chain(order);
  std::string text;
  const auto lists = kind == CsvKind::compute_comms ? lower_with_parameters(order) : std::vector<std::vector<Action>>{};
  for (int r = 0; r < order.ranks; ++r) {
    std::string row;
    if (kind == CsvKind::compute_only) {
      for (const Pass& pass : order.passes[r]) add_cell(row, cell_of(pass));
    } else {
      for (const Action& action : lists[r]) add_cell(row, cell_of(action, order.passes[r]));
    }
    text += row + "\n";
  }
  return text;
}

Order parse_pytorch_csv(std::string_view text, const std::string& where) {
  Rows rows = parse_rows(text, where);
  Order order;
  order.ranks = static_cast<int>(rows.passes.size());
  order.passes = rows.passes;
  infer_stages(order, where);
  const std::int64_t cells = std::int64_t{order.stages()} * order.microbatches;
  std::int64_t passes = 0;
  for (const auto& list : order.passes) passes += static_cast<std::int64_t>(list.size());
  if (cells > passes) throw InputError(where, "there are fewer passes than stages x micro-batches: some are missing");
  PassIndex checked(order);
  const bool with_messages =
      std::any_of(rows.messages.begin(), rows.messages.end(), [](const auto& list) { return !list.empty(); });
  if (with_messages) {
    if (rows.blank) rows.blank->fail("an empty cell in a list with messages (PyTorch asserts that there is none)");
    check_messages(order, rows, where);
  }
  return order;
}

}  // namespace shardplan
