#pragma once
// The options that verbs share: model, cluster, batch, precision, fidelity. A verb adds the groups it needs, then reads
// them. Everything is kept as text until it is read, so that every error names its option.
#include <cstdint>
#include <string>

#include "hardware/cluster.hpp"
#include "hardware/kernels.hpp"
#include "layouts/layout.hpp"
#include "layouts/precision.hpp"
#include "layouts/step/stack.hpp"
#include "models/model.hpp"

namespace CLI {
class App;
}

namespace shardplan {

struct CommonOptions {
  std::string model;
  std::string cluster;
  std::string gpus;
  std::string layout;
  std::string seq_len = "4096";
  std::string global_batch;         // sequences
  std::string global_batch_tokens;  // or tokens, a multiple of seq_len
  std::string precision = "bf16";
  std::string recipe;  // "" = the stack's own (megatron for Megatron stacks)
  std::string rates = "calibrated";
  std::string network = "table";
  std::string stack = "megatron-core";
  std::string release;  // of the stack; "" = none stated
  std::string format = "text";

  bool json() const { return format == "json"; }
};

void add_model_option(CLI::App&, CommonOptions&);      // --model
void add_cluster_options(CLI::App&, CommonOptions&);   // --cluster --gpus
void add_layout_option(CLI::App&, CommonOptions&);     // --layout
void add_batch_options(CLI::App&, CommonOptions&);     // --seq-len --global-batch --global-batch-tokens --precision
void add_recipe_option(CLI::App&, CommonOptions&);     // --recipe
void add_fidelity_options(CLI::App&, CommonOptions&);  // --rates --network --stack --release
/// Model, cluster, batch, recipe, fidelity and --format: what `memory`, `simulate` and `plan` ask.
void add_question_options(CLI::App&, CommonOptions&);

/// --model; prints the model's notes as warnings.
Model read_model(const CommonOptions&);
/// --gpus, 1 to 2^24.
std::int64_t read_gpus(const CommonOptions&);
/// --seq-len, --precision and one of --global-batch and --global-batch-tokens (InputError where both or neither are
/// given, or where tokens are not a multiple of the sequence length).
Workload read_workload(const CommonOptions&);
/// --stack, --release.
Stack read_stack(const CommonOptions&);
/// Warns of a GPU that stands in with another type for the precision asked for.
void warn_of_precision(const Cluster&, const Workload&);
Rates read_rates(const CommonOptions&);

}  // namespace shardplan
