#include "hardware/measure/host_model.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.hpp"

namespace shardplan {
namespace {

const char* layout_name(GemmPass pass) {
  return pass == GemmPass::forward ? "forward" : pass == GemmPass::input_grad ? "input-grad" : "weight-grad";
}

std::vector<double> logs_of(const std::vector<double>& sizes) {
  std::vector<double> logs;
  for (const double s : sizes) logs.push_back(std::log(std::max(s, 1.0)));
  return logs;
}

double square_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double d = 0;
  for (std::size_t i = 0; i < a.size(); ++i) d += (a[i] - b[i]) * (a[i] - b[i]);
  return d;
}

}  // namespace

void ScatteredTable::add(const std::vector<double>& sizes, double seconds) {
  points_.push_back({logs_of(sizes), std::log(seconds)});
}

double ScatteredTable::seconds(const std::vector<double>& sizes) const {
  return std::exp(predict(logs_of(sizes), std::numeric_limits<std::size_t>::max()));
}

/// Minimises sum_i w_i (y_i - c - b (x_i - x))^2 + ridge |b|^2 over the nearest points, y = log seconds less the sum of
/// log sizes (so that b = 0 means proportional to the work), w = 1 / (distance^2 + 1e-4). The answer at x is c.
double ScatteredTable::predict(const std::vector<double>& x, std::size_t without) const {
  const std::size_t nearest = std::size_t{2} << x.size();  // twice the corners of a cell
  constexpr double kRidge = 0.05;
  std::vector<std::pair<double, std::size_t>> near;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    if (i != without) near.emplace_back(square_distance(points_[i].logs, x), i);
  }
  std::sort(near.begin(), near.end());
  if (near.size() > nearest) near.resize(nearest);
  const auto d = static_cast<Eigen::Index>(x.size());
  Eigen::MatrixXd normal = Eigen::MatrixXd::Zero(d + 1, d + 1);
  Eigen::VectorXd right = Eigen::VectorXd::Zero(d + 1);
  for (const auto& [distance, i] : near) {
    Eigen::VectorXd row(d + 1);
    row(0) = 1;
    double y = points_[i].log_seconds;
    for (Eigen::Index j = 0; j < d; ++j) {
      row(j + 1) = points_[i].logs[static_cast<std::size_t>(j)] - x[static_cast<std::size_t>(j)];
      y -= points_[i].logs[static_cast<std::size_t>(j)];
    }
    const double weight = 1 / (distance + 1e-4);
    normal += weight * row * row.transpose();
    right += weight * y * row;
  }
  for (Eigen::Index j = 1; j <= d; ++j) normal(j, j) += kRidge;
  double answer = normal.ldlt().solve(right)(0);
  for (const double log_size : x) answer += log_size;
  return answer;
}

double ScatteredTable::leave_one_out() const {
  if (points_.size() < 3) return 0;
  double sum = 0;
  for (std::size_t i = 0; i < points_.size(); ++i)
    sum += std::abs(std::exp(predict(points_[i].logs, i) - points_[i].log_seconds) - 1);
  return sum / static_cast<double>(points_.size());
}

HostModel::HostModel(const MeasuringFile& file) {
  double largest_copy = 0;
  for (const MeasuredPoint& p : file.points) {
    if (p.kernel == "gemm") {
      tables_["gemm " + p.word("pass")].add({p.number("m"), p.number("n"), p.number("k")}, p.time.mean);
      best_rate_ = std::max(best_rate_, p.flops / p.time.median);
    } else if (p.kernel == "copy" || p.kernel == "add" || p.kernel == "relu" || p.kernel == "mask") {
      tables_[p.kernel].add({p.number("elements")}, p.time.mean);
      if (p.kernel == "copy" && p.bytes > largest_copy) {
        largest_copy = p.bytes;
        copy_rate_ = p.bytes / p.time.median;
      }
    } else if (p.kernel == "send-recv" || (p.kernel == "all-reduce" && p.number("ranks") == 2)) {
      // An exchange is one of its kind in a step, or few: no sum over which the mean's outliers would add up.
      tables_[p.kernel].add({p.number("bytes") / sizeof(float)}, p.time.median);
    }
  }
  for (const char* name : {"gemm forward", "gemm input-grad", "gemm weight-grad", "copy", "add", "relu", "mask",
                           "send-recv", "all-reduce"}) {
    if (tables_[name].size() < 3)
      throw InputError("points", std::string("too few points of \"") + name + "\" to price a step of the cpu backend");
  }
}

double HostModel::gemm(GemmPass pass, std::int64_t m, std::int64_t n, std::int64_t k) const {
  if (m == 0) return 0;
  return tables_.at(std::string("gemm ") + layout_name(pass))
      .seconds({static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)});
}

