#include "sim/replay_compile.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.hpp"
#include "sim/messages.hpp"
#include "sim/pass_index.hpp"
#include "sim/pass_text.hpp"

namespace shardplan {
namespace {

struct Edge {
  std::int32_t from, to, hop;
};

/// Nodes by id: passes as PassIndex numbers them, then messages.
class Compiler {
 public:
  Compiler(const Order& order, const ReplayOptions& options) : order_(order), options_(options), index_(order) {
    out_.keys.stages = order.stages();
    out_.passes = index_.passes();
    out_.microbatches = order.microbatches;
    nodes_ = index_.passes();
  }

  ReplayNodes run() {
    add_passes();
    if (options_.p2p == P2pMode::rendezvous) add_messages();
    for (int id = 0; id < index_.passes(); ++id) add_waits(id);
    sort();
    renumber();
    count_peaks();
    return std::move(out_);
  }

 private:
  // --- nodes ---------------------------------------------------------------------------------------------------
  void add_passes() {
    std::map<std::pair<int, int>, int> pairs;
    for (int id = 0; id < nodes_; ++id) {
      const Pass& pass = index_.pass(id);
      int key = out_.keys.single(pass.stage, pass.kind);
      if (pass.kind == PassKind::overlapped) {
        const auto [at, fresh] = pairs.emplace(std::pair{pass.stage, pass.stage2}, static_cast<int>(pairs.size()));
        if (fresh) {
          out_.pair_forward.push_back(pass.stage);
          out_.pair_backward.push_back(pass.stage2);
        }
        key = out_.keys.pair(at->second);
      }
      key_.push_back(key);
      if (index_.position(id) > 0) edges_.push_back({id - 1, id, 0});
    }
    out_.keys.pairs = static_cast<int>(pairs.size());
  }

  /// One node a message: it starts when its pass has ended and both streams are free, and occupies both while it lasts.
  void add_messages() {
    const std::size_t cells = static_cast<std::size_t>(order_.stages()) * order_.microbatches;
    sent_forward_.assign(cells, -1);
    sent_backward_.assign(cells, -1);
    std::map<std::pair<int, int>, int> stream_end;  // (rank, stream) -> the last message on it
    const auto lists = lower_messages(order_);
    for (const auto& list : lists) {
      for (const Action& action : list) add_send(action);
    }
    for (int r = 0; r < order_.ranks; ++r) {
      for (const Action& action : lists[r]) {
        if (action.kind == ActionKind::compute) continue;  // the other kinds do not occur in lower_messages
        const int node = message_of(action);
        const int stream = options_.stream_per_peer ? action.peer : -1;
        const auto [at, fresh] = stream_end.emplace(std::pair{r, stream}, node);
        if (!fresh) edges_.push_back({at->second, node, 0});
        at->second = node;
      }
    }
  }

  void add_send(const Action& action) {
    const bool forward = action.kind == ActionKind::send_forward;
    if (!forward && action.kind != ActionKind::send_backward) return;
    const int from =
        forward ? index_.forward(action.stage, action.microbatch) : index_.backward(action.stage, action.microbatch);
    const int hop = forward ? out_.keys.hop_forward(action.stage) : out_.keys.hop_backward(action.stage);
    (forward ? sent_forward_ : sent_backward_)[cell(action.stage, action.microbatch)] = nodes_;
    edges_.push_back({from, nodes_, 0});
    key_.push_back(out_.keys.message(hop));
    message_from_.push_back(from);
    ++nodes_;
  }

  int message_of(const Action& action) const {
    switch (action.kind) {
      case ActionKind::send_forward:
        return sent_forward_[cell(action.stage, action.microbatch)];
      case ActionKind::send_backward:
        return sent_backward_[cell(action.stage, action.microbatch)];
      case ActionKind::receive_forward:
        return sent_forward_[cell(order_.previous[action.stage], action.microbatch)];
      case ActionKind::receive_backward:
        return sent_backward_[cell(order_.next[action.stage], action.microbatch)];
      case ActionKind::compute:
      case ActionKind::unshard:
      case ActionKind::reshard:
      case ActionKind::reduce_grad:
        break;  // no messages
    }
    return -1;
  }

  std::size_t cell(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * order_.microbatches + microbatch;
  }

