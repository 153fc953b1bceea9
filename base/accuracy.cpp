#include "base/accuracy.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

namespace {

constexpr double kApart = 1.05;  // pairs closer than 5 % are within the noise of a repeat: their order says nothing

struct Ranking {
  int concordant = 0, discordant = 0;
  double regret = 0;
  int questions = 0;
};

void rank_question(const std::vector<const ScoredRow*>& rows, Ranking& out) {
  if (rows.size() < 2) return;
  const auto faster = [](double ScoredRow::* key) {
    return [key](const ScoredRow* a, const ScoredRow* b) {
      return a->*key < b->*key || (a->*key == b->*key && a->id < b->id);
    };
  };
  const ScoredRow* chosen = *std::min_element(rows.begin(), rows.end(), faster(&ScoredRow::predicted_s));
  const ScoredRow* best = *std::min_element(rows.begin(), rows.end(), faster(&ScoredRow::measured_s));
  out.regret += chosen->measured_s / best->measured_s - 1;
  ++out.questions;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = i + 1; j < rows.size(); ++j) {
      const ScoredRow& slow = rows[i]->measured_s > rows[j]->measured_s ? *rows[i] : *rows[j];
      const ScoredRow& fast = &slow == rows[i] ? *rows[j] : *rows[i];
      if (slow.measured_s < kApart * fast.measured_s) continue;
      if (slow.predicted_s > fast.predicted_s) ++out.concordant;
      if (slow.predicted_s < fast.predicted_s) ++out.discordant;
    }
  }
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

FamilyAccuracy accuracy_of(std::span<const ScoredRow> rows) {
  FamilyAccuracy out;
  std::vector<double> errors, magnitudes, memory;
  std::map<std::string, std::vector<const ScoredRow*>> questions;
  int with_interval = 0, inside = 0;
  double largest = 0;
  for (const ScoredRow& row : rows) {
    if (!row.skipped.empty()) ++out.skipped;
    if (row.skipped.empty() && row.measured_memory && row.predicted_memory) {
      memory.push_back(std::abs(*row.predicted_memory / *row.measured_memory - 1));
    }
    if (!row.scored()) continue;
    ++out.n;
    if (magnitudes.empty() || std::abs(row.error()) > largest) {
      largest = std::abs(row.error());
      out.worst = row.id;
    }
    errors.push_back(row.error());
    magnitudes.push_back(std::abs(row.error()));
    if (row.low_s && row.high_s) {
      ++with_interval;
      inside += *row.low_s <= row.measured_s && row.measured_s <= *row.high_s;
    }
    if (!row.question.empty()) questions[row.question].push_back(&row);
  }
  if (!memory.empty()) out.memory_mape = mean(memory);
  if (errors.empty()) return out;
  out.mape = mean(magnitudes);
  out.median_ape = quantile(magnitudes, 0.5);
  out.p90_ape = quantile(magnitudes, 0.9);
  out.max_ape = quantile(magnitudes, 1);
  out.bias = mean(errors);
  if (with_interval > 0) out.coverage_80 = static_cast<double>(inside) / with_interval;
  Ranking ranking;
  for (const auto& [question, members] : questions) rank_question(members, ranking);
  if (ranking.concordant + ranking.discordant > 0) {
    out.kendall_tau =
        static_cast<double>(ranking.concordant - ranking.discordant) / (ranking.concordant + ranking.discordant);
  }
  if (ranking.questions > 0) out.regret = ranking.regret / ranking.questions;
  return out;
}

std::map<std::string, FamilyAccuracy> accuracy_by_family(std::span<const ScoredRow> rows) {
  std::map<std::string, std::vector<ScoredRow>> families;
  for (const ScoredRow& row : rows) families[row.family].push_back(row);
  std::map<std::string, FamilyAccuracy> out;
  for (const auto& [name, members] : families) out[name] = accuracy_of(members);
  return out;
}

}  // namespace shardplan
