#pragma once
// How a model is cut: the words of a layout text as a value, and its reading, printing and legality.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/cluster.hpp"
#include "models/model.hpp"
#include "sim/schedules.hpp"

namespace shardplan {

enum class Recompute { none, selective, full };
enum class ContextParallel { ring, all_gather, ulysses };
enum class TpOverlap { none, bulk, async };
enum class EpOverlap { none, shared, batch_1f1b, dualpipe, waves };
enum class Transport { nccl, deepep, hybridep };
enum class SplitKind { automatic, even, embed_loss_as_layers, loss_as_layer, pattern };
enum class Axis { tp, cp, dp, pp };

/// What selective recompute repeats (Megatron's module names).
struct RecomputeModules {
  bool core_attn = false, layernorm = false, mla_up_proj = false, moe_act = false, moe = false, mlp = false,
       shared_experts = false;
  bool per_op = false;  // torchtitan: keeps attention's output, reduce-scatter outputs and every second matrix product

  bool operator==(const RecomputeModules&) const = default;
};

/// A layout. Degrees are 1 where they are left out; optional words are empty where the stack decides.
struct Layout {
  int tp = 1, cp = 1, pp = 1, dp = 1, ep = 1, etp = 1, vpp = 1;
  int zero = -1;                // 0-3; -1 = default (1 if dp > 1, else 0)
  int shard = 0;                // ZeRO inside groups of this many neighbouring dp ranks; 0 = all of dp
  std::optional<bool> reshard;  // ZeRO 3: free gathered weights after forward; 2 and below: not used
  int mbs = 1;
  std::optional<bool> sp;  // sequence parallel; default tp > 1
  std::string schedule;    // "" = interleaved-1f1b if vpp > 1, else 1f1b
  int group = 0;           // interleave group, 0 = the schedule's default
  SplitKind split = SplitKind::automatic;
  std::string split_pattern;  // Megatron's notation, split == pattern
  Recompute recompute = Recompute::none;
  int recompute_layers = 0;  // full:12 = the first 12 layers of every pipeline rank; 0 = all
  RecomputeModules modules;  // selective
  std::optional<ContextParallel> cp_by;
  std::optional<TpOverlap> tp_overlap;
  std::optional<EpOverlap> ep_overlap;
  int waves = 0;  // ep_overlap == waves
  std::optional<Transport> transport;
  std::optional<int> prefetch;  // FSDP: units gathered ahead
  std::optional<int> wrap;      // FSDP: layers of a unit; 1 unless stated
  bool offload_optimizer = false;
  int offload_activation_layers = 0;  // -1 = all
  std::optional<bool> act_store_fp8;
  std::optional<std::string> cuda_graphs;  // none | full | per-layer | modules:...
  std::optional<bool> compile;
  std::optional<bool> grad_reduce_fp32;
  std::optional<bool> grad_accumulate_fp32;
  std::optional<bool> fused_loss;
  std::optional<bool> delay_wgrad;
  std::vector<Axis> order;  // innermost first; empty = tp-cp-dp-pp

  // With the defaults applied:
  int gpus() const { return tp * cp * pp * dp; }
  int zero_stage() const { return zero >= 0 ? zero : (dp > 1 ? 1 : 0); }
  bool sequence_parallel() const { return tp > 1 && sp.value_or(true); }
  std::string schedule_name() const { return !schedule.empty() ? schedule : (vpp > 1 ? "interleaved-1f1b" : "1f1b"); }
  /// Expert data parallel degree: etp * ep * edp = tp * cp * dp.
  int edp() const { return tp * cp * dp / (etp * ep); }
  /// Ranks that shard (or replicate) dense states: dp * cp, or `shard` of them.
  int dense_shard_ranks() const { return shard > 0 ? shard : dp * cp; }
  /// Ranks that shard expert states: edp, or the part of it inside one `shard` group.
  int expert_shard_ranks() const;

  Placement placement() const;
  /// Copies of every parameter in the pipeline: 2 for bidirectional schedules.
  int parameter_copies() const { return placement() == Placement::bidirectional ? 2 : 1; }
  /// Model slices that one pipeline rank holds: vpp, or 2 for V-shaped and bidirectional schedules.
  int slices_per_rank() const { return placement() == Placement::loop ? vpp : 2; }
  /// Slices that the model's depth is cut into, first to last.
  int slices() const { return placement() == Placement::bidirectional ? pp : pp * slices_per_rank(); }
  /// The slice of `chunk` (0 .. slices_per_rank() - 1) on pipeline rank `rank`.
  int slice_of(int rank, int chunk) const;

  bool operator==(const Layout&) const = default;
};

/// The question around a layout: what runs on it.
struct Workload {
  std::int64_t seq_len = 4096;
  std::int64_t global_batch = 1;  // sequences
  DataType precision = DataType::bf16;
};

/// Micro-batches of one data-parallel rank and step; InputError where they do not divide.
std::int64_t microbatches(const Layout&, const Workload&);

/// Reads a layout text ("tp8 pp4 dp16 zero1"). `gpus` > 0 fills dp where it is left out. `where` names the option.
Layout parse_layout(std::string_view text, std::int64_t gpus, const std::string& where);
/// Words that only repeat a default are dropped (zero1 with dp > 1, sp, schedule=1f1b, ...): equal layouts compare
/// equal.
Layout canonical(Layout);
/// The canonical text: only what differs from the defaults; parse_layout gives the same layout back.
std::string layout_text(const Layout&);

/// Why this layout cannot run this model and workload (first reason found), or nothing.
std::optional<std::string> refuse_layout(const Layout&, const Model&, const Workload&, std::int64_t gpus);
/// What a framework refuses although the arithmetic allows it: {"megatron": "refuses: ..."}.
struct FrameworkNote {
  std::string framework, note;
  std::string word;  // of the layout that it is about: tp, sp, zero, schedule
};
std::vector<FrameworkNote> framework_notes(const Layout&, const Model&, const Workload&);

/// Which layers a slice of the model's depth holds.
struct StageSlice {
  int first_layer = 0;
  int layers = 0;
  bool embedding = false;  // holds the input embedding
  bool head = false;       // holds final norm, output head and loss
  int mtp_layers = 0;

  bool operator==(const StageSlice&) const = default;
};
/// Why the split cannot divide the model, or nothing. Cheap: the automatic split is not made.
std::optional<std::string> refuse_split(const Layout&, const Model&);
/// Slices first to last, Layout::slices() entries. InputError("split") where the split does not divide the model.
std::vector<StageSlice> split_stages(const Layout&, const Model&);
/// Megatron's notation of these slices ("Et*3|(tt|)*29,m|L"): what split= reads, and --pipeline-model-parallel-layout.
std::string stage_layout_of(const std::vector<StageSlice>&);

}  // namespace shardplan
