// shardplan experts: one MoE layer on a group of GPUs: pairs, bytes, seconds, balance, decode.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/experts_answer.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
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

void place(const Options& o, ExpertsQuestion& q) {
  const int nodes = (q.ep + q.layer.load.ranks_per_node - 1) / q.layer.load.ranks_per_node;
  const bool limited = q.layer.load.nodes_per_token > 0 && q.layer.load.nodes_per_token < nodes;
  std::string how = o.placement;
  if (how == "auto") {
    // Of a router's own groups as EPLB decides: hierarchical where they divide over the nodes, else global.
    const bool divide = q.moe->groups % nodes == 0 && q.ep % nodes == 0 && q.redundant % nodes == 0;
    const bool grouped = q.layer.load.routing_groups > 1 && divide;
    how = q.redundant == 0 ? "contiguous" : (limited || grouped ? "hierarchical" : "global");
  }
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

ExpertsQuestion question_of(const Options& o) {
  ExpertsQuestion q;
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
  q.nodes = o.nodes;
  if (o.nodes == "model") {
    if (q.moe->groups <= 1)
      throw InputError("--nodes-per-token",
                       q.model.name + "'s router has no groups: give a number of nodes, or unlimited");
    load.routing_groups = static_cast<int>(q.moe->groups);
    load.groups_per_token = static_cast<int>(q.moe->groups_per_token);
  } else if (o.nodes != "unlimited") {
    load.nodes_per_token = small_count(o.nodes, "--nodes-per-token", 1, 65536);
  }
  load.transport = transport_of(o.transport);
  load.dispatch_bytes_per_value = value_bytes(o.dispatch, "--dispatch");
  load.combine_bytes_per_value = value_bytes(o.combine, "--combine");
  load.count_own_node = small_count(o.own_node, "--count-own-node", 0, 1) == 1;
  load.every_copy = layer.rates == Rates::datasheet;
  load.capacity_factor = parse_number(o.capacity, "--capacity-factor");
  if (load.capacity_factor < 0 || load.capacity_factor > 1000)
    throw InputError("--capacity-factor", "takes a number from 0 (dropless) to 1000");

  if (const std::string note = counts_note(q.skew, q.moe->experts, q.moe->top_k); !note.empty()) print_warning(note);
  q.popularity =
      make_popularity(q.skew, q.moe->experts, q.moe->top_k, q.tokens * q.ep, static_cast<std::uint64_t>(q.seed));
  q.demonstrate = o.demonstrate;
  const int nodes = (q.ep + load.ranks_per_node - 1) / load.ranks_per_node;
  const bool own = load.routing_groups > 1;
  q.popularity = limit_to_nodes(std::move(q.popularity), own ? load.routing_groups : nodes,
                                own ? load.groups_per_token : load.nodes_per_token, static_cast<std::uint64_t>(q.seed));
  place(o, q);
  if (!o.decode.empty()) q.decode_batch = small_count(o.decode, "--decode-batch", 1, 1 << 30);
  q.decode_weights = parse_precision(o.decode_weights, "--decode-weights");
  q.resident = small_count(o.resident, "--resident", 0, q.moe->experts);
  return q;
}

ExpertsDecode decode_of(const ExpertsQuestion& q) {
  ExpertsDecode out;
  DecodeQuestion d{q.moe, q.model.hidden, static_cast<double>(q.decode_batch), bytes_of(q.decode_weights), true, {}};
  if (!q.popularity.uniform) d.loads = q.popularity.loads;
  out.layer = decode_layer(d);
  out.gap_limit = intensity_gap(*q.moe, true);
  out.gap_limit_routed_only = intensity_gap(*q.moe, false);
  if (q.decode_batch <= 4096)
    out.drawn =
        sample_coverage(q.popularity.weights, q.moe->top_k, q.decode_batch, 200, static_cast<std::uint64_t>(q.seed));
  const double bandwidth = q.cluster.gpu.hbm_bytes_per_second.value;
  const auto add_ridge = [&](DataType products, DataType weights) {
    const double peak = q.cluster.gpu.peak(products);
    if (!(peak > 0)) return;
    DecodeQuestion at = d;
    at.bytes_per_weight = bytes_of(weights);
    const double ridge = peak / bandwidth;
    out.ridges.push_back({products, weights, ridge, batch_at_ridge(at, ridge),
                          std::llround(std::ceil(ridge * at.bytes_per_weight / 2))});
  };
  for (const DataType type : {DataType::bf16, DataType::fp8, DataType::nvfp4}) add_ridge(type, type);
  // Narrow weights, widened for the products: what the whiteboard's ridge of 295 against FP8 bytes means.
  if (bytes_of(q.decode_weights) < 2) add_ridge(DataType::bf16, q.decode_weights);
  out.host = host_offload(d, q.resident, q.cluster.node.pcie_bytes_per_second.value);
  return out;
}

ExpertDemonstrations demonstrations_of(const ExpertsQuestion& q) {
  ExpertDemonstrations d;
  const auto seed = static_cast<std::uint64_t>(q.seed);
  if (q.layer.load.capacity_factor > 0) d.capacity_factor = q.layer.load.capacity_factor;
  d.mates = batch_mates(q.popularity.weights, q.moe->top_k, 64, 448, d.capacity_factor, seed);
  d.rounding = rounding_report(*q.moe, q.model.hidden, 128, seed);
  d.gradients = gate_gradient_report(*q.moe, seed);
  std::int64_t layers = 0;
  for (const Layer& layer : q.model.layers) layers += layer.moe.has_value();
  d.replay = replay_bytes(q.tokens, q.moe->top_k, layers);
  return d;
}

void run(const Options& o) {
  ExpertsQuestion q = question_of(o);
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

  ExpertsAnswer a;
  a.times = price_moe_layer(q.layer);
  a.assumptions =
      assumption_worth({q.layer, &datasheet_kernels, &datasheet_exchange, &calibrated_kernels, &calibrated_exchange});
  if (o.matrix && q.ep > 1024) throw InputError("--matrix", "prints at most 1,024 ranks");
  a.traffic = sample_traffic(q.layer.load, static_cast<std::uint64_t>(q.seed), std::int64_t{1} << 19, o.matrix);
  a.balance =
      balance_flops_per_byte(*q.moe, q.layer.load.dispatch_bytes_per_value, q.layer.load.combine_bytes_per_value);
  a.counted_drops = counted_drops(q.popularity.loads, q.moe->top_k, q.tokens, q.layer.load.capacity_factor);
  if (q.decode_batch > 0) a.decode = decode_of(q);
  if (q.demonstrate) a.demonstrations = demonstrations_of(q);
  if (o.common.json())
    print_json(experts_json(q, a, o.matrix));
  else
    print_experts(q, a);
}

}  // namespace

void add_experts(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("experts", "One mixture-of-experts layer: exchange, expert products, balance");
  add_model_option(*verb, o->common);
  add_cluster_options(*verb, o->common);
  verb->add_option("--ep", o->ep, "GPUs that share the experts; need not divide them")->required();
  verb->add_option("--tokens-per-gpu", o->tokens, "tokens that enter the layer on each GPU; k = 1,024")->required();
  verb->add_option("--nodes-per-token", o->nodes,
                   "node limit of the routing, unlimited, or model (the group limit of its own router)")
      ->default_str(o->nodes);
  verb->add_option("--skew", o->skew,
                   "none | zipf:S | dirichlet:A | power-law:A | file:PATH (JSON counts, one an expert; rows are added)")
      ->default_str(o->skew);
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
