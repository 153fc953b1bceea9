#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/suggest.hpp"
#include "layouts/memory.hpp"

namespace shardplan {

namespace {

Field stacks_file() {
  for (const EmbeddedFile& file : layouts_data())
    if (file.name == "data/memory_stacks.json") return Field::parse(file.text, std::string(file.name));
  throw std::logic_error("layouts/data/memory_stacks.json is not embedded");
}

/// A figure {"value", "source"}; "value" may carry a unit.
double bytes_in(const Field& f) { return f.at("value").bytes(); }

void read_into(const Field& f, MemoryTraits& t) {
  f.allow_only({"name",
                "older",
                "like",
                "source",
                "recipe",
                "unfused_attention",
                "dropout",
                "eager_bytes",
                "joined_qkv",
                "recipes",
                "reports_first_rank",
                "gradients_follow_reduction",
                "cp_by",
                "fp8_linear_inputs",
                "vocab_multiple",
                "loss_bytes_per_logit",
                "weight_gradient_copies",
                "fixed_buffers",
                "slack",
                "slack_fraction",
                "context"});
  if (const auto v = f.find("name")) t.name = v->text();
  t.source = f.at("source").text();
  if (const auto v = f.find("recipe")) t.recipe = v->text();
  if (const auto v = f.find("unfused_attention")) t.activation.unfused_attention = v->boolean();
  if (const auto v = f.find("dropout")) t.activation.dropout = v->boolean();
  if (const auto v = f.find("eager_bytes")) t.activation.eager_bytes = v->at("value").number();
  if (const auto v = f.find("joined_qkv")) t.activation.joined_qkv = v->boolean();
  if (const auto v = f.find("reports_first_rank")) t.reports_first_rank = v->boolean();
  if (const auto v = f.find("gradients_follow_reduction")) t.gradients_follow_reduction = v->boolean();
  if (const auto v = f.find("cp_by")) t.cp_ulysses = v->at("value").text() == "ulysses";
  if (const auto v = f.find("recipes")) {
    v->allow_only({"fp16", "bf16"});
    t.recipe_fp16 = v->at("fp16").text();
    t.recipe = v->at("bf16").text();
  }
  if (const auto v = f.find("fp8_linear_inputs")) t.activation.fp8_linear_inputs = v->boolean();
  if (const auto v = f.find("vocab_multiple")) t.vocab_multiple = v->count();
  if (const auto v = f.find("loss_bytes_per_logit")) {
    v->allow_only({"kept", "peak", "head_gradient", "source"});
    t.loss_kept = v->at("kept").number();
    t.loss_peak = v->at("peak").number();
    t.head_gradient = v->at("head_gradient").number();
  }
  if (const auto v = f.find("weight_gradient_copies")) t.weight_gradient_copies = v->boolean();
  if (const auto v = f.find("fixed_buffers")) t.fixed_buffers = bytes_in(*v);
  if (const auto v = f.find("slack")) t.slack_bytes = bytes_in(*v);
  if (const auto v = f.find("slack_fraction")) t.slack_fraction = v->at("value").number();
  if (const auto v = f.find("context")) t.context_bytes = bytes_in(*v);
}

std::optional<Field> entry(const Field& stacks, const std::string& name) {
  for (std::size_t i = 0; i < stacks.size(); ++i)
    if (stacks.item(i).at("name").text() == name) return stacks.item(i);
  return {};
}

void read_chain(const Field& stacks, const Field& f, MemoryTraits& t, int month, int depth) {
  if (depth > 8) f.fail("\"like\" goes round");
  if (const auto like = f.find("like")) {
    const auto base = entry(stacks, like->text());
    if (!base) like->fail("no such stack");
    read_chain(stacks, *base, t, month, depth + 1);
  }
  read_into(f, t);
  const auto older = f.find("older");  // the oldest first
  for (std::size_t i = 0; older && i < older->size(); ++i) {
    const Field release = older->item(i);
    if (month == 0 || month >= release.at("before").count(200001, 999912)) continue;
    read_into(release.at("figures"), t);
    return;
  }
}

}  // namespace

MemoryTraits memory_traits(const std::string& stack, const std::string& where, int month) {
  const Field file = stacks_file();
  const Field stacks = file.at("stacks");
  const auto found = entry(stacks, stack);
  if (!found) {
    std::vector<std::string> known;
    for (std::size_t i = 0; i < stacks.size(); ++i) known.push_back(stacks.item(i).at("name").text());
    throw InputError(where, "unknown stack \"" + stack + "\"" + did_you_mean_or_list(stack, known));
  }
  MemoryTraits out;
  read_chain(stacks, *found, out, month, 0);
  return out;
}

}  // namespace shardplan
