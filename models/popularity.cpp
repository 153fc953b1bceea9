#include "models/popularity.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"

namespace shardplan {

namespace {

struct SkewRow {
  std::string_view word;
  SkewKind kind;
  double least, most;  // of the parameter
  const char* range;   // the same in words
};
// zipf above 8 or power-law above 20 leaves one expert in double precision; dirichlet below 0.001 likewise.
constexpr std::array<SkewRow, 3> kSkewRows{{
    {"zipf", SkewKind::zipf, 0, 8, "0 to 8"},
    {"dirichlet", SkewKind::dirichlet, 1e-3, 1e6, "0.001 to 1,000,000"},
    {"power-law", SkewKind::power_law, 0, 20, "0 to 20"},
}};

void normalise(std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& v : values) v /= sum;
}

void shuffle(std::vector<double>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

/// Gamma(shape, 1), Marsaglia and Tsang 2000; below shape 1 by the power of a uniform.
double gamma(double shape, Random& random) {
  if (shape < 1) return gamma(shape + 1, random) * std::pow(random.open_uniform(), 1 / shape);
  const double d = shape - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(random.open_uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

std::vector<double> zipf_weights(std::int64_t experts, double exponent, Random& random) {
  std::vector<double> weights;
  for (std::int64_t rank = 1; rank <= experts; ++rank)
    weights.push_back(std::pow(static_cast<double>(rank), -exponent));
  shuffle(weights, random);
  return weights;
}

std::vector<double> dirichlet_weights(std::int64_t experts, double concentration, Random& random) {
  std::vector<double> weights;
  for (std::int64_t i = 0; i < experts; ++i) weights.push_back(std::max(gamma(concentration, random), 1e-300));
  return weights;
}

constexpr double kMostCounts = 1e15;  // of one expert: counts are whole numbers that doubles hold

void add_counts(const Field& row, std::vector<double>& counts) {
  if (row.size() != counts.size()) {
    row.fail("has " + std::to_string(row.size()) + " counts for " + std::to_string(counts.size()) + " experts");
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double count = row.item(i).number();
    if (count < 0) row.item(i).fail("a count cannot be negative");
    if (count > kMostCounts) row.item(i).fail("out of range: a count above 1e15");
    counts[i] += count;
  }
}

std::vector<double> counts_of_file(const std::string& path, std::int64_t experts) {
  const Field file = Field::read(path);
  if (!file.is_array()) {
    file.fail("expected an array of counts, one an expert, or of such arrays, one a source rank; not " + file.shown());
  }
  std::vector<double> counts(static_cast<std::size_t>(experts), 0.0);
  if (file.size() > 0 && file.item(0).is_array()) {
    for (std::size_t r = 0; r < file.size(); ++r) {
      if (!file.item(r).is_array()) file.item(r).fail("expected an array of counts, as the rows before it");
      add_counts(file.item(r), counts);
    }
  } else {
    add_counts(file, counts);
  }
  if (std::accumulate(counts.begin(), counts.end(), 0.0) <= 0) file.fail("all counts are zero");
  return counts;
}

/// t with sum over experts of 1 - exp(-w t) = draws, by Newton from the left (the function is concave and rising).
double clock_of_draws(std::span<const double> weights, double draws, double start) {
  double t = start;
  for (int step = 0; step < 60; ++step) {
    double taken = 0, slope = 0;
    for (const double w : weights) {
      const double left = std::exp(-w * t);
      taken += 1 - left;
      slope += w * left;
    }
    const double change = (draws - taken) / slope;
    t += change;
    if (!(std::abs(change) > 1e-7 * t)) break;
  }
  return t;
}

}  // namespace

Skew parse_skew(std::string_view text, const std::string& where) {
  if (text == "none" || text == "uniform") return {};
  const auto colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (word == "file") {
    if (rest.empty()) throw InputError(where, "file: needs a path, as file:counts.json");
    return {SkewKind::file, 0, std::string(rest)};
  }
  for (const SkewRow& row : kSkewRows) {
    if (row.word != word) continue;
    if (rest.empty()) throw InputError(where, std::string(word) + " needs a number, as " + std::string(word) + ":1.2");
    const double value = parse_number(rest, where);
    if (value < row.least || value > row.most) {
      throw InputError(where, std::string(word) + " takes a number from " + row.range);
    }
    return {row.kind, value, ""};
  }
  const std::vector<std::string> words{"none", "zipf", "dirichlet", "power-law", "file"};
  throw InputError(where, "unknown skew \"" + std::string(text) + "\"" + did_you_mean(word, words) +
                              "; known: none, zipf:S, dirichlet:A, power-law:A, file:PATH");
}

std::string skew_text(const Skew& skew) {
  if (skew.kind == SkewKind::none) return "none";
  if (skew.kind == SkewKind::file) return "file:" + skew.path;
  for (const SkewRow& row : kSkewRows) {
    if (row.kind != skew.kind) continue;
    std::array<char, 32> number{};
    const auto end = std::to_chars(number.data(), number.data() + number.size(), skew.parameter).ptr;
    return std::string(row.word) + ":" + std::string(number.data(), end);
  }
  return "none";
}

std::string counts_note(const Skew& skew, std::int64_t experts, std::int64_t top_k) {
  if (skew.kind != SkewKind::file) return "";
  const std::vector<double> counts = counts_of_file(skew.path, experts);
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  const auto top = std::max_element(counts.begin(), counts.end());
  const double share = *top / all, most = 1 / static_cast<double>(top_k);
  if (share <= most * (1 + 1e-6)) return "";
  const std::string expert = std::to_string(top - counts.begin()), k = std::to_string(top_k);
  return skew.path + ": expert " + expert + " has " + text_of_percent(share) +
         " of the counts, but a token takes its " + k + " experts distinct, so none can have more than 1/" + k +
         ": cut to that, the others scaled up";
}

std::vector<double> power_law_loads(std::int64_t n, double exponent, double tokens, Random& random) {
  const double most = std::max(0.8 * tokens, 1.0);
  const double e = 1 - exponent;
  std::vector<double> loads;
  for (std::int64_t i = 0; i < n; ++i) {
    const double u = random.uniform();
    loads.push_back(std::abs(e) < 1e-9 ? std::pow(most, u) : std::pow(1 + u * (std::pow(most, e) - 1), 1 / e));
  }
  return loads;
}

std::vector<double> popularity(const Skew& skew, std::int64_t experts, std::int64_t top_k, std::int64_t tokens,
                               std::uint64_t seed) {
  Random random(seed ^ 0x706f70756c6172ULL);  // its own stream: the same popularity whatever else the seed drives
  std::vector<double> weights;
  switch (skew.kind) {
    case SkewKind::none:
      weights.assign(static_cast<std::size_t>(experts), 1.0);
      break;
    case SkewKind::zipf:
      weights = zipf_weights(experts, skew.parameter, random);
      break;
    case SkewKind::dirichlet:
      weights = dirichlet_weights(experts, skew.parameter, random);
      break;
    case SkewKind::power_law:
      weights = weights_of_loads(power_law_loads(experts, skew.parameter, static_cast<double>(tokens), random), top_k);
      break;
    case SkewKind::file:
      weights = weights_of_loads(counts_of_file(skew.path, experts), top_k);
      break;
  }
  normalise(weights);
  return weights;
}

MeanDraws mean_draws(std::span<const double> weights, std::int64_t top_k) {
  MeanDraws out;
  double t = 0;
  for (std::int64_t j = 0; j < top_k; ++j) {
    if (j > 0) t = clock_of_draws(weights, static_cast<double>(j), t);
    double gone = 0, rate = 0, square = 0;
    for (const double w : weights) {
      const double left = std::exp(-w * t);
      gone += w * (1 - left);
      rate += w * left;
      square += w * w * left;
    }
    out.clock.push_back(t);
    out.taken.push_back(std::min(gone, 1.0));
    out.next.push_back(rate > 0 ? square / rate : 0);
  }
  return out;
}

double probability_untouched(std::span<const double> set, const MeanDraws& draws) {
  const double weight = std::accumulate(set.begin(), set.end(), 0.0);
  double escape = 1;
  for (std::size_t j = 0; j < draws.clock.size(); ++j) {
    double others = draws.taken[j];
    for (const double w : set) others += (1 - std::exp(-w * draws.clock[j])) * (draws.next[j] - w);
    const double left = std::max(1 - others, weight);  // at least the set itself is left
    escape *= std::max(0.0, 1 - weight / left);
  }
  return escape;
}

std::vector<double> expected_loads(std::span<const double> weights, std::int64_t top_k) {
  const MeanDraws draws = mean_draws(weights, top_k);
  std::vector<double> loads;
  for (const double& w : weights) loads.push_back(1 - probability_untouched({&w, 1}, draws));
  // The mean-field escapes need not add up to k exactly: share the rest by each expert's room below 1.
  for (int round = 0; round < 8; ++round) {
    const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
    const double excess = static_cast<double>(top_k) - sum;
    if (std::abs(excess) < 1e-12 * static_cast<double>(top_k)) break;
    double room = 0;
    for (const double p : loads) room += p * (1 - p);
    if (!(room > 0)) break;
    for (double& p : loads) p = std::clamp(p + excess * p * (1 - p) / room, 0.0, 1.0);
  }
  normalise(loads);
  return loads;
}

std::vector<double> cap_loads(std::span<const double> loads, std::int64_t top_k) {
  std::vector<double> share(loads.begin(), loads.end());
  normalise(share);
  const double most = 1.0 / static_cast<double>(top_k);
  for (std::size_t round = 0; round < share.size(); ++round) {  // each round caps at least one more, or ends
    double capped = 0, free = 0;
    for (const double l : share) (l >= most ? capped : free) += std::min(l, most);
    if (free <= 0 || capped + free >= 1 - 1e-12) break;
    for (double& l : share) l = l >= most ? most : std::min(most, l * (1 - capped) / free);
  }
  // Fewer than k experts have any load: a token takes the rest of its k among the others, all alike.
  for (double& l : share) l = std::min(l, most);
  const double left = 1 - std::accumulate(share.begin(), share.end(), 0.0);
  const auto idle = static_cast<double>(std::count(share.begin(), share.end(), 0.0));
  if (left > 1e-9 && idle > 0) {
    for (double& l : share) l = l == 0 ? left / idle : l;
  }
  return share;
}

std::vector<double> weights_of_loads(std::span<const double> loads, std::int64_t top_k) {
  constexpr double kMost = 1 - 1e-6;  // a load of 1/k exactly would need an infinite weight
  const double k = static_cast<double>(top_k);
  std::vector<double> chance = cap_loads(loads, top_k);
  for (double& p : chance) p *= k;
  std::vector<double> weights;
  for (double& p : chance) {
    p = std::clamp(p, 1e-12, kMost);
    weights.push_back(-std::log1p(-p));
  }
  for (int round = 0; round < 100; ++round) {  // multiplicative corrections of the clock rates
    normalise(weights);
    const std::vector<double> now = expected_loads(weights, top_k);
    double worst = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double p = std::min(now[i] * k, kMost);
      worst = std::max(worst, std::abs(p - chance[i]));
      weights[i] *= std::log1p(-chance[i]) / std::log1p(-p);
    }
    if (worst < 1e-6) break;
  }
  normalise(weights);
  return weights;
}

double max_violation(std::span<const double> loads) {
  if (loads.empty()) return 0;
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (!(sum > 0)) return 0;
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) / sum - 1;
}

}  // namespace shardplan