  // --- edges ---------------------------------------------------------------------------------------------------
  void add_waits(int id) {
    const Pass& pass = index_.pass(id);
    switch (pass.kind) {
      case PassKind::forward:
        wait_forward(id, pass.stage, pass.microbatch);
        break;
      case PassKind::backward:
      case PassKind::input_grad:
        wait_backward(id, pass.stage, pass.microbatch);
        break;
      case PassKind::weight_grad:
        break;  // its input gradient stands before it on the same rank
      case PassKind::overlapped:
        wait_forward(id, pass.stage, pass.microbatch);
        wait_backward(id, pass.stage2, pass.microbatch2);
    }
  }

  void wait_forward(int id, int stage, int microbatch) {
    const int source = order_.previous[stage];
    if (source < 0) return;
    const int sent = sent_forward_.empty() ? -1 : sent_forward_[cell(source, microbatch)];
    wait(id, index_.forward(source, microbatch), sent, out_.keys.hop_forward(source));
  }

  void wait_backward(int id, int stage, int microbatch) {
    const int source = order_.next[stage];
    if (source < 0) return;
    const int sent = sent_backward_.empty() ? -1 : sent_backward_[cell(source, microbatch)];
    wait(id, index_.backward(source, microbatch), sent, out_.keys.hop_backward(source));
  }

  /// No edge where the source stands earlier on the same rank: the chain of passes implies it.
  void wait(int id, int source, int message, int hop) {
    if (index_.rank(source) == index_.rank(id)) {
      if (source > id) edges_.push_back({source, id, 0});
      return;
    }
    if (message >= 0) {
      edges_.push_back({message, id, 0});
    } else {
      edges_.push_back({source, id, hop});
    }
  }

  // --- topological order ---------------------------------------------------------------------------------------
  void sort() {
    std::vector<std::int32_t> waiting(nodes_, 0), begin(nodes_ + 1, 0), successor(edges_.size());
    for (const Edge& e : edges_) {
      ++waiting[e.to];
      ++begin[e.from + 1];
    }
    for (int n = 0; n < nodes_; ++n) begin[n + 1] += begin[n];
    std::vector<std::int32_t> fill(begin.begin(), begin.end() - 1);
    for (const Edge& e : edges_) successor[fill[e.from]++] = e.to;
    sorted_.reserve(nodes_);
    for (int n = 0; n < nodes_; ++n) {
      if (waiting[n] == 0) sorted_.push_back(n);
    }
    for (std::size_t at = 0; at < sorted_.size(); ++at) {
      const int n = sorted_[at];
      for (int e = begin[n]; e < begin[n + 1]; ++e) {
        if (--waiting[successor[e]] == 0) sorted_.push_back(successor[e]);
      }
    }
    if (sorted_.size() != static_cast<std::size_t>(nodes_)) report_cycle(waiting);
  }

  /// Walks from a node that waits to one that it waits for, until a node comes twice.
  [[noreturn]] void report_cycle(const std::vector<std::int32_t>& waiting) const {
    std::vector<const Edge*> blocked(nodes_, nullptr);
    for (const Edge& e : edges_) {
      if (waiting[e.from] > 0 && waiting[e.to] > 0) {
        // A message from another rank says more than the place in the list.
        const Edge*& held = blocked[e.to];
        if (held == nullptr || (is_chain(*held) && !is_chain(e))) held = &e;
      }
    }
    int at = 0;
    while (waiting[at] == 0) ++at;
    std::vector<int> visit(nodes_, -1);
    std::vector<int> path;
    while (visit[at] < 0) {
      visit[at] = static_cast<int>(path.size());
      path.push_back(at);
      at = blocked[at]->from;
    }
    path.erase(path.begin(), path.begin() + visit[at]);
    throw InputError("schedule", "deadlock, the waiting cycle is: " + describe(path));
  }

  bool is_chain(const Edge& e) const {
    return e.from + 1 == e.to && e.to < index_.passes() && index_.rank(e.from) == index_.rank(e.to);
  }

  /// `path[i]` waits for `path[i + 1]`, the last for the first. A run of neighbours on one rank reads as one step.
  std::string describe(std::vector<int> path) const {
    // Begin where a message is waited for, so that no run is cut.
    for (std::size_t i = 0; i < path.size(); ++i) {
      const int before = path[(i + path.size() - 1) % path.size()];
      if (!same_run(before, path[i])) {
        std::rotate(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i), path.end());
        break;
      }
    }
    std::string text = node_text(path.front());
    for (std::size_t i = 0; i < path.size(); ++i) {
      const int here = path[i], there = path[(i + 1) % path.size()];
      if (same_run(here, there)) {
        std::size_t last = i;
        while (last + 1 < path.size() && same_run(path[last], path[last + 1])) ++last;
        text += ", which stands behind " + node_text(path[last]);
        i = last;
        text += ", which waits for " + node_text(path[(i + 1) % path.size()]);
      } else {
        text += (i == 0 ? " waits for " : ", which waits for ") + node_text(there);
      }
    }
    return text;
  }

