#include "layouts/memory_question.hpp"

#include "layouts/layer_weights.hpp"

namespace shardplan {

const Recipe& recipe_of(const MemoryOptions& o, const Workload& w) {
  if (!o.recipe.empty()) return find_recipe(o.recipe);
  // A stack's recipe of 16-bit weights has no meaning in FP32.
  if (w.precision == DataType::fp32 && find_recipe(o.traits.recipe).gathered < 4) return find_recipe("fp32");
  const bool half = w.precision == DataType::fp16 && !o.traits.recipe_fp16.empty();
  return find_recipe(half ? o.traits.recipe_fp16 : o.traits.recipe);
}
MemoryQuestion::MemoryQuestion(const Model& m, const Layout& l, const Workload& w, const MemoryOptions& o)
    : model(m),
      layout(l),
      options(o),
      recipe(recipe_of(o, w)),
      activation(activation_question(l, m, w, o.traits.activation, o.load)),
      vocab(padded_vocab(m, l.tp, o.traits.vocab_multiple)),
      ends(end_weights(m, l.tp, vocab)) {
  if (!l.cp_by) activation.ulysses = o.traits.cp_ulysses;
  kinds.reserve(4);
  kind_of.reserve(m.layers.size());
  for (const Layer& layer : m.layers) kind_of.push_back(kind(layer, false));
  for (const Layer& layer : m.mtp) mtp_kind_of.push_back(kind(layer, true));
}

int MemoryQuestion::kind(const Layer& layer, bool mtp) {
  // Layers of one kind mostly follow one another: look from the last kind back.
  for (int i = static_cast<int>(kinds.size()) - 1; i >= 0; --i)
    if (kinds[i].mtp == mtp && same_layer(*kinds[i].layer, layer)) return i;
  LayerKind k{&layer, mtp, layer_weights(model, layer, layout.tp, layout.ep, layout.etp),
              layer_activations(activation, layer, recomputed_modules(layout))};
  if (mtp) {
    k.weights += mtp_weights(model, layer, layout.tp, layout.ep, layout.etp);
    // The norms of both inputs and the joined input of the 2h -> h projection.
    const double joined = 4 * sequence_bytes();
    k.activations.all += joined;
    k.activations.kept += joined;
    k.activations.recomputed = k.activations.all - k.activations.kept;
  }
  if (layer.moe)
    k.weights.experts *= 1 + static_cast<double>(options.redundant) / static_cast<double>(layer.moe->experts);
  kinds.push_back(k);
  return static_cast<int>(kinds.size()) - 1;
}

}  // namespace shardplan
