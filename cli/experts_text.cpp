// Answers of `shardplan experts` for people.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/experts_answer.hpp"

namespace shardplan {
namespace {

/// "0.04x, 0.1x, 1.9x, 25.3x": loads over the mean at the least, a tenth, the median, nine tenths, the most.
std::string quantiles(std::vector<double> loads) {
  std::sort(loads.begin(), loads.end());
  std::string out;
  for (const double at : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    const double load = loads[static_cast<std::size_t>(std::llround(at * static_cast<double>(loads.size() - 1)))];
    out += (out.empty() ? "" : ", ") + text_of_number(load * static_cast<double>(loads.size()), 3) + "x";
  }
  return out;
}

/// "1: 3 %, 2: 97 %": shares of the tokens by their number of distinct nodes.
std::string node_shares(const SampledTraffic& drawn) {
  std::string out;
  for (std::size_t n = 0; n < drawn.nodes_histogram.size(); ++n) {
    if (drawn.nodes_histogram[n] == 0) continue;
    const double share = static_cast<double>(drawn.nodes_histogram[n]) / static_cast<double>(drawn.tokens);
    out += (out.empty() ? "" : ", ") + std::to_string(n) + ": " + text_of_percent(share);
  }
  return out;
}

void print_times(const ExpertsQuestion& q, const ExpertsAnswer& a) {
  const MoeLayerTimes& t = a.times;
  std::printf("  compute    %9s   %s with the shared expert, %s without; routed products %s (%s)\n",
              text_of_seconds(t.compute()).c_str(), text_of_number(t.flops / 1e12, 3).append(" TFLOP").c_str(),
              text_of_number(t.routed_flops / 1e12, 3).append(" TFLOP").c_str(), t.products.c_str(),
              std::string(basis_name(t.routed.basis)).c_str());
  std::printf("  permute    %9s   %s read and written by the permutations\n",
              text_of_seconds(t.permute.seconds).c_str(), text_of_decimal_bytes(t.permute_bytes).c_str());
  std::printf("  network    %9s   %s out and back, %s copies a token%s\n", text_of_seconds(t.network()).c_str(),
              text_of_decimal_bytes(t.load.dispatch_network + t.load.combine_network).c_str(),
              text_of_number(t.load.network_copies, 3).c_str(),
              q.layer.load.count_own_node ? ", own node counted" : " to other nodes");
  std::printf("  NVLink     %9s   %s out and back, %s copies a token\n", text_of_seconds(t.nvlink()).c_str(),
              text_of_decimal_bytes(t.load.dispatch_nvlink + t.load.combine_nvlink).c_str(),
              text_of_number(t.load.nvlink_copies, 3).c_str());
  std::printf("  communication over compute, one after the other: %s\n",
              text_of_number(t.comm_over_compute(), 3).c_str());
  std::printf("  overlap: none %s, shared expert under dispatch %s, two micro-batches or DualPipe %s",
              text_of_seconds(t.overlap.none).c_str(), text_of_seconds(t.overlap.shared).c_str(),
              text_of_seconds(t.overlap.microbatches).c_str());
  if (q.layer.waves > 1)
    std::printf(", %d waves %s (%sx)", q.layer.waves, text_of_seconds(t.overlap.waves).c_str(),
                text_of_number(t.overlap.none / t.overlap.waves, 3).c_str());
  std::printf(
      "\n  balance: %d x width %s / (%s + %s bytes) = %s FLOP per byte: every GB/s of interconnect hides %s TFLOP/s\n",
      q.moe->gated ? 6 : 4, text_of_count(q.moe->width).c_str(),
      text_of_number(q.layer.load.dispatch_bytes_per_value, 4).c_str(),
      text_of_number(q.layer.load.combine_bytes_per_value, 4).c_str(), text_of_number(a.balance, 4).c_str(),
      text_of_number(a.balance / 1000, 3).c_str());
}

void print_load(const ExpertsQuestion& q, const ExpertsAnswer& a) {
  const MoeLayerTimes& t = a.times;
  const auto gpu = gpu_loads(q.placement, q.popularity.loads);
  std::printf("\nload (expected; popularity %s, placement %s, %s experts on %d GPUs):\n", skew_text(q.skew).c_str(),
              q.placement_name.c_str(), text_of_count(q.placement.physical()).c_str(), q.ep);
  std::printf("  busiest expert %sx the mean, busiest GPU %sx (lower bound %sx)",
              text_of_number(t.load.max_over_mean_expert, 4).c_str(), text_of_number(max_violation(gpu) + 1, 4).c_str(),
              text_of_number(busiest_gpu_bound(q.placement, q.popularity.loads) * q.ep, 4).c_str());
  if (q.redundant > 0) {
    const ExpertPlacement before = place_contiguous(q.moe->experts, q.ep);
    std::printf(", before redundancy %sx",
                text_of_number(max_violation(gpu_loads(before, q.popularity.loads)) + 1, 4).c_str());
  }
  std::printf(
      "\n  (the slowest GPU sets the time of the layer: 2x the mean = twice the time; the bound is what no placement "
      "of "
      "these copies beats)\n  drawn (%s tokens, seed %lld): busiest expert %sx, busiest GPU %sx, %lld idle experts, %s "
      "nodes and %s GPUs "
      "a "
      "token\n",
      text_of_count(a.traffic.tokens).c_str(), static_cast<long long>(q.seed),
      text_of_number(a.traffic.max_violation_expert + 1, 4).c_str(),
      text_of_number(a.traffic.max_violation_gpu + 1, 4).c_str(), static_cast<long long>(a.traffic.idle_experts),
      text_of_number(a.traffic.distinct_nodes, 3).c_str(), text_of_number(a.traffic.distinct_ranks, 3).c_str());
  std::printf("  experts by expected load over the mean (least, a tenth, median, nine tenths, most): %s\n",
              quantiles(q.popularity.loads).c_str());
  if (t.load.nodes > 1) std::printf("  drawn tokens by distinct nodes: %s\n", node_shares(a.traffic).c_str());
  if (q.layer.load.capacity_factor > 0) {
    std::printf(
        "  capacity factor %s: the popularity alone drops %s of the pairs (what is priced here), %s where each GPU "
        "counts its own %s tokens\n  (Switch, Megatron); padded to the capacity, %s of the expert rows would be empty "
        "(not priced)\n",
        text_of_number(q.layer.load.capacity_factor, 3).c_str(), text_of_percent(t.load.dropped).c_str(),
        text_of_percent(a.counted_drops).c_str(), text_of_count(q.tokens).c_str(),
        text_of_percent(t.load.padding).c_str());
  }
}

void print_decode(const ExpertsQuestion& q, const ExpertsDecode& d) {
  std::printf("\ndecode, %s tokens a step over the whole layer, %s weights:\n", text_of_count(q.decode_batch).c_str(),
              std::string(data_type_name(q.decode_weights)).c_str());
  std::printf(
      "  %s of %s experts touched, %s read for %s GFLOP: %s FLOP per byte (a dense model of the same weights: %s; the "
      "gap tends to %s, routed experts alone %s)\n",
      text_of_number(d.layer.experts_touched, 4).c_str(), text_of_count(q.moe->experts).c_str(),
      text_of_decimal_bytes(d.layer.weight_bytes).c_str(), text_of_number(d.layer.flops / 1e9, 4).c_str(),
      text_of_number(d.layer.intensity, 3).c_str(), text_of_number(d.layer.dense_intensity, 3).c_str(),
      text_of_number(d.gap_limit, 3).c_str(), text_of_number(d.gap_limit_routed_only, 3).c_str());
  for (const ExpertsDecode::Ridge& ridge : d.ridges)
    std::printf("  ridge of %s products on %s weights: %s FLOP per byte, reached at %s tokens (dense: %s)\n",
                std::string(data_type_name(ridge.format)).c_str(), std::string(data_type_name(ridge.weights)).c_str(),
                text_of_number(ridge.flops_per_byte, 3).c_str(), text_of_count(ridge.batch).c_str(),
                text_of_count(ridge.dense_batch).c_str());
  std::printf("  experts on the host (%s resident): %s fetched a step and layer, %s over PCIe in %s\n",
              text_of_count(q.resident).c_str(), text_of_number(d.host.experts_fetched, 4).c_str(),
              text_of_decimal_bytes(d.host.bytes).c_str(), text_of_seconds(d.host.seconds).c_str());
}

void print_demonstrations(const ExpertsQuestion& q, const ExpertDemonstrations& d) {
  std::printf(
      "\ndemonstrations:\n  one prompt of %s tokens in two batches, capacity factor %s: %s and %s of its selections "
      "dropped, %s "
      "tokens computed differently; dropless %s\n",
      text_of_count(d.mates.prompt_tokens).c_str(), text_of_number(d.capacity_factor, 3).c_str(),
      text_of_percent(d.mates.dropped_first).c_str(), text_of_percent(d.mates.dropped_second).c_str(),
      text_of_count(d.mates.changed_tokens).c_str(), text_of_count(d.mates.changed_dropless).c_str());
  std::printf(
      "  rounding (router at initialisation, %s tokens, against FP32): scores in BF16 change %s of the choices, logits "
      "in BF16 %s, FP32 summed in the other order %s\n    (%s expected: errors there differ by %s, the last expert "
      "taken leads the next by %s)\n",
      text_of_count(d.rounding.tokens).c_str(), text_of_percent(d.rounding.bf16_scores.choices).c_str(),
      text_of_percent(d.rounding.bf16_logits.choices).c_str(), text_of_percent(d.rounding.reversed_sum.choices).c_str(),
      text_of_percent(d.rounding.reversed_expected).c_str(), text_of_number(d.rounding.mean_error, 2).c_str(),
      text_of_number(d.rounding.mean_gap, 2).c_str());
  std::printf(
      "  gate gradients (central differences, one token): %s of %s logits carry any, %s none%s; as top-1 with a "
      "renormalised gate %s\n",
      text_of_count(d.gradients.carrying).c_str(), text_of_count(q.moe->experts).c_str(),
      text_of_count(d.gradients.silent).c_str(),
      d.gradients.silent == 0 ? " (a softmax over all experts, not renormalised, sees every logit)" : "",
      d.gradients.top1_renormalised < 1e-8 ? "none does" : "some do");
  std::printf("  replaying the routes of a sequence of %s tokens: %s of expert ids (2 bytes each)\n",
              text_of_count(q.tokens).c_str(), text_of_decimal_bytes(d.replay).c_str());
}

/// How many nodes a token may use, and what the model's own router would say.
void print_node_limit(const ExpertsQuestion& q, const ExpertsAnswer& a) {
  if (a.times.load.nodes <= 1 && q.nodes != "model") return;
  const std::string own = text_of_count(q.moe->groups_per_token) + " of its " + text_of_count(q.moe->groups) +
                          " groups of " + text_of_count(q.moe->experts / q.moe->groups) + " experts";
  if (q.nodes == "model") {
    std::printf("node limit: the router's own, %s, on %d nodes\n", own.c_str(), a.times.load.nodes);
  } else {
    const bool same = a.times.load.nodes == q.moe->groups && q.nodes == std::to_string(q.moe->groups_per_token);
    const std::string hint = " (the model's router keeps a token on " + own + ": --nodes-per-token model)";
    std::printf("node limit: %s of %d nodes%s\n", q.nodes.c_str(), a.times.load.nodes,
                q.moe->groups > 1 && !same ? hint.c_str() : "");
  }
}

}  // namespace

void print_experts(const ExpertsQuestion& q, const ExpertsAnswer& a) {
  const MoeLayerTimes& t = a.times;
  std::printf("%s, one MoE layer forward on %s GPUs of %s: ep %d, %s tokens a GPU, top-%s of %s = %s pairs\n",
              q.model.name.c_str(), text_of_count(q.gpus).c_str(), q.cluster.name.c_str(), q.ep,
              text_of_count(q.tokens).c_str(), text_of_count(q.moe->top_k).c_str(),
              text_of_count(q.moe->experts).c_str(), text_of_count(std::llround(t.load.pairs_per_rank)).c_str());
  std::printf("rates %s, products %s, dispatch %s, combine %s; seconds are the busiest GPU's, bytes the mean GPU's\n",
              q.layer.rates == Rates::datasheet ? "datasheet" : "calibrated",
              std::string(data_type_name(q.layer.precision)).c_str(), q.dispatch.c_str(), q.combine.c_str());
  print_node_limit(q, a);
  const std::string held =
      t.exchange.sms_held > 0 ? ", its kernels hold " + text_of_count(std::llround(t.exchange.sms_held)) + " SMs" : "";
  std::printf("exchange: %s (%s)%s\n", t.exchange.model.c_str(),
              std::string(basis_name(t.exchange.dispatch.total.basis)).c_str(), held.c_str());
  print_times(q, a);
  print_load(q, a);
  std::printf(
      "\nwhat each assumption is worth (communication, compute, ratio; each line changes the first by one thing):\n");
  for (const Assumption& line : a.assumptions) {
    std::printf("  %9s %9s %6s  %s\n", text_of_seconds(line.communication_s).c_str(),
                text_of_seconds(line.compute_s).c_str(), text_of_number(line.ratio, 3).c_str(), line.what.c_str());
  }
  if (a.decode) print_decode(q, *a.decode);
  if (a.demonstrations) print_demonstrations(q, *a.demonstrations);
  if (q.uneven())
    std::printf("note: Megatron refuses this: %s experts do not divide over %d GPUs\n",
                text_of_count(q.moe->experts + q.redundant).c_str(), q.ep);
}

}  // namespace shardplan
