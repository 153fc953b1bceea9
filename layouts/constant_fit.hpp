#pragma once
// The search for the step's constants on measured runs: see the objective in constant_fit.cpp.
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "layouts/run_residuals.hpp"
#include "layouts/score_runs.hpp"

namespace shardplan {

/// A constant in the search.
struct Knob {
  std::string scope, name, unit;
  double value = 0, start = 0, least = 0, most = 0, spread = 0;
  std::vector<std::size_t> rows;  // of the fit, that it has a say in
  const MachineConstantRow* machine = nullptr;
  std::set<Pricer*> pricers;  // of the machines in its scope
  const StackConstantRow* stack = nullptr;
  std::string release;                  // of the stack that the constant belongs to; empty: to all
  std::vector<std::size_t> stack_rows;  // every run of the stack, or of this release
};

/// A fit in progress. Refers to the runs and the shelf, which hold the constants found so far.
class ConstantFit {
 public:
  /// `learn` says which runs may be learned from; the constants reach all runs.
  ConstantFit(std::vector<RunQuestion>& runs, PricerShelf& shelf, const std::function<bool(const MeasuredRun&)>& learn,
              bool from_neutral);
  /// At most so many sweeps over all constants.
  void run(int rounds);

  /// Of a run, with the constants as they are.
  Residual residual_of(std::size_t run);
  /// Indices of the runs that are learned from; of all runs marked for scoring.
  const std::vector<std::size_t>& learned() const { return fit_rows_; }
  const std::vector<std::size_t>& marked() const { return marked_; }
  /// The text of step_constants.json.
  std::string document(const Residuals& residuals) const;

 private:
  void forget();
  void collect_machine_knobs();
  /// One for all stacks of a host_code.
  void collect_host_knobs();
  void collect_stack_knobs();
  /// A factor for each release of a stack that has several.
  void collect_release_knobs(const std::map<std::string, std::vector<std::size_t>>& learned,
                             const std::map<std::string, std::vector<std::size_t>>& all);
  /// Writes a knob's value into the stacks and machines of its scope.
  void apply(const Knob& k);
  void evaluate(const std::vector<std::size_t>& rows, std::vector<double>& errors);
  double total(const std::vector<std::size_t>& rows, const std::vector<double>& errors) const;
  static double prior_of(const Knob& k);
  double prior() const;
  void improve(Knob& k);
  /// Host seconds a launch and a step explain the same small runs: from each of a few launch times the constants of the
  /// stacks of that host code are searched anew, and the best kept.
  void restart_hosts();
  /// Host codes' launch times become those of the mean host: what a GPU whose hosts were never measured takes.
  void centre_hosts();

  std::vector<RunQuestion>& runs_;
  PricerShelf& shelf_;
  std::vector<std::size_t> known_, marked_, fit_rows_;
  std::map<std::string, int> in_family_;
  std::vector<Knob> knobs_;
  std::vector<double> errors_;
  std::vector<Scatter> scatter_;
};

}  // namespace shardplan
