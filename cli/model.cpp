// shardplan model list | show | compare: parameters, FLOPs and bytes of a model, under each convention by its name.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/load.hpp"
#include "cli/output.hpp"
#include "models/bytes.hpp"
#include "models/check_model.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"
#include "models/transform.hpp"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct ModelOptions {
  std::vector<std::string> models;
  std::string seq_len = "4096";
  std::string segment, isolate, upcycle, top_k;
  std::string format = "text";

  bool json() const { return format == "json"; }
  std::int64_t tokens() const {
    const std::int64_t n = parse_binary_count(seq_len, "--seq-len");
    if (n < 1) throw InputError("--seq-len", "out of range: 0 is below 1");
    if (n > (std::int64_t{1} << 40)) throw InputError("--seq-len", "out of range: above 1T");
    return n;
  }
};

/// Everything that is shown of one model.
struct Figures {
  Model model;
  ParameterCounts parameters;
  std::int64_t seq_len = 0;
  TokenFlops forward, forward_full, mtp;
  WeightBytes weights;
  double kv_per_token = 0, kv_cache = 0;
};

Figures figures_of(Model model, std::int64_t seq_len) {
  Figures f;
  f.parameters = count_parameters(model);
  f.seq_len = seq_len;
  f.forward = forward_flops(model, seq_len);
  f.forward_full = forward_flops(model, seq_len, AttentionCount::full);
  f.mtp = mtp_flops(model, seq_len);
  f.weights = weight_bytes(model);
  f.kv_per_token = kv_bytes_per_token(model);
  f.kv_cache = kv_cache_bytes(model, seq_len);
  f.model = std::move(model);
  return f;
}

Json parameters_json(const ParameterCounts& p) {
  Json out = {{"total", p.total},
              {"active", p.active},
              {"active_without_input_embedding", p.active_without_input_embedding},
              {"active_without_embeddings", p.active_without_embeddings},
              {"checkpoint", p.checkpoint},
              {"checkpoints", Json::object()},
              {"mtp", p.mtp},
              {"by_component", Json::object()}};
  for (const auto& [form, total] : p.checkpoints) out["checkpoints"][form] = total;
  for (std::size_t i = 0; i < kComponentNames.size(); ++i) {
    if (p.by_component[i] > 0) out["by_component"][std::string(kComponentNames[i])] = p.by_component[i];
  }
  return out;
}

Json flops_json(const Figures& f) {
  return {{"forward", f.forward.total()},
          {"training", kTrainingOverForward * f.forward.total()},
          {"seq_len", f.seq_len},
          {"forward_full_attention", f.forward_full.total()},
          {"forward_mtp", f.mtp.total()},
          {"training_6n", six_n_per_token(f.model)},
          {"by_component",
           {{"attention_projections", f.forward.projections},
            {"attention_scores", f.forward.scores},
            {"mlp", f.forward.mlp},
            {"router", f.forward.router},
            {"routed_experts", f.forward.experts},
            {"shared_experts", f.forward.shared},
            {"head", f.forward.head}}}};
}

Json moe_json(const Moe& e) {
  return {{"experts", e.experts},
          {"top_k", e.top_k},
          {"width", e.width},
          {"shared_width", e.shared_width},
          {"combinations", combinations(e.experts, e.top_k)},
          {"log10_combinations", log10_combinations(e.experts, e.top_k)}};
}

Json json_of(const Figures& f) {
  const Model& m = f.model;
  Json out = {{"name", m.name},
              {"layers", m.layer_count()},
              {"hidden", m.hidden},
              {"vocab", m.vocab},
              {"parameters", parameters_json(f.parameters)},
              {"flops_per_token", flops_json(f)},
              {"weight_bytes",
               {{"bf16", whole_bytes(f.weights.bf16)}, {"fp8", whole_bytes(f.weights.fp8)}, {"as_published", nullptr}}},
              {"kv_bytes_per_token", whole_bytes(f.kv_per_token)},
              {"kv_cache_bytes", {{"context", f.seq_len}, {"bytes", whole_bytes(f.kv_cache)}}},
              {"moe", nullptr},
              {"layouts_not_modelled", nullptr},
              {"source", m.source},
              {"notes", m.notes}};
  if (f.weights.as_published) out["weight_bytes"]["as_published"] = whole_bytes(*f.weights.as_published);
  if (const std::string why = why_no_layout(m); !why.empty()) out["layouts_not_modelled"] = why;
  if (const Moe* moe = first_moe(m)) {
    out["moe"] = moe_json(*moe);
    std::int64_t layers = 0;
    for (const Layer& layer : m.layers) layers += layer.moe ? 1 : 0;
    out["moe"]["layers"] = layers;
  }
  return out;
}

