#include "cli/bubble_text.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/number_text.hpp"
#include "cli/output.hpp"
#include "sim/pass_text.hpp"
#include "sim/timeline.hpp"

namespace shardplan {
namespace {

constexpr int kMostRanksPrinted = 64;

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

void print_bubbles(const Replay& r) {
  std::printf("makespan        %s\n", number(r.makespan).c_str());
  std::printf("longest window  %s   (of one rank, from its first start to its last end)\n",
              number(r.max_stage_window).c_str());
  std::printf("bubble          %s over ideal   (makespan - longest busy) / longest busy\n",
              text_of_percent(r.over_ideal()).c_str());
  std::printf("                %s over total   1 - sum of busy / (ranks x makespan)\n",
              text_of_percent(r.over_total()).c_str());
  std::printf("                %s of a window  (longest window - longest busy) / longest window\n",
              text_of_percent(r.window()).c_str());
}

void print_form(const BubbleAnswer& a) {
  if (!a.form) {
    std::printf("closed form     none holds here\n");
    return;
  }
  const bool makespan = a.form->metric == ClosedFormMetric::makespan;
  std::printf("closed form     %s of %s = %s   [%s]%s\n", makespan ? "makespan" : "longest window",
              a.form->expression.c_str(), number(a.form->value).c_str(), a.form->where.c_str(),
              a.form_holds ? "" : "  DIFFERS FROM THE REPLAY");
}

void print_ranks(const BubbleAnswer& a) {
  std::printf("\nrank        busy        idle  peak chunks until I  until W%s\n",
              a.bytes.empty() ? "" : "  peak bytes until I     until W  M_B then M_W");
  for (std::size_t r = 0; r < a.replay.ranks.size(); ++r) {
    const RankReplay& rank = a.replay.ranks[r];
    std::printf("%4zu  %10s  %10s  %19d  %7d", r, number(rank.busy).c_str(), number(rank.idle).c_str(),
                rank.peak_chunks_until_input_grad, rank.peak_chunks_until_weight_grad);
    if (!a.bytes.empty()) {
      std::printf("  %18s  %10s  %12s", text_of_decimal_bytes(a.bytes[r].until_input_grad).c_str(),
                  text_of_decimal_bytes(a.bytes[r].until_weight_grad).c_str(),
                  text_of_decimal_bytes(a.bytes[r].split).c_str());
    }
    std::printf("\n");
  }
}

void print_left_out(int ranks) {
  if (ranks > kMostRanksPrinted) std::printf(" ... %d more ranks\n", ranks - kMostRanksPrinted);
}

void print_order(const Order& order) {
  constexpr std::size_t kMostShown = 40;
  std::printf(
      "\norder (stage, pass, micro-batch; F forward, B backward, I and W its input and weight gradient, (..;..) a "
      "pair)\n");
  for (std::size_t r = 0; r < std::min<std::size_t>(order.passes.size(), kMostRanksPrinted); ++r) {
    std::printf("%4zu ", r);
    const auto& list = order.passes[r];
    for (std::size_t i = 0; i < std::min(list.size(), kMostShown); ++i) std::printf(" %s", pass_text(list[i]).c_str());
    if (list.size() > kMostShown) std::printf(" ... %zu more", list.size() - kMostShown);
    std::printf("\n");
  }
  print_left_out(order.ranks);
}

void print_picture(const Order& order, const Replay& r) {
  TimelineOptions options;
  options.colour = isatty(STDOUT_FILENO) != 0;
  std::printf(
      "\ntime to the right: F forward, B backward, I W its gradients, O a pair, then the micro-batch%s; later chunks "
      "in "
      "lower case; . idle\n",
      order.microbatches > 10 ? " (its last digit where there is no room)" : "");
  const std::string picture = timeline_text(order, r, options);
  std::size_t end = 0;
  for (int line = 0; line < std::min(order.ranks, kMostRanksPrinted); ++line) end = picture.find('\n', end) + 1;
  std::printf("%s", picture.substr(0, end).c_str());
  print_left_out(order.ranks);
}

/// What overlapped pairs save a rank, against their halves one after the other (at the even times of the question).
void print_overlap(const BubbleQuestion& q, const Order& order) {
  std::size_t most = 0;
  for (const auto& list : order.passes) {
    const auto pairs =
        std::count_if(list.begin(), list.end(), [](const Pass& p) { return p.kind == PassKind::overlapped; });
    most = std::max(most, static_cast<std::size_t>(pairs));
  }
  if (most == 0) return;
  const double serial = q.schedule.forward + q.schedule.input_grad + q.schedule.weight_grad;
  const double pair = q.overlapped >= 0 ? q.overlapped : serial;
  const double saved = serial - pair;
  std::printf(
      "overlap         a pair takes %s, its halves one after the other %s: each %s %s, up to %zu pairs a rank %s\n",
      number(pair).c_str(), number(serial).c_str(), saved >= 0 ? "saves" : "costs", number(std::abs(saved)).c_str(),
      most, number(std::abs(saved) * static_cast<double>(most)).c_str());
}

void print_search(const BubbleQuestion& q, const ZbAnswer& s) {
  std::printf("search          from %s; %lld orders tried%s\n", s.seed.c_str(), static_cast<long long>(s.tried),
              q.schedule.search ? "" : " (published heuristic only)");
  std::printf("lower bound     %s of the %s; gap %s\n", number(s.lower_bound).c_str(),
              q.optimizer.sync == OptimizerSync::post_validation ? "longest window" : "makespan",
              text_of_percent(s.gap).c_str());
}

}  // namespace

void print_bubble(const BubbleQuestion& q, const BubbleAnswer& a) {
  const Order& order = a.order;
  std::printf("%s: %s, %s", q.name.c_str(), counted(order.ranks, "rank").c_str(),
              counted(order.microbatches, "micro-batch").c_str());
  if (order.stages() > order.ranks) std::printf(", %d chunks a rank", order.stages() / order.ranks);
  if (order.parameter_copies > 1) std::printf(", %d copies of the parameters", order.parameter_copies);
  std::printf("\n");
  if (q.row != nullptr) std::printf("source          %s\n", std::string(q.row->source).c_str());
  std::printf("times           of a chunk: F %s, I %s, W %s, B = I + W%s; hop %s, %s\n",
              number(q.schedule.forward).c_str(), number(q.schedule.input_grad).c_str(),
              number(q.schedule.weight_grad).c_str(),
              q.overlapped >= 0 ? (", pair FB " + number(q.overlapped)).c_str() : "", number(q.schedule.p2p).c_str(),
              q.replay.p2p == P2pMode::async ? "asynchronous"
              : q.replay.stream_per_peer     ? "blocking, a stream a peer"
                                             : "blocking, one stream a rank");
  print_bubbles(a.replay);
  print_form(a);
  if (a.search) print_search(q, *a.search);
  print_overlap(q, order);
  std::printf("step            %s with %s, of which synchronising %s\n", number(a.step.seconds).c_str(),
              q.optimizer.sync == OptimizerSync::barrier ? "a global-norm barrier" : "post-hoc validation",
              number(a.step.over_window).c_str());
  print_ranks(a);
  print_picture(order, a.replay);
  print_order(order);
  for (const ScheduleNote& note : a.notes)
    std::printf("%s%s: %s\n", &note == a.notes.data() ? "\n" : "", note.framework.c_str(), note.note.c_str());
}
}  // namespace shardplan
