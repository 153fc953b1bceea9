// shardplan experts: one MoE layer on a group of GPUs: pairs, bytes, seconds, balance, decode.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "layouts/expert_layer.hpp"
#include "layouts/expert_traffic.hpp"
#include "models/coverage.hpp"
#include "models/routing_demonstrations.hpp"
#include "models/transform.hpp"

namespace shardplan {

namespace {

struct Options {
  CommonOptions common;
  std::string ep, tokens, nodes = "unlimited", skew = "none", redundant = "0", dispatch = "fp8", combine = "bf16";
  std::string own_node = "0", waves = "1", seed = "1", capacity = "0", placement = "auto", transport = "deepep";
  std::string decode, decode_weights = "fp8", resident = "0";
  bool matrix = false, demonstrate = false;
};

struct Question {
  Model model;
  const Moe* moe = nullptr;
  Cluster cluster;
  std::int64_t gpus = 0, tokens = 0, seed = 1, decode_batch = 0, resident = 0;
  int ep = 1, redundant = 0;
  DataType decode_weights = DataType::fp8;
  bool demonstrate = false;
  Skew skew;
  MoeLayerQuestion layer;
  ExpertPopularity popularity;
  ExpertPlacement placement;
  std::string placement_name, dispatch, combine;
};

struct ValueBytes {
  const char* word;
  double bytes;
};
// Bytes per value on the wire: payload alone, or with one FP32 scale per 128 values.
constexpr ValueBytes kValueBytes[] = {{"fp8", 1}, {"fp8-scaled", 1 + 4.0 / 128}, {"bf16", 2}};

double value_bytes(const std::string& word, const char* option) {
  for (const ValueBytes& row : kValueBytes) {
    if (word == row.word) return row.bytes;
  }
  throw InputError(option, "\"" + word + "\" is not one of fp8, fp8-scaled, bf16");
}

int small_count(const std::string& text, const char* option, std::int64_t least, std::int64_t most) {
  const std::int64_t n = parse_count(text, option);
  if (n < least || n > most) {
    throw InputError(
        option, "out of range: " + text + " is not between " + std::to_string(least) + " and " + std::to_string(most));
  }
  return static_cast<int>(n);
}

ExpertTransport transport_of(const std::string& word) {
  for (std::size_t i = 0; i < kExpertTransportNames.size(); ++i) {
    if (word == kExpertTransportNames[i]) return static_cast<ExpertTransport>(i);
  }
  const std::vector<std::string> names(kExpertTransportNames.begin(), kExpertTransportNames.end());
  throw InputError("--transport", "unknown transport \"" + word + "\"" + did_you_mean(word, names) +
                                      "; known: nccl, deepep, deepep-low-latency, deepep-v2, hybridep");
}

void place(const Options& o, Question& q) {
  const int nodes = (q.ep + q.layer.load.ranks_per_node - 1) / q.layer.load.ranks_per_node;
  const bool limited = q.layer.load.nodes_per_token > 0 && q.layer.load.nodes_per_token < nodes;
  std::string how = o.placement;
  if (how == "auto") how = q.redundant == 0 ? "contiguous" : (limited ? "hierarchical" : "global");
  if (how == "contiguous") {
    if (q.redundant > 0)
      throw InputError("--placement", "contiguous has no place for redundant experts; use global or hierarchical");
    q.placement = place_contiguous(q.moe->experts, q.ep);
  } else if (how == "global") {
    if (limited)
      throw InputError("--placement",
                       "a node limit needs the experts of a routing group on one node; use contiguous or hierarchical");
    q.placement = place_balanced(q.popularity.loads, q.ep, q.redundant);
  } else if (how == "hierarchical") {
    const int groups = q.moe->groups > 1 ? static_cast<int>(q.moe->groups) : nodes;
    q.placement = place_hierarchical(q.popularity.loads, q.ep, q.redundant, groups, nodes);
  } else {
    throw InputError("--placement", "\"" + how + "\" is not one of auto, contiguous, global, hierarchical");
  }
  q.placement_name = how;
}

Question question_of(const Options& o) {
  Question q;
  q.model = read_model(o.common);
  q.moe = first_moe(q.model);
  if (q.moe == nullptr) throw InputError("--model", q.model.name + " has no mixture-of-experts layer");
  q.cluster = load_cluster(o.common.cluster);
  q.gpus = read_gpus(o.common);
  q.ep = small_count(o.ep, "--ep", 1, 65536);
  if (q.gpus % q.ep != 0)
    throw InputError("--ep", std::to_string(q.ep) + " does not divide " + std::to_string(q.gpus) + " GPUs");
  q.tokens = parse_binary_count(o.tokens, "--tokens-per-gpu");
  if (q.tokens < 1 || q.tokens > (std::int64_t{1} << 30))
    throw InputError("--tokens-per-gpu", "needs 1 to 2^30 tokens");
  q.seed = parse_count(o.seed, "--seed");
  q.skew = parse_skew(o.skew, "--skew");
  q.redundant = small_count(o.redundant, "--redundant", 0, 65536);
  q.dispatch = o.dispatch;
  q.combine = o.combine;

  MoeLayerQuestion& layer = q.layer;
  layer.rates = read_rates(o.common);
  layer.precision = parse_precision(o.common.precision, "--precision");
  layer.waves = small_count(o.waves, "--waves", 1, 1024);
  ExpertLoadQuestion& load = layer.load;
  load.hidden = q.model.hidden;
  load.tokens_per_rank = static_cast<double>(q.tokens);
  load.ep = q.ep;
  load.ranks_per_node = std::max(1, std::min(q.cluster.node.nvlink_domain, q.ep));
  if (o.nodes != "unlimited") load.nodes_per_token = small_count(o.nodes, "--nodes-per-token", 1, 65536);
  load.transport = transport_of(o.transport);
  load.dispatch_bytes_per_value = value_bytes(o.dispatch, "--dispatch");
  load.combine_bytes_per_value = value_bytes(o.combine, "--combine");
  load.count_own_node = small_count(o.own_node, "--count-own-node", 0, 1) == 1;
  load.every_copy = layer.rates == Rates::datasheet;
  load.capacity_factor = parse_number(o.capacity, "--capacity-factor");
  if (load.capacity_factor < 0 || load.capacity_factor > 1000)
    throw InputError("--capacity-factor", "takes a number from 0 (dropless) to 1000");

  q.popularity =
      make_popularity(q.skew, q.moe->experts, q.moe->top_k, q.tokens * q.ep, static_cast<std::uint64_t>(q.seed));
  q.demonstrate = o.demonstrate;
  const int nodes = (q.ep + load.ranks_per_node - 1) / load.ranks_per_node;
  q.popularity =
      limit_to_nodes(std::move(q.popularity), nodes, load.nodes_per_token, static_cast<std::uint64_t>(q.seed));
  place(o, q);
  if (!o.decode.empty()) q.decode_batch = small_count(o.decode, "--decode-batch", 1, 1 << 30);
  q.decode_weights = parse_precision(o.decode_weights, "--decode-weights");
  q.resident = small_count(o.resident, "--resident", 0, 65536);
  return q;
}

nlohmann::ordered_json decode_json(const Question& q) {
  DecodeQuestion d{q.moe, q.model.hidden, static_cast<double>(q.decode_batch), bytes_of(q.decode_weights), true, {}};
  if (!q.popularity.uniform) d.loads = q.popularity.loads;
  const DecodeLayer layer = decode_layer(d);
  nlohmann::ordered_json out{{"batch", q.decode_batch},
                             {"weights", data_type_name(q.decode_weights)},
                             {"experts_touched", layer.experts_touched},
                             {"weight_bytes", layer.weight_bytes},
                             {"flops", layer.flops},
                             {"intensity", layer.intensity},
                             {"dense_intensity", layer.dense_intensity},
                             {"gap_limit", intensity_gap(*q.moe, true)},
                             {"gap_limit_routed_only", intensity_gap(*q.moe, false)}};
  const SampledCoverage drawn =
      sample_coverage(q.popularity.weights, q.moe->top_k, std::min<std::int64_t>(q.decode_batch, 4096), 200,
                      static_cast<std::uint64_t>(q.seed));
  if (q.decode_batch <= 4096)
    out["experts_touched_sampled"] = {{"mean", drawn.mean}, {"standard_error", drawn.standard_error}};
  const double bandwidth = q.cluster.gpu.hbm_bytes_per_second.value;
  out["ridge"] = nlohmann::ordered_json::array();
  for (const DataType type : {DataType::bf16, DataType::fp8, DataType::nvfp4}) {
    const double peak = q.cluster.gpu.peak(type);
    if (!(peak > 0)) continue;
    DecodeQuestion at = d;
    at.bytes_per_weight = bytes_of(type);
    out["ridge"].push_back({{"format", data_type_name(type)},
                            {"flops_per_byte", peak / bandwidth},
                            {"batch_at_ridge", batch_at_ridge(at, peak / bandwidth)},
                            {"dense_batch_at_ridge", std::ceil(peak / bandwidth * at.bytes_per_weight / 2)}});
  }
  const double pcie = q.cluster.node.pcie_bytes_per_second.value;
  const HostOffload host = host_offload(d, q.resident, pcie);
  out["host_offload"] = {{"resident_experts", q.resident},
                         {"experts_fetched", host.experts_fetched},
                         {"bytes", host.bytes},
                         {"pcie_s", host.seconds}};
  return out;
}

nlohmann::ordered_json load_json(const Question& q, const MoeLayerTimes& t, const SampledTraffic& drawn) {
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

/// Prompt of 64 tokens behind 448 others; router of this shape at initialisation over 64 tokens; ids of one sequence.
struct Demonstrations {
  double capacity_factor = 1;
  BatchMates mates;
  RoundingReport rounding;
  double replay = 0;
};

Demonstrations demonstrations_of(const Question& q) {
  Demonstrations d;
  const auto seed = static_cast<std::uint64_t>(q.seed);
  if (q.layer.load.capacity_factor > 0) d.capacity_factor = q.layer.load.capacity_factor;
  d.mates = batch_mates(q.popularity.weights, q.moe->top_k, 64, 448, d.capacity_factor, seed);
  d.rounding = rounding_report(*q.moe, q.model.hidden, 64, seed);
  std::int64_t layers = 0;
  for (const Layer& layer : q.model.layers) layers += layer.moe.has_value();
  d.replay = replay_bytes(q.tokens, q.moe->top_k, layers);
  return d;
}

nlohmann::ordered_json demonstrations_json(const Question& q) {
  const Demonstrations d = demonstrations_of(q);
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
            {"fp32_other_order", flips(d.rounding.reversed_sum)}}},
          {"routing_replay_bytes", d.replay}};
}