void print_line(const std::string& label, const std::string& value, const std::string& remark = "") {
  std::printf("  %-34s %24s%s%s\n", label.c_str(), value.c_str(), remark.empty() ? "" : "  ", remark.c_str());
}

/// In full as long as it is exact.
std::string teams_text(double teams) {
  return teams < 0x1p53 ? text_of_count(static_cast<std::int64_t>(teams)) : text_of_number(teams, 6);
}

void print_parameters(const ParameterCounts& p) {
  std::printf("Parameters\n");
  print_line("total", text_of_count(p.total), "trained tensors of the main model");
  print_line("active", text_of_count(p.active), "what one token touches");
  print_line("active without input embedding", text_of_count(p.active_without_input_embedding),
             "a lookup is not arithmetic");
  print_line("active without embeddings", text_of_count(p.active_without_embeddings), "nor head and positions");
  print_line("checkpoint", text_of_count(p.checkpoint), "elements that the published one stores");
  for (const auto& [form, total] : p.checkpoints) print_line("  as " + form, text_of_count(total));
  if (p.mtp > 0) print_line("multi-token prediction", text_of_count(p.mtp), "not in total");
  for (std::size_t i = 0; i < kComponentNames.size(); ++i) {
    if (p.by_component[i] > 0) {
      const double share = static_cast<double>(p.by_component[i]) / static_cast<double>(p.total);
      print_line("  " + std::string(kComponentNames[i]), text_of_count(p.by_component[i]), text_of_percent(share));
    }
  }
}

void print_flops(const Figures& f) {
  const TokenFlops& t = f.forward;
  std::printf("FLOP per token at %s tokens (causal attention, output head counted, embedding lookup not)\n",
              text_of_count(f.seq_len).c_str());
  print_line("forward", text_of_flops(t.total()));
  print_line("training", text_of_flops(kTrainingOverForward * t.total()), "3 x forward, no recomputation");
  print_line("training, rule 6 N", text_of_flops(six_n_per_token(f.model)), "N = active; no attention scores");
  print_line("forward, full attention", text_of_flops(f.forward_full.total()));
  if (f.mtp.total() > 0) print_line("multi-token prediction, forward", text_of_flops(f.mtp.total()), "not in forward");
  const std::pair<const char*, double> parts[] = {{"attention projections", t.projections},
                                                  {"attention scores", t.scores},
                                                  {"mlp", t.mlp},
                                                  {"router", t.router},
                                                  {"routed experts", t.experts},
                                                  {"shared experts", t.shared},
                                                  {"head", t.head}};
  for (const auto& [name, flops] : parts) {
    if (flops > 0) print_line("  " + std::string(name), text_of_flops(flops), text_of_percent(flops / t.total()));
  }
}

void print_bytes(const Figures& f) {
  std::printf("Bytes\n");
  print_line("weights in BF16", text_of_decimal_bytes(f.weights.bf16));
  print_line("weights in FP8", text_of_decimal_bytes(f.weights.fp8),
             "linear weights 1 B + scales per 128 x 128, rest BF16");
  if (f.weights.as_published) print_line("weights as published", text_of_decimal_bytes(*f.weights.as_published));
  print_line("KV cache per token, BF16", text_of_count(static_cast<std::int64_t>(f.kv_per_token)) + " B");
  print_line("KV cache of one sequence, BF16", text_of_decimal_bytes(f.kv_cache),
             "at " + text_of_count(f.seq_len) + " tokens, windows respected");
}

