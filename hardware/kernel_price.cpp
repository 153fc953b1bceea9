#include "hardware/kernel_price.hpp"

#include <cmath>

namespace shardplan {

namespace {

constexpr double kPerDoubling = 0.06;
constexpr double kTransfer = 0.12;
constexpr double kGeneric = 0.30;

double widened(double half_width, double outside, const ChosenTable& chosen) {
  const double far = kPerDoubling * outside / 0.6931471805599453;
  double square = half_width * half_width + far * far;
  if (chosen.transferred) square += kTransfer * kTransfer;
  if (chosen.generic) square += kGeneric * kGeneric;
  return std::sqrt(square);
}

}  // namespace

Price with_interval(const ChosenTable& chosen, double seconds, double table_seconds, double outside) {
  const std::vector<ErrorBand>& bands = chosen.table->bands;
  std::size_t i = 0;
  while (i + 1 < bands.size() && table_seconds > bands[i].up_to) ++i;
  Price price{seconds, seconds * bands[i].low, seconds * bands[i].high, Basis::interpolated};
  if (outside > 0 || chosen.transferred || chosen.generic) {
    price.low = seconds * std::exp(-widened(-std::log(bands[i].low), outside, chosen));
    price.high = seconds * std::exp(widened(std::log(bands[i].high), outside, chosen));
  }
  if (outside > 0 || chosen.table->grid.empty())
    price.basis = Basis::extrapolated;  // a form alone, of published figures
  if (chosen.transferred) price.basis = Basis::transferred;
  if (chosen.generic) price.basis = Basis::datasheet;
  if (chosen.table->grid.empty() && chosen.table->assumed()) price.basis = Basis::assumed;
  return price;
}

}  // namespace shardplan