void print_demonstrations(const Question& q) {
  const Demonstrations d = demonstrations_of(q);
  std::printf(
      "\ndemonstrations:\n  one prompt of %s tokens in two batches, capacity factor %s: %s and %s of its selections "
      "dropped, %s "
      "tokens computed differently; dropless %s\n",
      text_of_count(d.mates.prompt_tokens).c_str(), text_of_number(d.capacity_factor, 3).c_str(),
      text_of_percent(d.mates.dropped_first).c_str(), text_of_percent(d.mates.dropped_second).c_str(),
      text_of_count(d.mates.changed_tokens).c_str(), text_of_count(d.mates.changed_dropless).c_str());
  std::printf(
      "  rounding (router at initialisation, against FP32): scores in BF16 change %s of the choices, logits in BF16 "
      "%s, FP32 "
      "summed in the other order %s\n",
      text_of_percent(d.rounding.bf16_scores.choices).c_str(), text_of_percent(d.rounding.bf16_logits.choices).c_str(),
      text_of_percent(d.rounding.reversed_sum.choices).c_str());
  std::printf("  replaying the routes of a sequence of %s tokens: %s of expert ids (2 bytes each)\n",
              text_of_count(q.tokens).c_str(), text_of_decimal_bytes(d.replay).c_str());
}

