#include "cli/load.hpp"

#include <CLI/CLI.hpp>
#include <vector>

#include "base/errors.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"
#include "models/load_model.hpp"

namespace shardplan {
namespace {

constexpr std::int64_t kMostGpus = std::int64_t{1} << 24;
constexpr std::int64_t kLongestSequence = std::int64_t{1} << 30;
constexpr std::int64_t kLargestBatch = std::int64_t{1} << 30;  // micro-batches are counted in an int

std::int64_t in_range(std::int64_t value, std::int64_t most, const std::string& where) {
  if (value < 1) throw InputError(where, "out of range: " + std::to_string(value) + " is below 1");
  if (value > most)
    throw InputError(where, "out of range: " + std::to_string(value) + " is above " + std::to_string(most));
  return value;
}

std::int64_t read_global_batch(const CommonOptions& o, std::int64_t seq_len) {
  if (o.global_batch.empty() == o.global_batch_tokens.empty()) {
    throw InputError("--global-batch", o.global_batch.empty()
                                           ? "expected --global-batch (sequences) or --global-batch-tokens"
                                           : "given together with --global-batch-tokens: use one of them");
  }
  if (!o.global_batch.empty())
    return in_range(parse_binary_count(o.global_batch, "--global-batch"), kLargestBatch, "--global-batch");
  const std::int64_t tokens = in_range(parse_binary_count(o.global_batch_tokens, "--global-batch-tokens"),
                                       std::int64_t{1} << 50, "--global-batch-tokens");
  if (tokens % seq_len != 0) {
    throw InputError("--global-batch-tokens",
                     std::to_string(tokens) + " tokens are not whole sequences of " + std::to_string(seq_len));
  }
  return in_range(tokens / seq_len, kLargestBatch, "--global-batch-tokens");
}

}  // namespace

void add_model_option(CLI::App& verb, CommonOptions& o) {
  verb.add_option("--model", o.model, "built-in name, model file, config.json or its folder")->required();
}

void add_cluster_options(CLI::App& verb, CommonOptions& o) {
  verb.add_option("--cluster", o.cluster, "GPU name, named cluster or cluster file")->required();
  verb.add_option("--gpus", o.gpus, "how many GPUs")->required();
}

void add_layout_option(CLI::App& verb, CommonOptions& o) {
  verb.add_option("--layout", o.layout,
                  "words, \"tp8 pp4 dp16 zero1\". With a number: tp cp pp dp ep etp vpp mbs zero shard. sp|nosp. "
                  "schedule=NAME group=N split=auto|even|embed-loss-as-layers|loss-as-layer|PATTERN "
                  "recompute=none|full|full:LAYERS|selective:core_attn,layernorm,mla_up_proj,moe_act,moe,mlp,"
                  "shared_experts,per-op reshard=0|1 prefetch=N wrap=LAYERS cp-by=ring|all-gather|ulysses "
                  "tp-overlap=none|bulk|async "
                  "ep-overlap=none|shared|1f1b|dualpipe|wavesN transport=nccl|deepep|hybridep "
                  "offload=optimizer|activations|activations:LAYERS act-store=bf16|fp8 "
                  "cuda-graphs=none|full|per-layer|modules:attn,... compile=0|1 grad-reduce=fp32|bf16 "
                  "grad-accumulate=fp32|bf16 fused-loss=0|1 delay-wgrad=0|1 order=tp-cp-dp-pp")
      ->required();
}

void add_batch_options(CLI::App& verb, CommonOptions& o) {
  verb.add_option("--seq-len", o.seq_len, "tokens a sequence; k = 1,024")->default_str(o.seq_len);
  verb.add_option("--global-batch", o.global_batch, "sequences a step");
  verb.add_option("--global-batch-tokens", o.global_batch_tokens, "tokens a step; k = 1,024, M = 1,048,576");
  verb.add_option("--precision", o.precision, "bf16|fp16|fp32|fp8|fp8-delayed|fp8-tensor|fp8-row|fp8-block|mxfp8|nvfp4")
      ->default_str(o.precision);
}

void add_recipe_option(CLI::App& verb, CommonOptions& o) {
  verb.add_option("--recipe", o.recipe,
                  "bytes per parameter: megatron, megatron-plain, whiteboard, fsdp-fp32, bf16-pure, deepseek-v3")
      ->default_str("the stack's own: megatron for Megatron stacks");
}

void add_fidelity_options(CLI::App& verb, CommonOptions& o) {
  verb.add_option("--rates", o.rates, "calibrated|datasheet")->default_str(o.rates);
  verb.add_option("--network", o.network, "table|bound|flows")->default_str(o.network);
  verb.add_option("--stack", o.stack,
                  "training framework whose overlaps and fusions are assumed: megatron-core, torchtitan, llm-foundry, "
                  "nanotron, ...; or a file of your own (layouts/step/README.md)")
      ->default_str(o.stack);
  verb.add_option("--release", o.release,
                  "release of the stack, where runs of several were measured (26.06); default: their mean");
}

void add_question_options(CLI::App& verb, CommonOptions& o) {
  add_model_option(verb, o);
  add_cluster_options(verb, o);
  add_batch_options(verb, o);
  add_recipe_option(verb, o);
  add_fidelity_options(verb, o);
  add_format_option(verb, o.format);
}

Stack read_stack(const CommonOptions& o) {
  Stack stack = load_stack(o.stack, "--stack");
  if (o.release.empty()) return stack;
  std::vector<std::string> known;
  for (const auto& [release, factor] : stack.releases) known.push_back(release);
  if (known.empty()) throw InputError("--release", "no releases of " + stack.name + " were told apart");
  if (stack.releases.count(o.release) == 0)
    throw InputError("--release", "no measured release of " + stack.name + " is \"" + o.release + "\"" +
                                      did_you_mean_or_list(o.release, known));
  set_release(stack, o.release);
  return stack;
}

Model read_model(const CommonOptions& o) {
  Model model = load_model(o.model);
  for (const std::string& note : model.notes) print_warning(model.name + ": " + note);
  return model;
}

std::int64_t read_gpus(const CommonOptions& o) { return in_range(parse_count(o.gpus, "--gpus"), kMostGpus, "--gpus"); }

Workload read_workload(const CommonOptions& o) {
  Workload w;
  w.seq_len = in_range(parse_binary_count(o.seq_len, "--seq-len"), kLongestSequence, "--seq-len");
  w.global_batch = read_global_batch(o, w.seq_len);
  w.precision = parse_precision(o.precision, "--precision");
  return w;
}

void warn_of_precision(const Cluster& cluster, const Workload& w) {
  if (w.precision == DataType::bf16 && !(cluster.gpu.peak(DataType::bf16) > 0) && cluster.gpu.peak(DataType::fp16) > 0)
    print_warning(cluster.gpu.name + " has no BF16: priced at its FP16 rates");
}

Rates read_rates(const CommonOptions& o) {
  if (o.rates == "calibrated") return Rates::calibrated;
  if (o.rates == "datasheet") return Rates::datasheet;
  throw InputError("--rates", "expected calibrated or datasheet, got \"" + o.rates.substr(0, 60) + "\"");
}

}  // namespace shardplan
