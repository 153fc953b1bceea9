#include "layouts/measured_run.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "base/errors.hpp"
#include "layouts/precision.hpp"
#include "models/load_model.hpp"
#include "models/shape.hpp"

namespace shardplan {

namespace {

std::int64_t count_or(const Field& f, const char* key, std::int64_t otherwise) {
  const auto v = f.find(key);
  return v ? v->count() : otherwise;
}
bool flag_or(const Field& f, const char* key, bool otherwise) {
  const auto v = f.find(key);
  return v ? v->boolean() : otherwise;
}
std::string text_or(const Field& f, const char* key, const std::string& otherwise) {
  const auto v = f.find(key);
  return v ? v->text() : otherwise;
}
int degree(const Field& f, const char* key, int otherwise) {
  const auto v = f.find(key);
  return v ? static_cast<int>(v->count(0, 1 << 20)) : otherwise;
}
/// A member that the prediction cannot do without.
std::int64_t needed(const Field& f, const char* key) {
  const auto v = f.find(key);
  if (!v) throw InputError(std::string(f.path()) + "/" + key, "is not stated");
  return v->count(1);
}

}  // namespace

namespace {

std::string letters_and_digits(const std::string& name) {
  std::string out;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) out += static_cast<char>(std::tolower(c));
  return out;
}

/// The built-in model that a row's name means: the same letters and digits, or the only one whose name begins with
/// them ("Moonlight 16B": moonlight-16b-a3b).
std::optional<std::string> built_in_called(const std::string& name) {
  const std::string asked = letters_and_digits(name);
  if (asked.size() < 6) return {};
  std::vector<std::string> begin;
  for (const std::string& known : model_names()) {
    const std::string letters = letters_and_digits(known);
    if (letters == asked) return known;
    if (letters.compare(0, asked.size(), asked) == 0) begin.push_back(known);
  }
  return begin.size() == 1 ? std::optional(begin.front()) : std::nullopt;
}

/// The built-in model, which what the row does state must not contradict.
Model built_in_of_run(const Field& f, const std::string& name) {
  Model m = load_model(name);
  const auto moe = std::find_if(m.layers.begin(), m.layers.end(), [](const Layer& l) { return l.moe.has_value(); });
  const bool experts = moe != m.layers.end();
  const auto agree = [&](const char* key, std::int64_t value) {
    const std::int64_t stated = count_or(f, key, value);
    if (stated != value)
      throw InputError(f.path() + "/" + key,
                       std::to_string(stated) + ", but the built-in " + name + " has " + std::to_string(value));
  };
  agree("layers", m.layer_count());
  agree("dense_layers", experts ? moe - m.layers.begin() : 0);
  agree("heads", m.layers.front().attention.heads);
  agree("vocab", m.vocab);
  agree("experts", experts ? moe->moe->experts : 0);
  agree("topk", experts ? moe->moe->top_k : 0);
  m.mtp.resize(std::min(m.mtp.size(), static_cast<std::size_t>(count_or(f, "mtp_layers", 0))));
  return m;
}

}  // namespace

std::optional<std::string> built_in_model_of_run(const Field& f) {
  if (f.has("hidden") || f.has("hybrid")) return {};
  return built_in_called(text_or(f, "name", ""));
}

Model model_of_run(const Field& f) {
  if (const auto known = built_in_model_of_run(f)) return built_in_of_run(f, *known);
  if (const auto hybrid = f.find("hybrid")) throw InputError("model", "not modelled: " + hybrid->text());
  ModelShape s;
  s.name = text_or(f, "name", "");
  s.layers = needed(f, "layers");
  s.hidden = needed(f, "hidden");
  s.heads = needed(f, "heads");
  s.vocab = needed(f, "vocab");
  s.kv_heads = count_or(f, "kv_heads", 0);
  s.head_dim = count_or(f, "head_dim", 0);
  s.experts = count_or(f, "experts", 0);
  s.ffn = s.experts > 0 ? count_or(f, "ffn", 0) : needed(f, "ffn");
  s.gated = flag_or(f, "gated", true);
  s.tied_embeddings = flag_or(f, "tied_embeddings", false);
  s.learned_positions = count_or(f, "learned_position_embedding", 0);
  s.window = count_or(f, "window", 0);
  // The only windowed shape among the families is gpt-oss: every second layer attends to all.
  if (s.window > 0) s.full_attention_every = 2;
  s.top_k = count_or(f, "topk", 0);
  s.moe_ffn = count_or(f, "moe_ffn", 0);
  s.dense_layers = count_or(f, "dense_layers", 0);
  s.shared_ffn = count_or(f, "shared_ffn", 0);
  s.mtp_layers = count_or(f, "mtp_layers", 0);
  if (text_or(f, "attention", "") == "MLA") {
    s.q_lora = count_or(f, "q_lora", 0);
    s.kv_lora = needed(f, "kv_lora");
    s.qk_rope = needed(f, "qk_rope");
    s.v_head = needed(f, "v_head");
    s.qk_nope = needed(f, "head_dim");
  }
  return model_from_shape(s, "model");
}