void print_moe(const Moe& e) {
  std::printf("Experts\n");
  print_line("routed, chosen per token", std::to_string(e.experts) + ", " + std::to_string(e.top_k));
  print_line("width, shared width", std::to_string(e.width) + ", " + std::to_string(e.shared_width));
  print_line("teams C(experts, chosen)", teams_text(combinations(e.experts, e.top_k)),
             "10^" + text_of_number(log10_combinations(e.experts, e.top_k), 4) +
                 (e.groups_per_token < e.groups ? ", before the limit to " + std::to_string(e.groups_per_token) +
                                                      " of " + std::to_string(e.groups) + " groups"
                                                : ""));
}

void print_figures(const Figures& f) {
  std::printf("%s: %s layers, hidden %s, vocabulary %s\n", f.model.name.c_str(),
              text_of_count(f.model.layer_count()).c_str(), text_of_count(f.model.hidden).c_str(),
              text_of_count(f.model.vocab).c_str());
  print_parameters(f.parameters);
  print_flops(f);
  print_bytes(f);
  if (const Moe* moe = first_moe(f.model)) print_moe(*moe);
  if (const std::string why = why_no_layout(f.model); !why.empty()) {
    std::printf("Layouts: not modelled for a model with %s; parameters, FLOPs and bytes only\n", why.c_str());
  }
  for (const std::string& note : f.model.notes) std::printf("Note: %s\n", note.c_str());
  std::printf("Source: %s\n", f.model.source.c_str());
}

/// The same rows for two models, side by side, with the ratio of the second to the first.
void print_two(const Figures& a, const Figures& b) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  struct Row {
    const char* name;
    double first, second;
    std::string (*text)(double);
  };
  const auto count = [](double x) { return text_of_count(static_cast<std::int64_t>(x)); };
  const auto teams = [](const Figures& f) {
    const Moe* e = first_moe(f.model);
    return e ? combinations(e->experts, e->top_k) : 1;
  };
  const Row rows[] = {{"layers", d(a.model.layer_count()), d(b.model.layer_count()), count},
                      {"hidden", d(a.model.hidden), d(b.model.hidden), count},
                      {"parameters", d(a.parameters.total), d(b.parameters.total), count},
                      {"active", d(a.parameters.active), d(b.parameters.active), count},
                      {"active without input embedding", d(a.parameters.active_without_input_embedding),
                       d(b.parameters.active_without_input_embedding), count},
                      {"active without embeddings", d(a.parameters.active_without_embeddings),
                       d(b.parameters.active_without_embeddings), count},
                      {"forward FLOP per token", a.forward.total(), b.forward.total(), text_of_flops},
                      {"weights in BF16", a.weights.bf16, b.weights.bf16, text_of_decimal_bytes},
                      {"weights in FP8", a.weights.fp8, b.weights.fp8, text_of_decimal_bytes},
                      {"KV cache per token, BF16", a.kv_per_token, b.kv_per_token, text_of_decimal_bytes},
                      {"teams of experts", teams(a), teams(b), teams_text}};
  std::printf("A = %s\nB = %s\nat %s tokens a sequence, causal attention\n", a.model.name.c_str(), b.model.name.c_str(),
              text_of_count(a.seq_len).c_str());
  std::printf("  %-32s %22s %22s %10s\n", "", "A", "B", "B / A");
  for (const Row& row : rows) {
    const std::string ratio = row.first > 0 ? text_of_number(row.second / row.first, 4) : "-";
    std::printf("  %-32s %22s %22s %10s\n", row.name, row.text(row.first).c_str(), row.text(row.second).c_str(),
                ratio.c_str());
  }
}

Model transformed(const Model& model, const ModelOptions& o) {
  Model out = model;
  if (!o.top_k.empty() && o.upcycle.empty()) throw InputError("--top-k", "needs --upcycle");
  if (!o.upcycle.empty()) {
    const std::int64_t top_k = o.top_k.empty() ? 2 : parse_count(o.top_k, "--top-k");
    out = upcycle(out, parse_count(o.upcycle, "--upcycle"), top_k, "--upcycle");
  }
  if (!o.segment.empty()) out = segment_experts(out, parse_count(o.segment, "--segment"), "--segment");
  if (!o.isolate.empty()) out = isolate_shared(out, parse_count(o.isolate, "--isolate-shared"), "--isolate-shared");
  return out;
}

