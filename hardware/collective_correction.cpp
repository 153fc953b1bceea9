#include "hardware/collective_correction.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace shardplan {

namespace {

bool is_pair(Collective a, Collective b, Collective x, Collective y) {
  return (a == x && b == y) || (a == y && b == x);
}

double operation_factor(Collective a, Collective b, const CorrelationConstants& c) {
  if (a == b) return 1;
  if (is_pair(a, b, Collective::all_gather, Collective::reduce_scatter)) return c.gather_scatter;
  // A broadcast is a ring that only forwards: nearest to an all-gather.
  if (is_pair(a, b, Collective::all_gather, Collective::broadcast) ||
      is_pair(a, b, Collective::reduce_scatter, Collective::broadcast)) {
    return c.gather_scatter;
  }
  const bool pairwise = a == Collective::all_to_all || b == Collective::all_to_all;
  return pairwise ? c.pairwise_other : c.reduce_other;
}

double covariance(const CurveId& a, const CurveId& b, const CorrelationConstants& c) {
  double k = c.variance;
  if (a.gpu != b.gpu) k *= a.family == b.family ? c.family : a.generation == b.generation ? c.generation : c.other_gpu;
  k *= operation_factor(a.op, b.op, c);
  if (a.ranks != b.ranks) k *= std::pow(c.ranks, std::abs(std::log2(static_cast<double>(a.ranks) / b.ranks)));
  if (a.type != b.type) k *= c.type;
  return k;
}

}  // namespace

TypeClass type_class(Collective op, DataType type) {
  if (op != Collective::all_reduce && op != Collective::reduce_scatter) return TypeClass::any;
  return switch_can_add(type) ? TypeClass::wide : TypeClass::narrow;
}

DataType example_of(TypeClass t) { return t == TypeClass::narrow ? DataType::int8 : DataType::fp16; }

double CurveCorrection::at(double bytes, double fade) const {
  if (log_ratio.empty() || !(bytes > 0)) return 0;
  const double x = std::log2(bytes / kFirstCurveBytes);
  const double last = static_cast<double>(log_ratio.size() - 1);
  if (x <= 0) return log_ratio.front();
  if (x >= last) return log_ratio.back() * std::pow(fade, x - last);
  const auto i = static_cast<std::size_t>(x);
  const double part = x - static_cast<double>(i);
  return log_ratio[i] * (1 - part) + log_ratio[i + 1] * part;
}

std::vector<double> log_ratios(const MeasuredCurve& curve, const DomainConstants& domain) {
  std::vector<double> out(curve.seconds.size(), 0);
  std::vector<std::size_t> known;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!(curve.seconds[i] > 0)) continue;
    const double bytes = kFirstCurveBytes * std::exp2(static_cast<double>(i));
    out[i] = std::log(curve.seconds[i] /
                      nccl_in_domain(domain, curve.op, bytes, curve.ranks, example_of(curve.type)).seconds);
    known.push_back(i);
  }
  for (std::size_t i = 0; i < out.size() && !known.empty(); ++i) {
    if (curve.seconds[i] > 0) continue;
    const auto after = std::lower_bound(known.begin(), known.end(), i);
    if (after == known.begin())
      out[i] = out[known.front()];
    else if (after == known.end())
      out[i] = out[known.back()];
    else {
      const std::size_t a = *(after - 1), b = *after;
      out[i] = out[a] + (out[b] - out[a]) * static_cast<double>(i - a) / static_cast<double>(b - a);
    }
  }
  return out;
}

struct CorrectionField::Impl {
  std::vector<Entry> entries;
  CorrelationConstants constants;
  std::size_t sizes = 0;
  Eigen::MatrixXd residuals;  // a row a curve, a column a size

  /// Kriging from the entries that `use` picks.
  CurveCorrection solve(const CurveId& asked, const std::vector<std::size_t>& use) const {
    CurveCorrection out;
    out.standard_deviation = std::sqrt(constants.variance);
    out.log_ratio.assign(sizes, 0);
    if (use.empty()) return out;
    const auto n = static_cast<Eigen::Index>(use.size());
    Eigen::MatrixXd k(n, n);
    Eigen::VectorXd to(n);
    for (Eigen::Index i = 0; i < n; ++i) {
      const CurveId& a = entries[use[static_cast<std::size_t>(i)]].id;
      for (Eigen::Index j = 0; j < n; ++j)
        k(i, j) = covariance(a, entries[use[static_cast<std::size_t>(j)]].id, constants);
      k(i, i) += constants.noise;
      to(i) = covariance(a, asked, constants);
      out.measured |= a.same_place(asked) && a.type == asked.type;
    }
    const Eigen::VectorXd weights = k.ldlt().solve(to);
    out.standard_deviation =
        std::sqrt(std::max(constants.noise, constants.variance - to.dot(weights) + constants.noise));
    for (std::size_t s = 0; s < sizes; ++s) {
      double sum = 0;
      for (Eigen::Index i = 0; i < n; ++i)
        sum += weights(i) *
               residuals(static_cast<Eigen::Index>(use[static_cast<std::size_t>(i)]), static_cast<Eigen::Index>(s));
      out.log_ratio[s] = sum;
    }
    return out;
  }
};

CorrectionField::CorrectionField(std::vector<Entry> entries, const CorrelationConstants& constants)
    : impl_(std::make_unique<Impl>()) {
  impl_->constants = constants;
  for (const Entry& e : entries) impl_->sizes = std::max(impl_->sizes, e.log_ratio.size());
  impl_->residuals =
      Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(entries.size()), static_cast<Eigen::Index>(impl_->sizes));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (std::size_t s = 0; s < entries[i].log_ratio.size(); ++s) {
      impl_->residuals(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(s)) = entries[i].log_ratio[s];
    }
  }
  impl_->entries = std::move(entries);
}
CorrectionField::~CorrectionField() = default;
CorrectionField::CorrectionField(CorrectionField&&) noexcept = default;

CurveCorrection CorrectionField::correction(const CurveId& id) const {
  std::vector<std::size_t> all(impl_->entries.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return impl_->solve(id, all);
}

std::span<const CorrectionField::Entry> CorrectionField::entries() const { return impl_->entries; }
const CorrelationConstants& CorrectionField::constants() const { return impl_->constants; }

}  // namespace shardplan
