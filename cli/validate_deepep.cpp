// DeepEP rows: two answers each, dispatch (FP8 with scales) and combine (BF16), on the GPU that the row names.
#include <map>
#include <memory>

#include "base/errors.hpp"
#include "cli/validate.hpp"
#include "hardware/calibrate_deepep.hpp"
#include "hardware/deepep.hpp"

namespace shardplan {

namespace {

constexpr int kFolds = 5;

class Models {
 public:
  const ExpertExchangeModel& of(const std::string& gpu) {
    auto& model = models_[gpu];
    if (!model) model = std::make_unique<ExpertExchangeModel>(load_cluster(gpu), Rates::calibrated, Fidelity::table);
    return *model;
  }

 private:
  std::map<std::string, std::unique_ptr<ExpertExchangeModel>> models_;
};

ExpertExchange question_of(const DeepEpRow& r) {
  ExpertExchange e;
  e.ranks = deepep_ranks(r) * r.nodes;
  e.ranks_per_domain = r.gpu == "gb200" || r.gpu == "gb300" ? e.ranks : deepep_ranks(r);
  e.nics_per_domain = e.ranks_per_domain;
  e.tokens = r.tokens;
  e.hidden = r.hidden;
  e.top_k = r.top_k;
  e.experts = r.experts;
  return e;
}

std::string unasked(const DeepEpRow& r) {
  if (r.gpu.empty()) return "the GPU \"" + r.device + "\" has no data file";
  if (r.nodes < 1 || r.hidden < 1 || r.top_k < 1 || r.experts < r.top_k)
    return "nodes, hidden size, top-k or experts make no exchange";
  return "";
}

}  // namespace

bool is_deepep_rows(const RowFile& file) { return file.csv && is_deepep_table(*file.csv); }

std::vector<ScoredRow> score_deepep_rows(const RowFile& file, const ScoreOptions& options) {
  const std::vector<DeepEpRow> rows = read_deepep_rows(*file.csv);
  std::vector<LeftOutDeepEp> left(rows.size());
  if (options.leave_out) left = leave_out_deepep(rows, kFolds);
  Models models;
  std::vector<ScoredRow> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const DeepEpRow& r = rows[i];
    const ExpertTransport transport = r.low_latency ? ExpertTransport::deepep_low_latency : ExpertTransport::deepep;
    for (const bool combine : {false, true}) {
      ScoredRow scored;
      scored.id = std::to_string(i + 1) + (combine ? ".combine" : ".dispatch");
      scored.family = std::string("deepep ") + (r.low_latency ? "low-latency " : "normal ") +
                      (combine ? "combine " : "dispatch ") + (r.gpu.empty() ? r.device : r.gpu);
      scored.measured_s = combine ? r.combine_seconds : r.dispatch_seconds;
      scored.skipped = unasked(r);
      if (scored.skipped.empty()) {
        try {
          ExpertExchange e = question_of(r);
          e.sms = r.low_latency ? 0 : combine ? r.combine_sms : r.dispatch_sms;
          const ExchangePrice p =
              combine ? models.of(r.gpu).combine(transport, e) : models.of(r.gpu).dispatch(transport, e);
          const double other = combine ? left[i].combine : left[i].dispatch;
          const double change = other > 0 ? other / p.price.seconds : 1;
          scored.predicted_s = p.price.seconds * change;
          scored.low_s = p.price.low * change;
          scored.high_s = p.price.high * change;
        } catch (const InputError& error) {
          scored.skipped = error.where() + ": " + error.what();
        }
      }
      out.push_back(std::move(scored));
    }
  }
  return out;
}

}  // namespace shardplan
