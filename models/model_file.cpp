#include "models/model_file.hpp"

#include <map>
#include <string>

#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/suggest.hpp"
#include "models/check_model.hpp"

namespace shardplan {
namespace {

std::int64_t count_or(const Field& f, const std::string& key, std::int64_t fallback, std::int64_t most) {
  const auto member = f.find(key);
  return member ? member->count(0, most) : fallback;
}

bool flag_or(const Field& f, const std::string& key, bool fallback) {
  const auto member = f.find(key);
  return member ? member->boolean() : fallback;
}

template <class Enum>
struct Word {
  const char* text;
  Enum value;
};

template <class Enum, std::size_t N>
Enum word_or(const Field& f, const std::string& key, Enum fallback, const Word<Enum> (&words)[N]) {
  const auto member = f.find(key);
  if (!member) return fallback;
  const std::string text = member->text();
  std::vector<std::string> known;
  for (const auto& w : words) {
    if (text == w.text) return w.value;
    known.emplace_back(w.text);
  }
  member->fail("unknown value \"" + text + "\"" + did_you_mean(text, known));
}

Attention read_multi_latent(const Field& f, Attention a) {
  f.allow_only({"kind", "heads", "q_lora", "kv_lora", "qk_nope", "qk_rope", "v_head", "index_heads", "index_dim",
                "index_top_k", "source"});
  a.kv_heads = a.heads;
  a.q_lora = count_or(f, "q_lora", 0, kMostFeatures);
  a.kv_lora = f.at("kv_lora").count(1, kMostFeatures);
  a.qk_nope = f.at("qk_nope").count(0, kMostFeatures);
  a.qk_rope = f.at("qk_rope").count(0, kMostFeatures);
  a.v_head = f.at("v_head").count(1, kMostFeatures);
  a.head_dim = a.qk_nope + a.qk_rope;
  a.index_heads = count_or(f, "index_heads", 0, kMostFeatures);
  if (a.index_heads > 0) {
    a.index_dim = f.at("index_dim").count(1, kMostFeatures);
    a.index_top_k = f.at("index_top_k").count(1, kMostPositions);
  }
  return a;
}

Attention read_gated_delta(const Field& f, Attention a) {
  f.allow_only({"kind", "heads", "kv_heads", "head_dim", "v_head", "convolution", "source"});
  a.kv_heads = f.at("kv_heads").count(1, kMostFeatures);
  a.head_dim = f.at("head_dim").count(1, kMostFeatures);
  a.v_head = f.at("v_head").count(1, kMostFeatures);
  a.convolution = f.at("convolution").count(1, kMostFeatures);
  return a;
}

Attention read_lightning(const Field& f, Attention a) {
  f.allow_only({"kind", "heads", "head_dim", "source"});
  a.kv_heads = a.heads;
  a.head_dim = f.at("head_dim").count(1, kMostFeatures);
  return a;
}

Attention read_attention(const Field& f) {
  Attention a;
  if (f.has("kind") && f.at("kind").is_string() && f.at("kind").text() == "none") {
    f.allow_only({"kind", "source"});
    return a;
  }
  a.kind = word_or(f, "kind", AttentionKind::grouped_query,
                   {{"grouped_query", AttentionKind::grouped_query},
                    {"multi_latent", AttentionKind::multi_latent},
                    {"gated_delta", AttentionKind::gated_delta},
                    {"lightning", AttentionKind::lightning}});
  a.heads = f.at("heads").count(1, kMostFeatures);
  if (a.kind == AttentionKind::multi_latent) return read_multi_latent(f, a);
  if (a.kind == AttentionKind::gated_delta) return read_gated_delta(f, a);
  if (a.kind == AttentionKind::lightning) return read_lightning(f, a);
  f.allow_only({"kind", "heads", "kv_heads", "head_dim", "qkv_bias", "output_bias", "qk_norm", "window", "sinks",
                "chunk", "query_gate", "source"});
  a.kv_heads = f.has("kv_heads") ? f.at("kv_heads").count(1, kMostFeatures) : a.heads;
  if (a.heads % a.kv_heads != 0) {
    f.at("kv_heads")
        .fail(std::to_string(a.heads) + " heads are not a multiple of " + std::to_string(a.kv_heads) + " KV heads");
  }
  a.head_dim = f.at("head_dim").count(1, kMostFeatures);
  a.qkv_bias = flag_or(f, "qkv_bias", false);
  a.output_bias = flag_or(f, "output_bias", false);
  a.qk_norm = word_or(f, "qk_norm", QkNorm::none,
                      {{"none", QkNorm::none}, {"per_head", QkNorm::per_head}, {"full_width", QkNorm::full_width}});
  a.window = count_or(f, "window", 0, kMostPositions);
  a.sinks = flag_or(f, "sinks", false);
  a.chunk = count_or(f, "chunk", 0, kMostPositions);
  a.query_gate = flag_or(f, "query_gate", false);
  return a;
}

Moe read_moe(const Field& f) {
  f.allow_only({"experts", "top_k", "width", "shared_width", "shared_gate", "gated", "bias", "router_bias",
                "selection_bias", "score", "renormalise", "routed_scaling", "groups", "groups_per_token", "source"});
  Moe e;
  e.experts = f.at("experts").count(1, kMostExperts);
  e.top_k = f.at("top_k").count(1);
  if (e.top_k > e.experts) {
    f.at("top_k").fail("a token chooses " + std::to_string(e.top_k) + " of only " + std::to_string(e.experts) +
                       " experts");
  }
  e.width = f.at("width").count(1, kMostFeatures);
  e.shared_width = count_or(f, "shared_width", 0, kMostFeatures);
  e.shared_gate = flag_or(f, "shared_gate", false);
  e.gated = flag_or(f, "gated", true);
  e.bias = flag_or(f, "bias", false);
  e.router_bias = flag_or(f, "router_bias", false);
  e.selection_bias = flag_or(f, "selection_bias", false);
  e.score = word_or(f, "score", RouterScore::softmax,
                    {{"softmax", RouterScore::softmax},
                     {"sigmoid", RouterScore::sigmoid},
                     {"sqrt_softplus", RouterScore::sqrt_softplus}});
  e.renormalise = flag_or(f, "renormalise", true);
  if (const auto scaling = f.find("routed_scaling")) e.routed_scaling = scaling->positive();
  e.groups = count_or(f, "groups", 1, kMostExperts);
  e.groups_per_token = count_or(f, "groups_per_token", e.groups, kMostExperts);
  return e;
}

/// The dense or mixture-of-experts part of a layer.
void read_ffn(const Field& f, Layer& layer) {
  if (f.has("experts")) {
    layer.moe = read_moe(f);
    return;
  }
  f.allow_only({"width", "gated", "bias", "source"});
  layer.mlp.width = f.at("width").count(1, kMostFeatures);
  layer.mlp.gated = flag_or(f, "gated", true);
  layer.mlp.bias = flag_or(f, "bias", false);
}

Field named(const Field& table, const Field& name) {
  const std::string key = name.text();
  if (!table.has(key)) name.fail("no such entry \"" + key + "\"" + did_you_mean(key, table.keys()));
  return table.at(key);
}

struct Parts {
  Field attentions;
  Field ffns;
  int norms;
};

Layer read_layer(const Field& f, const Parts& parts) {
  Layer layer;
  layer.attention = read_attention(named(parts.attentions, f.at("attention")));
  read_ffn(named(parts.ffns, f.at("ffn")), layer);
  layer.norms = parts.norms;
  return layer;
}

std::vector<Layer> read_layers(const Field& list, const Parts& parts) {
  if (!list.is_array()) list.fail("expected a list, got " + list.shown());
  std::vector<Layer> out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Field run = list.item(i);
    std::vector<Layer> pattern;
    if (const auto items = run.find("pattern")) {
      run.allow_only({"repeat", "pattern"});
      for (std::size_t k = 0; k < items->size(); ++k) {
        items->item(k).allow_only({"attention", "ffn"});
        pattern.push_back(read_layer(items->item(k), parts));
      }
    } else {
      run.allow_only({"repeat", "attention", "ffn"});
      pattern.push_back(read_layer(run, parts));
    }
    const std::int64_t repeat = count_or(run, "repeat", 1, kMostLayers);
    if (static_cast<std::int64_t>(out.size() + pattern.size()) * repeat > kMostLayers) {
      run.fail("more than " + std::to_string(kMostLayers) + " layers");
    }
    for (std::int64_t r = 0; r < repeat; ++r) out.insert(out.end(), pattern.begin(), pattern.end());
  }
  return out;
}

void read_checkpoint(const Field& f, Model& m) {
  f.allow_only({"format", "fp32_router", "mtp", "buffers", "other_parameters", "source"});
  m.published = word_or(f, "format", WeightFormat::unstated,
                        {{"bf16", WeightFormat::bf16},
                         {"fp16", WeightFormat::fp16},
                         {"fp32", WeightFormat::fp32},
                         {"fp8_block", WeightFormat::fp8_block},
                         {"mxfp4", WeightFormat::mxfp4}});
  m.fp32_router = flag_or(f, "fp32_router", false);
  m.checkpoint_mtp = flag_or(f, "mtp", false);
  m.checkpoint_buffers = count_or(f, "buffers", 0, std::int64_t{1} << 40);
  m.other_parameters = count_or(f, "other_parameters", 0, std::int64_t{1} << 50);
}

void read_mtp(const Field& f, const Parts& parts, Model& m) {
  f.allow_only({"layers", "shares_embeddings", "source"});
  m.mtp = read_layers(f.at("layers"), parts);
  m.mtp_shares_embeddings = flag_or(f, "shares_embeddings", true);
}

void read_notes(const Field& file, Model& m) {
  const auto notes = file.find("notes");
  for (std::size_t i = 0; notes && i < notes->size(); ++i) m.notes.push_back(notes->item(i).text());
  if (const auto assumed = file.find("assumed")) {
    m.assumed = true;
    m.notes.push_back("assumed: " + assumed->text());
  }
}

}  // namespace