bool uneven(const Question& q) { return (q.moe->experts + q.redundant) % q.ep != 0; }

struct Answer {
  MoeLayerTimes times;
  std::vector<Assumption> assumptions;
  SampledTraffic traffic;
  double balance = 0;
};

nlohmann::ordered_json answer_json(const Question& q, const Answer& a, bool matrix) {
  const MoeLayerTimes& t = a.times;
  nlohmann::ordered_json out;
  out["model"] = q.model.name;
  out["cluster"] = q.cluster.name;
  out["rates"] = q.layer.rates == Rates::datasheet ? "datasheet" : "calibrated";
  out["pairs"] = std::llround(t.load.pairs_per_rank);
  out["flops"] = t.flops;
  out["routed_flops"] = t.routed_flops;
  out["compute_s"] = t.compute();
  out["routed_s"] = t.routed.seconds;
  out["shared_s"] = t.shared.seconds;
  out["routed_products"] = t.products;
  out["network_bytes"] = t.load.dispatch_network + t.load.combine_network;
  out["network_s"] = t.network();
  out["nvlink_bytes"] = t.load.dispatch_nvlink + t.load.combine_nvlink;
  out["nvlink_s"] = t.nvlink();
  out["comm_over_compute"] = t.comm_over_compute();
  out["permute_bytes"] = t.permute_bytes;
  out["permute_s"] = t.permute.seconds;
  out["dispatch_s"] = t.exchange.dispatch.total.seconds;
  out["combine_s"] = t.exchange.combine.total.seconds;
  out["sms_held"] = t.exchange.sms_held;
  out["load"] = load_json(q, t, a.traffic);
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
  if (uneven(q)) {
    out["frameworks"]["megatron"] = "refuses: the number of experts must be divisible by the expert parallel size";
  }
  if (q.decode_batch > 0) out["decode"] = decode_json(q);
  if (q.demonstrate) out["demonstrations"] = demonstrations_json(q);
  if (matrix) {
    out["matrix"] = {{"source_rank_by_expert", a.traffic.counts},
                     {"source_rank_by_rank_tokens", a.traffic.rank_tokens}};
  }
  return out;
}