void show(const ModelOptions& o) {
  Model model = load_model(o.models.front());
  Model after = transformed(model, o);
  if (after.name == model.name) {
    const Figures f = figures_of(std::move(model), o.tokens());
    o.json() ? print_json(json_of(f)) : print_figures(f);
    return;
  }
  const Figures a = figures_of(std::move(model), o.tokens()), b = figures_of(std::move(after), o.tokens());
  if (o.json()) {
    Json out = json_of(b);
    out["before"] = json_of(a);
    print_json(out);
  } else {
    print_two(a, b);
  }
}

void compare(const ModelOptions& o) {
  const Figures a = figures_of(load_model(o.models.front()), o.tokens()),
                b = figures_of(load_model(o.models.back()), o.tokens());
  if (o.json()) {
    print_json({{"models", Json::array({json_of(a), json_of(b)})}});
  } else {
    print_two(a, b);
  }
}

void list(const ModelOptions& o) {
  Json models = Json::array();
  if (!o.json())
    std::printf("%-28s %7s %7s %12s %12s  %s\n", "model", "layers", "hidden", "total", "active", "KV/token");
  for (const std::string& name : model_names()) {
    const Model model = load_model(name);
    const ParameterCounts p = count_parameters(model);
    if (o.json()) {
      models.push_back({{"name", name},
                        {"layers", model.layer_count()},
                        {"hidden", model.hidden},
                        {"parameters", parameters_json(p)}});
      continue;
    }
    std::printf("%-28s %7lld %7lld %10s B %10s B  %s\n", name.c_str(), static_cast<long long>(model.layer_count()),
                static_cast<long long>(model.hidden), text_of_number(static_cast<double>(p.total) * 1e-9, 4).c_str(),
                text_of_number(static_cast<double>(p.active) * 1e-9, 4).c_str(),
                text_of_decimal_bytes(kv_bytes_per_token(model)).c_str());
  }
  if (o.json()) {
    print_json({{"models", models}});
  } else {
    std::printf("Active counts the input embedding; `model show NAME` prints the other conventions.\n");
  }
}

void add_seq_len(CLI::App& verb, ModelOptions& o) {
  verb.add_option("--seq-len", o.seq_len, "tokens a sequence, for attention's FLOPs and the cache; k = 1,024")
      ->default_str(o.seq_len);
}

}  // namespace

void add_model(CLI::App& app) {
  auto options = std::make_shared<ModelOptions>();
  CLI::App* verb = app.add_subcommand("model", "Parameters, FLOPs and bytes of a model");
  verb->require_subcommand(1);
  verb->footer("Example: shardplan model show deepseek-v3 --seq-len 4k");

  CLI::App* list_verb = verb->add_subcommand("list", "The built-in models");
  add_format_option(*list_verb, options->format);
  list_verb->footer("Example: shardplan model list");
  list_verb->callback([options] { list(*options); });

  CLI::App* show_verb = verb->add_subcommand("show", "One model");
  show_verb->add_option("model", options->models, "built-in name, model file, config.json or its folder")
      ->required()
      ->expected(1);
  add_seq_len(*show_verb, *options);
  show_verb->add_option("--segment", options->segment, "cut every expert into this many, choose as many times more");
  show_verb->add_option("--isolate-shared", options->isolate, "make this many routed experts always active");
  show_verb->add_option("--upcycle", options->upcycle,
                        "replace every dense feed-forward network by this many copies and a router");
  show_verb->add_option("--top-k", options->top_k, "experts that an upcycled token chooses (default 2)");
  add_format_option(*show_verb, options->format);
  show_verb->footer("Example: shardplan model show mixtral-8x7b --segment 4");
  show_verb->callback([options] { show(*options); });

  CLI::App* compare_verb = verb->add_subcommand("compare", "Two models side by side");
  compare_verb->add_option("models", options->models, "two models")->required()->expected(2);
  add_seq_len(*compare_verb, *options);
  add_format_option(*compare_verb, options->format);
  compare_verb->footer("Example: shardplan model compare deepseek-v3 kimi-k2");
  compare_verb->callback([options] { compare(*options); });
}

}  // namespace shardplan
