// Measured throughput of four schedules against the replay: the Zero Bubble paper's Tables 4 and 9 (arXiv 2401.10241).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/field.hpp"
#include "sim/replay.hpp"
#include "sim/schedules.hpp"

using namespace shardplan;

namespace {

/// One cell of the table: an order with the published times of its passes.
struct Cell {
  std::string name, schedule;
  Order order;
  double forward = 0, input_grad = 0, weight_grad = 0, hop = 0;  // seconds of one pass of one chunk
  double samples = 0;                                            // m b / p: throughput = samples / seconds
  double measured = 0;                                           // samples per GPU and second
};

/// Two constants for every schedule alike: seconds that every pass takes beyond the profiled kernels (launches, waiting
/// for the stream, bookkeeping), and seconds that every message takes beyond its profiled transfer. A rank that sends
/// chunks pays both v times as often.
struct Overheads {
  double pass = 0, message = 0;
};

double throughput(const Cell& c, const Overheads& o) {
  const auto n = static_cast<std::size_t>(c.order.stages());
  PassTimes t;
  t.forward.assign(n, c.forward + o.pass);
  t.input_grad.assign(n, c.input_grad + o.pass);
  t.weight_grad.assign(n, c.weight_grad + o.pass);
  t.backward.assign(n, c.input_grad + c.weight_grad + o.pass);
  t.hop_forward.assign(n, c.hop + o.message);
  t.hop_backward.assign(n, c.hop + o.message);
  // The optimizer runs rank by rank (post-validation): a step lasts as long as the longest rank's window.
  return c.samples / replay(c.order, t).max_stage_window;
}

std::vector<Cell> cells_of(const Field& rows) {
  std::vector<Cell> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Field row = rows.item(i);
    ScheduleQuestion q;
    q.ranks = static_cast<int>(row.at("p").count());
    q.microbatches = static_cast<int>(row.at("m").count());
    q.forward = row.at("T_F_ms").number() * 1e-3;
    q.input_grad = row.at("T_B_ms").number() * 1e-3;
    q.weight_grad = row.at("T_W_ms").number() * 1e-3;
    q.p2p = row.at("T_comm_ms").number() * 1e-3;
    const double h = row.at("hidden").number(), a = row.at("heads").number(), s = row.at("seq").number();
    q.weight_grad_memory = 32 * h / (34 * h + 5 * a * s);
    q.search = false;
    // The interleaved runs hold one layer a chunk; the first and the last stage have one layer fewer.
    const int layers_per_rank = static_cast<int>(row.at("layers").count() + 2) / q.ranks;
    const auto add = [&](const char* column, const char* schedule, int chunks, double limit) {
      ScheduleQuestion ask = q;
      ask.chunks = chunks;
      ask.memory_limit = limit * q.ranks;
      Cell c;
      c.schedule = column;
      c.name = row.at("model").text() + " p=" + std::to_string(q.ranks) + " m=" + std::to_string(q.microbatches);
      c.order = find_schedule(schedule).order(ask);
      c.forward = q.forward / chunks;
      c.input_grad = q.input_grad / chunks;
      c.weight_grad = q.weight_grad / chunks;
      c.hop = q.p2p;
      c.samples = q.microbatches * row.at("micro_batch").number() / q.ranks;
      c.measured = row.at("samples_per_gpu_s_measured").at(column).number();
      out.push_back(std::move(c));
    };
    add("1F1B", "1f1b", 1, 0);
    add("1F1B-I", "interleaved-1f1b", layers_per_rank, 0);
    add("ZB-1p", "zb-auto", 1, 1);
    add("ZB-2p", "zb-auto", 1, 2);
  }
  return out;
}