void print_times(const Question& q, const Answer& a) {
  const MoeLayerTimes& t = a.times;
  std::printf("  compute    %9s   %s with the shared expert, %s without; routed products %s (%s)\n",
              text_of_seconds(t.compute()).c_str(), text_of_number(t.flops / 1e12, 3).append(" TFLOP").c_str(),
              text_of_number(t.routed_flops / 1e12, 3).append(" TFLOP").c_str(), t.products.c_str(),
              std::string(basis_name(t.routed.basis)).c_str());
  std::printf("  permute    %9s   %s read and written by the two permutations\n",
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

void print_load(const Question& q, const Answer& a) {
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
  if (q.layer.load.capacity_factor > 0) {
    std::printf("  capacity factor %s: %s of the pairs dropped, %s of the expert rows are padding\n",
                text_of_number(q.layer.load.capacity_factor, 3).c_str(), text_of_percent(t.load.dropped).c_str(),
                text_of_percent(t.load.padding).c_str());
  }
}

void print_decode(const Question& q) {
  const nlohmann::ordered_json d = decode_json(q);
  std::printf("\ndecode, %s tokens a step over the whole layer, %s weights:\n", text_of_count(q.decode_batch).c_str(),
              std::string(data_type_name(q.decode_weights)).c_str());
  std::printf(
      "  %s of %s experts touched, %s read for %s GFLOP: %s FLOP per byte (a dense model of the same weights: %s; the "
      "gap tends to %s, routed experts alone %s)\n",
      text_of_number(d["experts_touched"].get<double>(), 4).c_str(), text_of_count(q.moe->experts).c_str(),
      text_of_decimal_bytes(d["weight_bytes"].get<double>()).c_str(),
      text_of_number(d["flops"].get<double>() / 1e9, 4).c_str(),
      text_of_number(d["intensity"].get<double>(), 3).c_str(),
      text_of_number(d["dense_intensity"].get<double>(), 3).c_str(),
      text_of_number(d["gap_limit"].get<double>(), 3).c_str(),
      text_of_number(d["gap_limit_routed_only"].get<double>(), 3).c_str());
  for (const auto& ridge : d["ridge"]) {
    std::printf("  ridge %-6s %s FLOP per byte, reached at %s tokens (dense: %s)\n",
                ridge["format"].get<std::string>().c_str(),
                text_of_number(ridge["flops_per_byte"].get<double>(), 3).c_str(),
                text_of_count(ridge["batch_at_ridge"].get<std::int64_t>()).c_str(),
                text_of_count(static_cast<std::int64_t>(ridge["dense_batch_at_ridge"].get<double>())).c_str());
  }
  std::printf("  experts on the host (%s resident): %s fetched a step and layer, %s over PCIe in %s\n",
              text_of_count(q.resident).c_str(),
              text_of_number(d["host_offload"]["experts_fetched"].get<double>(), 4).c_str(),
              text_of_decimal_bytes(d["host_offload"]["bytes"].get<double>()).c_str(),
              text_of_seconds(d["host_offload"]["pcie_s"].get<double>()).c_str());
}

void print_text(const Question& q, const Answer& a) {
  const MoeLayerTimes& t = a.times;
  std::printf("%s, one MoE layer forward on %s GPUs of %s: ep %d, %s tokens a GPU, top-%s of %s = %s pairs\n",
              q.model.name.c_str(), text_of_count(q.gpus).c_str(), q.cluster.name.c_str(), q.ep,
              text_of_count(q.tokens).c_str(), text_of_count(q.moe->top_k).c_str(),
              text_of_count(q.moe->experts).c_str(), text_of_count(std::llround(t.load.pairs_per_rank)).c_str());
  std::printf("rates %s, products %s, dispatch %s, combine %s; seconds are the busiest GPU's, bytes the mean GPU's\n",
              q.layer.rates == Rates::datasheet ? "datasheet" : "calibrated",
              std::string(data_type_name(q.layer.precision)).c_str(), q.dispatch.c_str(), q.combine.c_str());
  std::printf("exchange: %s (%s)\n", t.exchange.model.c_str(),
              std::string(basis_name(t.exchange.dispatch.total.basis)).c_str());
  print_times(q, a);
  print_load(q, a);
  std::printf(
      "\nwhat each assumption is worth (communication, compute, ratio; each line changes the first by one thing):\n");
  for (const Assumption& line : a.assumptions) {
    std::printf("  %9s %9s %6s  %s\n", text_of_seconds(line.communication_s).c_str(),
                text_of_seconds(line.compute_s).c_str(), text_of_number(line.ratio, 3).c_str(), line.what.c_str());
  }
  if (q.decode_batch > 0) print_decode(q);
  if (q.demonstrate) print_demonstrations(q);
  if (uneven(q))
    std::printf("note: Megatron refuses this: %s experts do not divide over %d GPUs\n",
                text_of_count(q.moe->experts + q.redundant).c_str(), q.ep);
}

void run(const Options& o) {
  Question q = question_of(o);
  const KernelModel datasheet_kernels(q.cluster.gpu, Rates::datasheet),
      calibrated_kernels(q.cluster.gpu, Rates::calibrated);
  const ExpertExchangeModel datasheet_exchange(q.cluster, Rates::datasheet, Fidelity::table),
      calibrated_exchange(q.cluster, Rates::calibrated, Fidelity::table);
  const bool datasheet = q.layer.rates == Rates::datasheet;
  q.layer.cluster = &q.cluster;
  q.layer.kernels = datasheet ? &datasheet_kernels : &calibrated_kernels;
  q.layer.exchange = datasheet ? &datasheet_exchange : &calibrated_exchange;
  q.layer.load.moe = q.moe;
  q.layer.load.popularity = &q.popularity;
  q.layer.load.placement = &q.placement;

  Answer a;
  a.times = price_moe_layer(q.layer);
  a.assumptions =
      assumption_worth({q.layer, &datasheet_kernels, &datasheet_exchange, &calibrated_kernels, &calibrated_exchange});
  if (o.matrix && q.ep > 1024) throw InputError("--matrix", "prints at most 1,024 ranks");
  a.traffic = sample_traffic(q.layer.load, static_cast<std::uint64_t>(q.seed), std::int64_t{1} << 19, o.matrix);
  a.balance =
      balance_flops_per_byte(*q.moe, q.layer.load.dispatch_bytes_per_value, q.layer.load.combine_bytes_per_value);
  if (o.common.json())
    print_json(answer_json(q, a, o.matrix));
  else
    print_text(q, a);
}

}  // namespace

void add_experts(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("experts", "One mixture-of-experts layer: exchange, expert products, balance");
  add_model_option(*verb, o->common);
  add_cluster_options(*verb, o->common);
  verb->add_option("--ep", o->ep, "GPUs that share the experts; need not divide them")->required();
  verb->add_option("--tokens-per-gpu", o->tokens, "tokens that enter the layer on each GPU; k = 1,024")->required();
  verb->add_option("--nodes-per-token", o->nodes, "node limit of the routing, or unlimited")->default_str(o->nodes);
  verb->add_option("--skew", o->skew, "none | zipf:S | dirichlet:A | power-law:A | file:PATH")->default_str(o->skew);
  verb->add_option("--redundant", o->redundant, "further copies of popular experts")->default_str(o->redundant);
  verb->add_option("--placement", o->placement, "auto | contiguous | global | hierarchical")->default_str(o->placement);
  verb->add_option("--dispatch", o->dispatch, "fp8 (payload) | fp8-scaled | bf16")->default_str(o->dispatch);
  verb->add_option("--combine", o->combine, "bf16 | fp8 | fp8-scaled")->default_str(o->combine);
  verb->add_option("--count-own-node", o->own_node, "1: count traffic as if nothing were local")
      ->default_str(o->own_node);
  verb->add_option("--transport", o->transport, "nccl | deepep | deepep-low-latency | deepep-v2 | hybridep")
      ->default_str(o->transport);
  verb->add_option("--waves", o->waves, "experts computed in this many waves")->default_str(o->waves);
  verb->add_option("--capacity-factor", o->capacity, "0 = dropless")->default_str(o->capacity);
  verb->add_option("--decode-batch", o->decode, "also the decode side: tokens a step over the whole layer");
  verb->add_option("--decode-weights", o->decode_weights, "format of the weights that decode reads")
      ->default_str(o->decode_weights);
  verb->add_option("--resident", o->resident, "decode: most popular experts kept in GPU memory, the rest on the host")
      ->default_str(o->resident);
  verb->add_flag("--demonstrate", o->demonstrate,
                 "drops that depend on batch mates, choices that rounding flips, bytes of routing replay");
  verb->add_flag("--matrix", o->matrix, "JSON: token counts by source rank and expert, and by rank pairs");
  verb->add_option("--seed", o->seed, "of popularity and drawn tokens")->default_str(o->seed);
  verb->add_option("--precision", o->common.precision, "of the expert products")->default_str(o->common.precision);
  verb->add_option("--rates", o->common.rates, "calibrated | datasheet (the whiteboard's arithmetic)")
      ->default_str(o->common.rates);
  add_format_option(*verb, o->common.format);
  verb->footer(
      "Example:\n  shardplan experts --model deepseek-v3 --cluster h100-sxm --gpus 64 --ep 64 --tokens-per-gpu 8192 "
      "--nodes-per-token 4 "
      "--dispatch fp8-scaled");
  verb->callback([o] { run(*o); });
}

}  // namespace shardplan
