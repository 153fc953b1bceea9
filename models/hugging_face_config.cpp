#include "models/hugging_face_config.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace shardplan {
namespace {

/// Members that cannot change a shape: tokens, dropout, initialisation, rotary angles, generation, bookkeeping.
constexpr const char* kIgnorable[] = {"activation_function",
                                      "add_bias_logits",
                                      "architectures",
                                      "attention_dropout",
                                      "attention_probs_dropout_prob",
                                      "attn_implementation",
                                      "attn_logit_softcapping",
                                      "attn_pdrop",
                                      "auto_map",
                                      "aux_loss_alpha",
                                      "bad_words_ids",
                                      "begin_suppress_tokens",
                                      "bos_token_id",
                                      "cache_implementation",
                                      "chunk_size_feed_forward",
                                      "clip_qkv",
                                      "cls_token_id",
                                      "decoder_start_token_id",
                                      "diversity_penalty",
                                      "do_sample",
                                      "dtype",
                                      "early_stopping",
                                      "emb_pdrop",
                                      "embd_pdrop",
                                      "eos_token_id",
                                      "ep_size",
                                      "expert_dtype",
                                      "exponential_decay_length_penalty",
                                      "final_logit_softcapping",
                                      "gradient_checkpointing",
                                      "use_flash_attn",
                                      "finetuning_task",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "hidden_act",
                                      "hidden_activation",
                                      "hidden_dropout",
                                      "hidden_dropout_prob",
                                      "id2label",
                                      "initial_context_length",
                                      "initializer_factor",
                                      "initializer_range",
                                      "initializer_std",
                                      "is_decoder",
                                      "label2id",
                                      "layer_norm_eps",
                                      "layer_norm_epsilon",
                                      "length_penalty",
                                      "max_length",
                                      "max_new_tokens",
                                      "min_length",
                                      "model_type",
                                      "moe_jitter_eps",
                                      "moe_loss_weight",
                                      "mscale",
                                      "n_ctx",
                                      "no_repeat_ngram_size",
                                      "norm_eps",
                                      "norm_epsilon",
                                      "num_beam_groups",
                                      "num_beams",
                                      "num_labels",
                                      "num_return_sequences",
                                      "original_max_position_embeddings",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_router_logits",
                                      "output_scores",
                                      "pad_token_id",
                                      "partial_rotary_factor",
                                      "prefix",
                                      "pretraining_tp",
                                      "problem_type",
                                      "pruned_heads",
                                      "qk_head_dim",
                                      "query_pre_attn_scalar",
                                      "remove_invalid_values",
                                      "reorder_and_upcast_attn",
                                      "repetition_penalty",
                                      "resid_pdrop",
                                      "return_dict",
                                      "return_dict_in_generate",
                                      "rms_norm_eps",
                                      "rope_interleave",
                                      "rope_local_base_freq",
                                      "rope_parameters",
                                      "rope_scaling",
                                      "rope_theta",
                                      "rotary_dim",
                                      "rotary_emb_base",
                                      "rotary_pct",
                                      "router_aux_loss_coef",
                                      "router_jitter_noise",
                                      "router_z_loss_coef",
                                      "scale_attn_by_inverse_layer_idx",
                                      "scale_attn_weights",
                                      "sep_token_id",
                                      "seq_aux",
                                      "summary_activation",
                                      "summary_first_dropout",
                                      "summary_proj_to_labels",
                                      "summary_type",
                                      "summary_use_proj",
                                      "suppress_tokens",
                                      "swiglu_limit",
                                      "task_specific_params",
                                      "temperature",
                                      "tf_legacy_loss",
                                      "tie_encoder_decoder",
                                      "tokenizer_class",
                                      "top_k",
                                      "top_p",
                                      "torch_dtype",
                                      "torchscript",
                                      "transformers_version",
                                      "typical_p",
                                      "unk_token_id",
                                      "use_bfloat16",
                                      "use_cache",
                                      "use_return_dict"};

struct Unmodelled {
  const char* member;
  const char* what;
};

/// Members that name something this program does not model. An inert value (null, false, 0, empty) is let pass.
constexpr Unmodelled kUnmodelled[] = {
    {"add_cross_attention", "cross-attention"},
    {"altup_num_inputs", "alternating updates (AltUp)"},
    {"attention_chunk_size", "chunked attention"},
    {"attn_type_list", "layers of linear attention"},
    {"audio_config", "an audio tower"},
    {"block_configs", "architecture search: blocks that differ one by one"},
    {"cla_share_factor", "keys and values shared between layers"},
    {"compress_ratios", "compressed sparse attention"},
    {"conv_kernel", "state-space layers"},
    {"cross_attention_layers", "cross-attention"},
    {"full_attention_interval", "layers of linear attention"},
    {"hc_mult", "hyper-connections"},
    {"hybrid_override_pattern", "a hybrid of attention and state-space layers"},
    {"hidden_size_per_layer_input", "per-layer embeddings"},
    {"index_head_dim", "a sparse-attention indexer"},
    {"index_n_heads", "a sparse-attention indexer"},
    {"index_topk", "a sparse-attention indexer"},
    {"indexer_types", "a sparse-attention indexer"},
    {"interleave_moe_layer_step", "interleaved mixture-of-experts layers"},
    {"is_encoder_decoder", "an encoder beside the decoder"},
    {"linear_attn_config", "layers of linear attention"},
    {"linear_conv_kernel_dim", "layers of linear attention"},
    {"linear_num_key_heads", "layers of linear attention"},
    {"mamba_d_state", "state-space layers"},
    {"num_hash_layers", "hash-routed layers"},
    {"num_kv_shared_layers", "keys and values shared between layers"},
    {"o_groups", "a grouped output projection"},
    {"ssm_cfg", "state-space layers"},
    {"state_size", "state-space layers"},
    {"use_cla", "keys and values shared between layers"},
    {"use_parallel_residual", "attention and feed-forward network in parallel"},
    {"vision_config", "a vision tower"},
    {"word_embed_proj_dim", "an embedding of another width"},
};

bool ignorable(const std::string& key) {
  if (key.empty() || key.front() == '_' || key.rfind("unsloth_", 0) == 0) return true;
  return std::any_of(std::begin(kIgnorable), std::end(kIgnorable), [&](const char* name) { return key == name; });
}

/// null, false, 0, "" and empty lists and objects add nothing to a model.
bool inert(const Field& f) {
  const nlohmann::json& v = f.json();
  if (v.is_null()) return true;
  if (v.is_boolean()) return !v.get<bool>();
  if (v.is_number()) return v.get<double>() == 0;
  if (v.is_string()) return v.get_ref<const std::string&>().empty();
  return v.empty();
}

std::vector<std::string> candidates(const std::set<std::string>& read) {
  std::vector<std::string> out(read.begin(), read.end());
  out.insert(out.end(), std::begin(kIgnorable), std::end(kIgnorable));
  return out;
}

void judge(const Field& member, const std::string& key, const std::set<std::string>& read) {
  for (const Unmodelled& u : kUnmodelled) {
    if (key != u.member) continue;
    if (inert(member)) return;
    member.fail(std::string("not modelled: ") + u.what);
  }
  // Misspellings of what was read come first: they would silently fall back to a default.
  const std::vector<std::string> known(read.begin(), read.end());
  if (const auto near = nearest_word(key, known); near && edit_distance(key, *near) <= 2) {
    member.fail("unknown member (did you mean \"" + *near + "\"?)");
  }
  if (inert(member)) return;
  member.fail("unknown member, which may change the model" + did_you_mean(key, candidates(read)));
}

}  // namespace