Cluster cluster_of_run(const Field& f) {
  Cluster c = load_cluster(f.at("gpu").text());
  const std::string source = "the run's own row";
  c.node.gpus = degree(f, "gpus_per_node", c.node.gpus);
  c.node.nvlink_domain = degree(f, "nvlink_domain", c.node.nvlink_domain);
  c.network.kind = text_or(f, "network", c.network.kind);
  // A hop of EFA takes 25 us, five times InfiniBand's (implied by all-reduce latencies of p5 nodes).
  if (c.network.kind == "efa")
    c.network.hop_seconds = Sourced{25e-6, "nccl-tests logs of p5 nodes, tree latency", false};
  if (const auto rate = f.find("network_gbit_per_gpu")) {
    c.node.nics = Sourced{static_cast<double>(c.node.gpus), source, false};
    c.node.nic_bytes_per_second = Sourced{rate->positive() * 1e9 / 8, source, false};
  }
  return c;
}

namespace {

void read_recompute(const Field& f, MeasuredRun& run) {
  const std::string kind = text_or(f, "recompute", "unknown");
  Layout& l = run.layout;
  run.recompute_unknown = kind == "unknown";
  if (kind == "full") l.recompute = Recompute::full;
  if (kind != "selective") return;
  l.recompute = Recompute::selective;
  const Field modules = f.at("recompute_modules");
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const std::string name = modules.item(i).text();
    const Layout one = parse_layout("recompute=selective:" + name, 0, "layout/recompute_modules");
    const RecomputeModules& m = one.modules;
    RecomputeModules& all = l.modules;
    all.core_attn |= m.core_attn, all.layernorm |= m.layernorm, all.mla_up_proj |= m.mla_up_proj,
        all.moe_act |= m.moe_act;
    all.moe |= m.moe, all.mlp |= m.mlp, all.shared_experts |= m.shared_experts, all.per_op |= m.per_op;
  }
  if (modules.size() == 0) l.modules.core_attn = true;
}

void read_split(const Field& f, MeasuredRun& run) {
  Layout& l = run.layout;
  const std::string split = text_or(f, "stage_split", "even");
  run.split_unknown = split == "unknown";
  l.split = SplitKind::automatic;
  if (const auto pattern = f.find("stage_layout")) {
    l.split = SplitKind::pattern;
    l.split_pattern = pattern->text();
  } else if (l.slices() > 1 && split == "embed-loss-as-layers") {
    l.split = SplitKind::embed_loss_as_layers;
  } else if (l.slices() > 1 && split == "loss-as-layer") {
    l.split = SplitKind::loss_as_layer;
  } else if (l.slices() > 1 && split == "even" && run.model.layer_count() % l.slices() == 0) {
    l.split = SplitKind::even;
  }
}

/// "transformer_engine:attn,mamba" -> modules:attn,mamba; "transformer_engine" -> per-layer; "local:full_iteration" ->
/// full.
std::string graphs(const std::string& stated) {
  const auto colon = stated.find(':');
  std::string rest = colon == std::string::npos ? stated : stated.substr(colon + 1);
  if (rest == "full_iteration") return "full";
  if (rest == "none" || rest == "per-layer") return rest;
  return colon == std::string::npos ? "per-layer" : "modules:" + rest;
}

