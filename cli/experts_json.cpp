// Answers of `shardplan experts` as JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/experts_answer.hpp"
#include "hardware/kernel_price.hpp"

namespace shardplan {
namespace {

/// Bytes and FLOP are whole numbers; of expected loads they are rounded.
std::int64_t whole(double amount) { return std::llround(amount); }

nlohmann::ordered_json decode_json(const ExpertsQuestion& q, const ExpertsDecode& d) {
  nlohmann::ordered_json out{{"batch", q.decode_batch},
                             {"weights", data_type_name(q.decode_weights)},
                             {"experts_touched", d.layer.experts_touched},
                             {"weight_bytes", whole(d.layer.weight_bytes)},
                             {"flops", whole(d.layer.flops)},
                             {"intensity", d.layer.intensity},
                             {"dense_intensity", d.layer.dense_intensity},
                             {"gap_limit", d.gap_limit},
                             {"gap_limit_routed_only", d.gap_limit_routed_only}};
  if (d.drawn) out["experts_touched_sampled"] = {{"mean", d.drawn->mean}, {"standard_error", d.drawn->standard_error}};
  out["ridge"] = nlohmann::ordered_json::array();
  for (const ExpertsDecode::Ridge& ridge : d.ridges)
    out["ridge"].push_back({{"format", data_type_name(ridge.format)},
                            {"weights", data_type_name(ridge.weights)},
                            {"flops_per_byte", ridge.flops_per_byte},
                            {"batch_at_ridge", ridge.batch},
                            {"dense_batch_at_ridge", ridge.dense_batch}});
  out["host_offload"] = {{"resident_experts", q.resident},
                         {"experts_fetched", d.host.experts_fetched},
                         {"bytes", whole(d.host.bytes)},
                         {"pcie_s", d.host.seconds}};
  return out;
}

nlohmann::ordered_json load_json(const ExpertsQuestion& q, const ExpertsAnswer& a) {
  const MoeLayerTimes& t = a.times;
  const SampledTraffic& drawn = a.traffic;
  const auto gpu = gpu_loads(q.placement, q.popularity.loads);
  const double bound = busiest_gpu_bound(q.placement, q.popularity.loads) * q.ep;
  std::size_t least = SIZE_MAX, most = 0;
  for (const auto& held : q.placement.on_gpu) {
    least = std::min(least, held.size());
    most = std::max(most, held.size());
  }
  nlohmann::ordered_json histogram = nlohmann::ordered_json::array();
  const double all = static_cast<double>(q.tokens) * q.ep * static_cast<double>(q.moe->top_k);
  for (const double l : q.popularity.loads) histogram.push_back(l * all);
  nlohmann::ordered_json out{{"max_violation_expert", t.load.max_over_mean_expert - 1},
                             {"max_violation_gpu", max_violation(gpu)},
                             {"lower_bound_gpu", bound - 1},
                             {"idle_experts", drawn.idle_experts},
                             {"histogram", histogram},
                             {"gpu_loads", gpu},
                             {"placement", q.placement_name},
                             {"experts_per_gpu", {{"least", least}, {"most", most}}},
                             {"physical_experts", q.placement.physical()},
                             {"dropped", t.load.dropped},
                             {"dropped_counting_per_gpu", a.counted_drops},
                             {"padding", t.load.padding}};
  if (q.redundant > 0) {
    const ExpertPlacement before = place_contiguous(q.moe->experts, q.ep);
    out["max_violation_gpu_before"] = max_violation(gpu_loads(before, q.popularity.loads));
  }
  out["sampled"] = {{"tokens", drawn.tokens},
                    {"max_violation_expert", drawn.max_violation_expert},
                    {"max_violation_gpu", drawn.max_violation_gpu},
                    {"distinct_nodes", drawn.distinct_nodes},
                    {"distinct_gpus", drawn.distinct_ranks},
                    {"nodes_histogram", drawn.nodes_histogram}};
  return out;
}

nlohmann::ordered_json demonstrations_json(const ExpertDemonstrations& d) {
  auto flips = [](const FlipShares& f) { return nlohmann::ordered_json{{"choices", f.choices}, {"tokens", f.tokens}}; };
  return {{"batch_mates",
           {{"capacity_factor", d.capacity_factor},
            {"prompt_tokens", d.mates.prompt_tokens},
            {"dropped_first", d.mates.dropped_first},
            {"dropped_second", d.mates.dropped_second},
            {"changed_tokens", d.mates.changed_tokens},
            {"changed_tokens_dropless", d.mates.changed_dropless}}},
          {"rounding_flips",
           {{"bf16_scores", flips(d.rounding.bf16_scores)},
            {"bf16_logits", flips(d.rounding.bf16_logits)},
            {"fp32_other_order", flips(d.rounding.reversed_sum)},
            {"fp32_other_order_expected_choices", d.rounding.reversed_expected},
            {"mean_gap", d.rounding.mean_gap},
            {"mean_error", d.rounding.mean_error},
            {"tokens", d.rounding.tokens}}},
          {"gate_gradients",
           {{"logits_that_carry_any", d.gradients.carrying},
            {"logits_that_carry_none", d.gradients.silent},
            {"largest", d.gradients.largest},
            {"largest_top1_renormalised", d.gradients.top1_renormalised}}},
          {"routing_replay_bytes", whole(d.replay)}};
}

}  // namespace

nlohmann::ordered_json experts_json(const ExpertsQuestion& q, const ExpertsAnswer& a, bool matrix) {
  const MoeLayerTimes& t = a.times;
  nlohmann::ordered_json out;
  out["model"] = q.model.name;
  out["cluster"] = q.cluster.name;
  out["rates"] = q.layer.rates == Rates::datasheet ? "datasheet" : "calibrated";
  out["nodes_per_token"] = q.nodes;
  out["pairs"] = std::llround(t.load.pairs_per_rank);
  out["flops"] = whole(t.flops);
  out["routed_flops"] = whole(t.routed_flops);
  out["compute_s"] = t.compute();
  out["routed_s"] = t.routed.seconds;
  out["shared_s"] = t.shared.seconds;
  out["routed_products"] = t.products;
  out["network_bytes"] = whole(t.load.dispatch_network + t.load.combine_network);
  out["network_s"] = t.network();
  out["nvlink_bytes"] = whole(t.load.dispatch_nvlink + t.load.combine_nvlink);
  out["nvlink_s"] = t.nvlink();
  out["comm_over_compute"] = t.comm_over_compute();
  out["permute_bytes"] = whole(t.permute_bytes);
  out["permute_s"] = t.permute.seconds;
  out["dispatch_s"] = t.exchange.dispatch.total.seconds;
  out["combine_s"] = t.exchange.combine.total.seconds;
  out["sms_held"] = t.exchange.sms_held;
  out["load"] = load_json(q, a);
  out["distinct_nodes"] = t.load.distinct_nodes;
  out["distinct_gpus"] = t.load.distinct_ranks;
  out["overlapped_s"] = q.layer.waves > 1 ? t.overlap.waves : t.overlap.shared;
  out["overlap"] = {
      {"none_s", t.overlap.none}, {"shared_s", t.overlap.shared}, {"microbatches_s", t.overlap.microbatches}};
  if (q.layer.waves > 1) out["overlap"]["waves_s"] = t.overlap.waves;
  out["balance_flops_per_byte"] = a.balance;
  out["assumptions"] = nlohmann::ordered_json::array();
  for (const Assumption& line : a.assumptions) {
    out["assumptions"].push_back({{"what", line.what},
                                  {"communication_s", line.communication_s},
                                  {"compute_s", line.compute_s},
                                  {"ratio", line.ratio}});
  }
  out["basis"] = {
      {"compute", basis_name(weaker(t.routed.basis, t.shared.seconds > 0 ? t.shared.basis : t.routed.basis))},
      {"dispatch", basis_name(t.exchange.dispatch.total.basis)},
      {"combine", basis_name(t.exchange.combine.total.basis)},
      {"exchange", t.exchange.model}};
  out["frameworks"] = nlohmann::ordered_json::object();
  if (q.uneven()) {
    out["frameworks"]["megatron"] = "refuses: the number of experts must be divisible by the expert parallel size";
  }
  if (a.decode) out["decode"] = decode_json(q, *a.decode);
  if (a.demonstrations) out["demonstrations"] = demonstrations_json(*a.demonstrations);
  if (matrix) {
    out["matrix"] = {{"source_rank_by_expert", a.traffic.counts},
                     {"source_rank_by_rank_tokens", a.traffic.rank_tokens}};
  }
  return out;
}

}  // namespace shardplan