/// Least squares on ln(predicted / measured) by Gauss-Newton; derivatives by differences, constants kept >= 0.
Overheads fit(const std::vector<Cell>& cells) {
  Overheads at{1e-3, 1e-4};
  for (int round = 0; round < 12; ++round) {
    double aa = 0, ab = 0, bb = 0, ar = 0, br = 0;
    const double d = 1e-6;
    for (const Cell& c : cells) {
      const double r = std::log(throughput(c, at) / c.measured);
      const double a = (std::log(throughput(c, {at.pass + d, at.message}) / c.measured) - r) / d;
      const double b = (std::log(throughput(c, {at.pass, at.message + d}) / c.measured) - r) / d;
      aa += a * a, ab += a * b, bb += b * b, ar += a * r, br += b * r;
    }
    const double det = aa * bb - ab * ab;
    double pass = at.pass - (bb * ar - ab * br) / det, message = at.message - (aa * br - ab * ar) / det;
    if (message < 0) message = 0, pass = at.pass - (ar - ab * at.message) / aa;
    if (pass < 0) pass = 0;
    if (std::abs(pass - at.pass) + std::abs(message - at.message) < 1e-9) break;
    at = {pass, message};
  }
  return at;
}

double worst_error(const std::vector<Cell>& cells, const Overheads& o) {
  double worst = 0;
  for (const Cell& c : cells) worst = std::max(worst, std::abs(throughput(c, o) / c.measured - 1));
  return worst;
}

/// The two constants with the smallest worst error, by coordinate search from a start.
Overheads smallest_worst(const std::vector<Cell>& cells, Overheads at) {
  double best = worst_error(cells, at);
  for (double step = 0.1e-3; step > 2e-6; step /= 2) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int a = -1; a <= 1; ++a) {
        for (int b = -1; b <= 1; ++b) {
          const Overheads next{std::max(0.0, at.pass + a * step), std::max(0.0, at.message + b * step)};
          const double worst = worst_error(cells, next);
          if (worst >= best - 1e-9) continue;
          best = worst, at = next, moved = true;
        }
      }
    }
  }
  return at;
}

}  // namespace

TEST_CASE("Zero Bubble paper: measured throughput of four schedules with one cost a pass and one a message", "[sim]") {
  const char* facts = std::getenv("SHARDPLAN_FACTS");
  if (facts == nullptr) {
    std::printf("skipped: SHARDPLAN_FACTS is unset\n");
    return;
  }
  const std::vector<Cell> cells =
      cells_of(Field::read(std::string(facts) + "/schedules/measured.json").at("zero_bubble_main").at("rows"));
  REQUIRE(cells.size() == 48);
  // The fit: the pair whose worst cell is best (minimax of the relative error), found from the least-squares pair by a
  // search without random starts. Least squares alone would leave the two ZB-2p cells of the 6.2B model, which holds
  // 70 of the GPUs' 80 GB beyond 5 % (5.5).
  const Overheads squares = fit(cells), o = smallest_worst(cells, squares);
  std::printf("cost a pass %.3f ms, a message %.3f ms beyond the profiled times\n", 1e3 * o.pass, 1e3 * o.message);
  std::printf("%-18s %-8s %9s %9s %7s %12s\n", "run", "schedule", "measured", "predicted", "error", "bubble model");
  double sum = 0;
  for (const Cell& c : cells) {
    const double predicted = throughput(c, o), error = predicted / c.measured - 1;
    sum += std::abs(error);
    std::printf("%-18s %-8s %9.2f %9.2f %6.1f%% %11.1f%%\n", c.name.c_str(), c.schedule.c_str(), c.measured, predicted,
                100 * error, 100 * (throughput(c, {}) / c.measured - 1));
    INFO(c.name << " " << c.schedule);
    CHECK(predicted == Approx(c.measured).epsilon(0.05));
  }
  std::printf("smallest worst error: mean %.2f %%, worst %.2f %%\n", 100 * sum / 48, 100 * worst_error(cells, o));
  std::printf("least squares: %.3f ms a pass, %.3f ms a message, worst %.2f %%\n", 1e3 * squares.pass,
              1e3 * squares.message, 100 * worst_error(cells, squares));
  CHECK(sum / 48 <= 0.02);
  // The fitted costs matter: the bubbles alone are 4 to 17 % optimistic.
  CHECK(worst_error(cells, {}) > 0.15);
}