void read_degrees(const Field& f, MeasuredRun& run) {
  Layout& l = run.layout;
  l.tp = degree(f, "tp", 1), l.cp = degree(f, "cp", 1), l.pp = degree(f, "pp", 1), l.vpp = degree(f, "vpp", 1);
  l.ep = degree(f, "ep", 1), l.etp = degree(f, "etp", 1);
  l.dp = static_cast<int>(needed(f, "dp"));
  l.mbs = static_cast<int>(needed(f, "micro_batch"));
  for (const int v : {l.tp, l.cp, l.pp, l.vpp, l.ep, l.etp, l.dp, l.mbs})
    if (v < 1) throw InputError("layout", "a degree is 0");
  // Not stated: 0 for stacks without a sharded optimizer, else 1 (the convention of the files).
  static const std::set<std::string> unsharded = {"megatron-lm-2020", "megatron-lm-2021", "megatron-lm-2022",
                                                  "megatron-deepspeed"};
  const auto zero = f.find("zero");
  l.zero = zero ? static_cast<int>(zero->count(0, 3)) : (unsharded.contains(run.stack) ? 0 : -1);
  l.shard = degree(f, "shard_group", 0);
  if (const auto sp = f.find("sequence_parallel")) l.sp = sp->boolean();
  l.schedule = text_or(f, "schedule", "");
}

void read_mechanisms(const Field& f, MeasuredRun& run) {
  Layout& l = run.layout;
  const auto word = [&](const char* key, const std::string& name, const std::string& value) {
    const Layout one = parse_layout(name + "=" + value, 0, std::string("layout/") + key);
    if (one.tp_overlap) l.tp_overlap = one.tp_overlap;
    if (one.transport) l.transport = one.transport;
    if (one.cuda_graphs) l.cuda_graphs = one.cuda_graphs;
    if (!one.order.empty()) l.order = one.order;
  };
  if (const auto v = f.find("tp_overlap")) word("tp_overlap", "tp-overlap", v->text());
  if (const auto v = f.find("rank_order")) word("rank_order", "order", v->text());
  if (const auto v = f.find("cuda_graphs")) word("cuda_graphs", "cuda-graphs", graphs(v->text()));
  if (const auto v = f.find("dispatcher")) {
    const std::string name = v->text();
    word("dispatcher", "transport", name == "alltoall" ? "nccl" : name);
  }
  if (const auto v = f.find("ep_overlap")) l.ep_overlap = v->boolean() ? EpOverlap::batch_1f1b : EpOverlap::none;
  if (const auto v = f.find("delay_wgrad")) l.delay_wgrad = v->boolean();
  if (const auto v = f.find("compile")) l.compile = v->boolean();
  if (const auto v = f.find("cross_entropy_fusion")) l.fused_loss = v->boolean();
  if (const auto v = f.find("fp32_gradient_accumulation")) l.grad_accumulate_fp32 = v->boolean();
  if (const auto v = f.find("grad_reduce_dtype")) l.grad_reduce_fp32 = v->text() == "fp32";
  if (const auto v = f.find("mixed_precision_mode")) run.pure_16bit = v->text() == "pure";
  if (const auto v = f.find("routing")) run.balanced_routing = v->text() == "balanced";
  if (const auto v = f.find("capacity")) run.token_drop = v->text() == "token-drop";
  const auto offload = f.find("offload");
  for (std::size_t i = 0; offload && i < offload->size(); ++i) {
    if (offload->item(i).text() == "optimizer") l.offload_optimizer = true;
    if (offload->item(i).text() == "activations")
      l.offload_activation_layers = degree(f, "activation_offload_layers", -1);
  }
}

void read_measured(const Field& f, MeasuredRun& run) {
  if (const auto v = f.find("step_time_s")) run.step_time_s = v->positive();
  if (const auto v = f.find("memory_gb_per_gpu")) run.memory_bytes = v->positive() * 1e9;
  if (const auto v = f.find("memory_gib_per_gpu")) run.memory_bytes = v->positive() * 0x1p30;
  if (const auto v = f.find("memory_reserved_gib")) run.reserved_bytes = v->positive() * 0x1p30;
  const std::string kind = text_or(f, "memory_kind", "unknown");
  run.memory_kind = kind == "allocated"  ? MemoryKind::allocated
                    : kind == "reserved" ? MemoryKind::reserved
                    : kind == "device"   ? MemoryKind::device
                                         : MemoryKind::unknown;
}