void judge_members(const Field& object, const std::set<std::string>& read) {
  for (const std::string& key : object.keys()) {
    if (read.count(key) == 0 && !ignorable(key)) judge(object.at(key), key, read);
  }
}

HuggingFaceConfig::HuggingFaceConfig(Field config, std::optional<Field> outer)
    : config_(std::move(config)), outer_(std::move(outer)) {}

std::optional<Field> HuggingFaceConfig::find(Names names) const {
  std::optional<Field> found;
  for (const char* name : names) {
    read_.insert(name);
    std::optional<Field> here = config_.find(name);
    if (!here) continue;
    if (found && found->json() != here->json()) {
      here->fail("contradicts " + found->path() + ": " + here->shown() + " against " + found->shown());
    }
    if (!found) found = std::move(here);
  }
  for (const char* name : names) {
    if (!found && outer_) found = outer_->find(name);
  }
  return found;
}

void HuggingFaceConfig::fail_at(Names names, const std::string& what) const {
  find(names).value_or(config_).fail(what);
}

bool HuggingFaceConfig::stated(const char* name) const { return config_.has(name); }

std::int64_t HuggingFaceConfig::count(Names names, std::int64_t least, std::int64_t most) const {
  const auto member = find(names);
  if (member) return member->count(least, most);
  const char* first = *names.begin();
  if (config_.has(first)) config_.at(first).fail("expected a whole number, got null");
  // The nearest member that the file has instead, if any: the likeliest misspelling.
  std::vector<std::string> strangers;
  for (const std::string& key : config_.keys()) {
    if (!ignorable(key)) strangers.push_back(key);
  }
  if (const auto near = nearest_word(first, strangers); near && edit_distance(first, *near) <= 2) {
    config_.at(*near).fail(std::string("unknown member (did you mean \"") + first + "\"?)");
  }
  config_.fail(std::string("missing member \"") + first + "\"");
}

std::int64_t HuggingFaceConfig::count_or(Names names, std::int64_t fallback, std::int64_t most) const {
  const auto member = find(names);
  return member ? member->count(0, most) : fallback;
}

bool HuggingFaceConfig::flag_or(Names names, bool fallback) const {
  const auto member = find(names);
  return member ? member->boolean() : fallback;
}

double HuggingFaceConfig::positive_or(Names names, double fallback) const {
  const auto member = find(names);
  return member ? member->positive() : fallback;
}

std::string HuggingFaceConfig::text_or(Names names, const std::string& fallback) const {
  const auto member = find(names);
  return member ? member->text() : fallback;
}

std::vector<bool> HuggingFaceConfig::sliding_layers(std::int64_t layers) const {
  const auto list = find({"layer_types"});
  std::vector<bool> out;
  if (!list) return out;
  if (!list->is_array()) list->fail("expected a list, got " + list->shown());
  if (static_cast<std::int64_t>(list->size()) != layers) {
    list->fail(std::to_string(list->size()) + " entries for " + std::to_string(layers) + " layers");
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Field item = list->item(i);
    const std::string kind = item.text();
    if (kind != "full_attention" && kind != "sliding_attention") item.fail("not modelled: " + item.shown());
    out.push_back(kind == "sliding_attention");
  }
  return out;
}

void HuggingFaceConfig::finish() const { judge_members(config_, read_); }

}  // namespace shardplan