  bool same_run(int here, int there) const {
    return here < index_.passes() && there < index_.passes() && index_.rank(here) == index_.rank(there) && there < here;
  }

  std::string node_text(int node) const {
    if (node < index_.passes())
      return pass_text(index_.pass(node)) + " (rank " + std::to_string(index_.rank(node)) + ")";
    return "the message of " + node_text(message_from_[node - index_.passes()]);
  }

  // --- flat arrays ---------------------------------------------------------------------------------------------
  void renumber() {
    std::vector<std::int32_t> place(nodes_);
    for (int n = 0; n < nodes_; ++n) place[sorted_[n]] = n;
    out_.first_node.assign(order_.ranks, -1);
    out_.last_node.assign(order_.ranks, -1);
    for (int n = 0; n < nodes_; ++n) {
      const int id = sorted_[n];
      const bool message = id >= index_.passes();
      const int rank = message ? order_.ranks : index_.rank(id);
      out_.rank.push_back(rank);
      out_.position.push_back(message ? -1 : index_.position(id));
      out_.time_key.push_back(key_[id]);
      const int k = message ? 0 : index_.pass(id).microbatch;
      out_.microbatch.push_back(k);
      out_.microbatch2.push_back(!message && index_.pass(id).kind == PassKind::overlapped ? index_.pass(id).microbatch2
                                                                                          : k);
      if (!message) {
        if (out_.first_node[rank] < 0) out_.first_node[rank] = n;
        out_.last_node[rank] = n;
      }
    }
    place_edges(place);
  }

  void place_edges(const std::vector<std::int32_t>& place) {
    out_.edge_begin.assign(nodes_ + 1, 0);
    for (const Edge& e : edges_) ++out_.edge_begin[place[e.to] + 1];
    for (int n = 0; n < nodes_; ++n) out_.edge_begin[n + 1] += out_.edge_begin[n];
    out_.edge_from.resize(edges_.size());
    out_.edge_hop.resize(edges_.size());
    std::vector<std::int32_t> fill(out_.edge_begin.begin(), out_.edge_begin.end() - 1);
    for (const Edge& e : edges_) {
      const int at = fill[place[e.to]]++;
      out_.edge_from[at] = place[e.from];
      out_.edge_hop[at] = e.hop;
    }
  }

  /// A chunk is in flight from the start of its forward pass until the end of its input gradient (B or I), or until the
  /// end of its weight gradient (B or W). A pair holds both of its chunks while it runs.
  void count_peaks() {
    for (const auto& list : order_.passes) {
      RankReplay rank;
      int until_input = 0, until_weight = 0;
      for (const Pass& pass : list) {
        const bool forward = pass.kind == PassKind::forward || pass.kind == PassKind::overlapped;
        const bool input = pass.kind != PassKind::forward && pass.kind != PassKind::weight_grad;
        const bool weight = pass.kind != PassKind::forward && pass.kind != PassKind::input_grad;
        until_input += forward ? 1 : 0;
        until_weight += forward ? 1 : 0;
        rank.peak_chunks_until_input_grad = std::max(rank.peak_chunks_until_input_grad, until_input);
        rank.peak_chunks_until_weight_grad = std::max(rank.peak_chunks_until_weight_grad, until_weight);
        until_input -= input ? 1 : 0;
        until_weight -= weight ? 1 : 0;
      }
      out_.peaks.push_back(rank);
    }
  }

  const Order& order_;
  const ReplayOptions& options_;
  PassIndex index_;
  ReplayNodes out_;
  int nodes_ = 0;
  std::vector<std::int32_t> key_, message_from_;
  std::vector<std::int32_t> sent_forward_, sent_backward_;  // message nodes by sending stage and micro-batch
  std::vector<Edge> edges_;
  std::vector<std::int32_t> sorted_;
};

}  // namespace

ReplayNodes compile_replay(const Order& order, const ReplayOptions& options) { return Compiler(order, options).run(); }

}  // namespace shardplan