/// The first "_YYYYMM_" of a source's file name, 2015 or later; 0 where there is none.
int month_in(const std::string& source) {
  for (std::size_t i = 0; i + 8 <= source.size(); ++i) {
    if (source[i] != '_' || source[i + 7] != '_' || source.compare(i + 1, 2, "20") != 0) continue;
    int month = 0;
    for (std::size_t k = i + 1; k < i + 7; ++k)
      month = source[k] >= '0' && source[k] <= '9' ? month * 10 + (source[k] - '0') : -1000000000;
    if (month >= 201501 && month % 100 >= 1 && month % 100 <= 12) return month;
  }
  return 0;
}

/// Whether the row says that it trains low-rank adapters: by a member, or, in files without one, by the word in its id
/// or notes.
bool trains_adapters(const Field& row, const MeasuredRun& run) {
  if (row.at("model").has("lora") || row.at("layout").has("lora")) return true;
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  for (std::string text : {run.id, run.notes}) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (auto at = text.find("lora"); at != std::string::npos; at = text.find("lora", at + 1))
      if ((at == 0 || !letter(text[at - 1])) && (at + 4 == text.size() || !letter(text[at + 4]))) return true;
  }
  return false;
}

void read_rest(const Field& row, MeasuredRun& run) {
  const Field layout = row.at("layout");
  if (trains_adapters(row, run))
    throw InputError("model/lora", "frozen weights and adapters are not modelled: which matrices train is not stated");
  run.precision = text_or(layout, "precision", "bf16");
  run.workload.seq_len = needed(row.at("model"), "seq");
  run.workload.global_batch = needed(layout, "global_batch");
  run.workload.precision = parse_precision(run.precision, "layout/precision");
  run.model = model_of_run(row.at("model"));
  if (const auto known = built_in_model_of_run(row.at("model")))
    run.model_note = "model's dimensions not stated: those of the built-in " + *known;
  run.cluster = cluster_of_run(row.at("hardware"));
  read_degrees(layout, run);
  read_recompute(layout, run);
  read_split(layout, run);
  read_mechanisms(layout, run);
  run.layout = canonical(run.layout);
  if (const auto reason = refuse_layout(run.layout, run.model, run.workload, layout.at("gpus").count(1))) {
    throw InputError("layout", *reason);
  }
}

}  // namespace

MeasuredRun read_run(const Field& row) {
  MeasuredRun run;
  run.id = row.at("id").text();
  try {
    run.family = text_or(row, "family", "");
    run.question = text_or(row, "question", "");
    run.group = text_or(row, "group", "");
    run.stack = text_or(row, "stack", "");
    run.stack_version = text_or(row, "stack_version", "");
    run.notes = text_or(row, "notes", "");
    run.month = month_in(text_or(row, "source", ""));
    run.score = flag_or(row, "score", false);
    run.score_memory = flag_or(row, "score_memory", false);
    if (const auto measured = row.find("measured")) read_measured(*measured, run);
    read_rest(row, run);
  } catch (const InputError& e) {
    // The place inside the row: its file and number add nothing.
    const auto inside = e.where().find(row.path() + "/");
    const std::string place =
        inside == std::string::npos ? e.where() : e.where().substr(inside + row.path().size() + 1);
    run.skipped = place + ": " + e.what();
  }
  return run;
}

double reported_bytes(const MemoryReport& m, MemoryKind kind, const MemoryTraits& traits) {
  double most = 0;
  for (const RankMemory& r : m.ranks) {
    const double bytes = kind == MemoryKind::device     ? r.device()
                         : kind == MemoryKind::reserved ? r.reserved()
                                                        : r.allocated();
    if (r.stage == 0 || !traits.reports_first_rank) most = std::max(most, bytes);
  }
  return most;
}

std::vector<MeasuredRun> read_runs(const std::string& path) {
  const Field file = Field::read(path);
  if (text_or(file, "schema", "") != "shardplan-runs/1")
    file.fail("expected {\"schema\": \"shardplan-runs/1\", \"rows\": [...]}");
  const Field rows = file.at("rows");
  std::vector<MeasuredRun> out;
  out.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) out.push_back(read_run(rows.item(i)));
  return out;
}

}  // namespace shardplan