double HostModel::elementwise(const std::string& kind, std::int64_t n) const {
  return n == 0 ? 0 : tables_.at(kind).seconds({static_cast<double>(n)});
}

PassTimes HostModel::pass_times(const Order& order, const BlockShape& s, int blocks) const {
  const std::int64_t narrow = s.tokens * s.hidden, wide = s.tokens * s.inner;
  // A copy from or to the mailbox brings what another core wrote; the pipeline's ends copy their own rank's memory.
  const double copy = elementwise("copy", narrow), message = half_message(narrow);
  const double forward = gemm(GemmPass::forward, s.tokens, s.inner, s.hidden) + elementwise("relu", wide) +
                         gemm(GemmPass::forward, s.tokens, s.hidden, s.inner) + elementwise("add", narrow);
  const double input = gemm(GemmPass::input_grad, s.tokens, s.hidden, s.inner) + elementwise("mask", wide) +
                       gemm(GemmPass::input_grad, s.tokens, s.inner, s.hidden) + elementwise("add", narrow);
  const double weight = gemm(GemmPass::weight_grad, s.tokens, s.inner, s.hidden) +
                        gemm(GemmPass::weight_grad, s.tokens, s.hidden, s.inner);
  PassTimes times;
  for (int stage = 0; stage < order.stages(); ++stage) {
    const bool first = order.previous[static_cast<std::size_t>(stage)] < 0,
               last = order.next[static_cast<std::size_t>(stage)] < 0;
    times.forward.push_back((first ? copy : message) + blocks * forward + (last ? 0 : message));
    times.input_grad.push_back((last ? copy : message) + blocks * input + (first ? copy : message));
    times.weight_grad.push_back(blocks * weight);
  }
  return times;
}

double HostModel::all_reduce(int members, std::int64_t floats) const {
  return (members - 1) * elementwise("all-reduce", 2 * floats / members);
}

double HostModel::half_message(std::int64_t floats) const { return elementwise("send-recv", floats) / 2; }

std::vector<std::vector<double>> HostModel::expert_phases(const ExpertStepShape& shape) const {
  const ExpertRouting routed(shape);
  const std::int64_t h = shape.block.hidden;
  const std::int64_t tokens = shape.block.tokens, sent = tokens * shape.top_k, experts = shape.experts();
  const double router = gemm(GemmPass::forward, tokens, experts, h);
  const double router_back = gemm(GemmPass::input_grad, tokens, experts, h) +
                             gemm(GemmPass::weight_grad, tokens, experts, h) + elementwise("add", tokens * h);
  std::vector<std::vector<double>> phases;
  for (int r = 0; r < shape.ranks; ++r) {
    double forward = 0, backward = 0;
    std::int64_t received = 0;
    for (const std::int64_t rows : routed.expert_rows(r)) {
      received += rows;
      const std::int64_t f = shape.block.inner;
      if (rows == 0) continue;
      forward +=
          gemm(GemmPass::forward, rows, f, h) + elementwise("relu", rows * f) + gemm(GemmPass::forward, rows, h, f);
      backward += gemm(GemmPass::input_grad, rows, h, f) + elementwise("mask", rows * f) +
                  gemm(GemmPass::input_grad, rows, f, h) + gemm(GemmPass::weight_grad, rows, f, h) +
                  gemm(GemmPass::weight_grad, rows, h, f);
    }
    // What crosses to or from another rank's core is half a message each time it is copied; the rest stays in this
    // one's cache. Sort, copy in | receive, (experts,) regroup, copy in | copy out, sum.
    const std::int64_t stays = routed.rows_between(r, r) * h;
    const double out = half_message(sent * h - stays), in = half_message(received * h - stays);
    const double kept = elementwise("copy", stays);
    const double sort = elementwise("copy", sent * h) + kept + out;
    const double middle = kept + in + elementwise("copy", received * h) + kept + in;
    const double sum = kept + out + elementwise("add", sent * h);
    const double residual = elementwise("copy", tokens * h), slopes = elementwise("copy", sent * h);
    std::vector<double> own;
    for (int l = 0; l < shape.layers; ++l) own.insert(own.end(), {router + sort, middle + forward, residual + sum});
    for (int l = 0; l < shape.layers; ++l) own.insert(own.end(), {slopes + sort, middle + backward, router_back + sum});
    phases.push_back(own);
  }
  return phases;
}

std::vector<HostModel::TableError> HostModel::errors() const {
  std::vector<TableError> out;
  for (const auto& [name, table] : tables_) out.push_back({name, table.size(), table.leave_one_out()});
  return out;
}

}  // namespace shardplan