Model read_model_file(const Field& file) {
  file.allow_only({"schema", "name", "source", "sources", "assumed", "notes", "hidden", "vocab", "max_positions",
                   "learned_positions", "tied_embeddings", "head_bias", "norm", "norms_per_layer", "attentions", "ffns",
                   "layers", "mtp", "checkpoint"});
  if (file.at("schema").text() != kModelSchema)
    file.at("schema").fail(std::string("expected \"") + kModelSchema + "\"");
  Model m;
  m.name = file.at("name").text();
  m.source = file.at("source").text();
  m.hidden = file.at("hidden").count(1, kMostFeatures);
  m.vocab = file.at("vocab").count(0, kMostVocab);
  m.max_positions = count_or(file, "max_positions", 0, kMostPositions);
  m.learned_positions = count_or(file, "learned_positions", 0, kMostFeatures);
  m.tied_embeddings = flag_or(file, "tied_embeddings", false);
  m.head_bias = flag_or(file, "head_bias", false);
  m.norm = word_or(file, "norm", NormKind::rms,
                   {{"rms", NormKind::rms},
                    {"layer_norm", NormKind::layer_norm},
                    {"layer_norm_no_bias", NormKind::layer_norm_no_bias}});
  const Parts parts{file.at("attentions"), file.at("ffns"), static_cast<int>(count_or(file, "norms_per_layer", 2, 4))};
  m.layers = read_layers(file.at("layers"), parts);
  if (const auto mtp = file.find("mtp")) read_mtp(*mtp, parts, m);
  if (const auto checkpoint = file.find("checkpoint")) read_checkpoint(*checkpoint, m);
  read_notes(file, m);
  check_model(m, file.name());
  return m;
}

}  // namespace shardplan
